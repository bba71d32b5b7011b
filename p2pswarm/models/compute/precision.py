"""The precision of blocks: the dtype of the weights, or bfloat16 where that is good enough.

Shapes:  N elements in a stage, as in `flat_parameters.py`.
Source:  torch.amp; docs/precision.md.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from p2pswarm.models.base import Value
from p2pswarm.models.boundary import Boundary, boundaries
from p2pswarm.models.compute.flat_parameters import FlatParameters, Segment, placed_parameters
from p2pswarm.models.dropout import Around, DropoutSeeds, at_once, plainly, run_blocks
from p2pswarm.models.formats.expert_matrices import MATRIX
from p2pswarm.models.rounding.gradient_grid import Leaf
from p2pswarm.settings.config import INT_GRID, RunConfig

# ruff: noqa: D102  `Precision` documents `run`

Made = Callable[[Any], Any]
"""Makes another function of the one that runs a block."""


def as_it_is(call: Any) -> Any:
    """Do not change the function that runs a block."""
    return call


class Precision(ABC):
    """A way to run the blocks of a stage, and the leaves of their graphs.

    `run.precision = "bf16"` is torch's autocast: products of matrices in bfloat16, norms, softmax
    and the loss in float32. Gradient sums and the optimizer stay float32. Two things differ from
    autocast alone. The matrices are converted once after each change of the weights, and not in
    each forward: a graph that is kept would keep a copy of them. Where the weights are kept in
    bfloat16, there is nothing to convert: graphs begin at the weights themselves, and of what is
    no matrix there is a float32 copy. And what a block gives has the dtype that it has without
    autocast, so the cut into stages changes no bits, and additions from block to block stay
    float32.
    """

    parameters: Sequence[Tensor]
    """The tensors whose gradients are taken."""
    sums: Sequence[Tensor]
    """The place where each of these is added up."""
    leaves: Sequence[Leaf]
    """The block and the parameter that each of them is of."""
    weight_storages: frozenset[int]
    """The memory of the weights: a graph refers to it and does not hold it."""

    @abstractmethod
    def run(
        self,
        value: Value,
        dropout: DropoutSeeds | None,
        around: Around = at_once,
        weight: float = 0.0,
    ) -> Value:
        """Run all blocks, one after another; `weight`: as `run_blocks`."""


class FullPrecision(Precision):
    """In the dtype of the weights."""

    def __init__(
        self, flat: FlatParameters, made: Made = as_it_is, *, ends_apart: bool = False
    ) -> None:
        """`ends_apart`: a tensor that two blocks have is a leaf in each, as if in two stages."""
        self._flat = flat
        self._plainly, self._run = made(plainly), made(_with_weights)
        self.parameters, self.sums, self.leaves = flat.parameters, flat.sums, leaves_of(flat)
        self._other: dict[nn.Module, dict[str, Tensor]] = {}
        """The leaves of blocks whose tensor an earlier block has as well, by their names."""
        if ends_apart:
            self._take_ends_apart()
        place = flat.params_N.untyped_storage().data_ptr()
        self.weight_storages = frozenset({place}) | base_storages(flat)

    def run(
        self,
        value: Value,
        dropout: DropoutSeeds | None,
        around: Around = at_once,
        weight: float = 0.0,
    ) -> Value:
        return run_blocks(self._flat.blocks, value, dropout, self._call, around, weight)

    def _take_ends_apart(self) -> None:
        places = {id(p): place for place, p in enumerate(self._flat.parameters)}
        first, leaves = list(self.leaves), list(self.leaves)
        parameters: list[Tensor] = list(self.parameters)
        sums = list(self.sums)
        for number, block in zip(self._flat.numbers, self._flat.blocks, strict=True):
            for name, parameter in block.named_parameters():
                place = places.get(id(parameter))  # None: it is frozen
                if place is not None and first[place].block != number:
                    leaf = parameter.detach().requires_grad_()  # the same memory
                    self._other.setdefault(block, {})[name] = leaf
                    parameters.append(leaf)
                    sums.append(sums[place])
                    leaves.append(Leaf(number, place))
        self.parameters, self.sums, self.leaves = parameters, sums, leaves

    def _call(self, block: nn.Module, value: Value) -> Value:
        made: Value
        if block in self._other:
            made = self._run(block, self._other[block], value)
        else:
            made = self._plainly(block, value)
        return made


class Bfloat16(Precision):
    """In bfloat16 where autocast has it, from the matrices in bfloat16."""

    def __init__(
        self, flat: FlatParameters, given: Sequence[Boundary], made: Made = as_it_is
    ) -> None:
        """`given`: what each block gives without autocast."""
        self._flat = flat
        self._given = given
        self._run = made(_with_weights)
        self._copy_N = flat.params_N.to(torch.bfloat16)  # themselves, if they are that already
        self._copied = flat.params_N._version  # noqa: SLF001  how often it was changed in place
        self._widened: list[tuple[Tensor, Tensor]] = []
        """What is no matrix and is kept in bfloat16; and its copy in float32."""
        places = dict(zip(flat.parameters, zip(flat.segments, flat.sums, strict=True), strict=True))
        self.parameters, self.sums, self.leaves = [], [], []
        numbers = {p: place for place, p in enumerate(flat.parameters)}
        self._named: dict[nn.Module, dict[str, Tensor]] = {}
        for number, block in zip(flat.numbers, flat.blocks, strict=True):
            # of a tied tensor each of its two blocks has a leaf: their gradients are added in
            # float32, as they are where the blocks are in two stages
            trained = (p for p in dict.fromkeys(block.parameters()) if p in places)
            own = {p: self._leaf(p, places[p][0]) for p in trained}
            self.parameters += own.values()
            self.sums += (places[p][1] for p in own)
            self.leaves += (Leaf(number, numbers[p]) for p in own)
            names = block.named_parameters(remove_duplicate=False)
            self._named[block] = {name: own[p] for name, p in names if p in own}
        self.weight_storages = frozenset(
            x.untyped_storage().data_ptr() for x in (flat.params_N, self._copy_N, *self.parameters)
        ) | base_storages(flat)
        self._numbers = {block: number for number, block in enumerate(flat.blocks)}

    def _leaf(self, parameter: nn.Parameter, place: Segment) -> Tensor:
        """The tensor that a block computes with instead of a parameter."""
        if parameter.dim() >= MATRIX:  # what has fewer dimensions stays float32
            part = self._copy_N[place.start : place.stop]
            return part.view(parameter.shape).requires_grad_()
        if parameter.dtype != torch.bfloat16:
            return parameter
        leaf = parameter.detach().float().requires_grad_()
        self._widened.append((parameter, leaf))
        return leaf

    def run(
        self,
        value: Value,
        dropout: DropoutSeeds | None,
        around: Around = at_once,
        weight: float = 0.0,
    ) -> Value:
        self._follow()
        # its cache would share the bfloat16 of what a stage is given, which is a leaf, between its
        # uses: their gradients would be added in bfloat16, and the cut into stages change bits
        device = self._copy_N.device.type
        with torch.autocast(device, torch.bfloat16, cache_enabled=False):
            return run_blocks(self._flat.blocks, value, dropout, self._call, around, weight)

    @torch.no_grad()
    def _follow(self) -> None:
        """Copy the weights anew if they have changed."""
        version = self._flat.params_N._version  # noqa: SLF001
        if version == self._copied:
            return
        if self._copy_N is not self._flat.params_N:
            self._copy_N.copy_(self._flat.params_N)
        for kept, leaf in self._widened:
            leaf.copy_(kept)
        self._copied = version

    def _call(self, block: nn.Module, value: Value) -> Value:
        made: Value = self._run(block, self._named[block], value)
        return in_dtypes_of(made, self._given[self._numbers[block]])


def base_storages(flat: FlatParameters) -> frozenset[int]:
    """The memory of what does not train."""
    return frozenset() if flat.base is None else flat.base.storages


def leaves_of(flat: FlatParameters) -> list[Leaf]:
    """The first block that has each parameter of a stage."""
    placed = placed_parameters(flat.numbers, flat.blocks)
    return [Leaf(number, place) for place, (number, _, _) in enumerate(placed)]


def _with_weights(block: nn.Module, weights: Mapping[str, Tensor], value: Value) -> Value:
    made: Value = functional_call(block, dict(weights), (value,))
    return made


def in_dtypes_of(made: Value, given: Boundary) -> Value:
    """The value that a block gave, in the dtypes that it has without autocast."""
    if isinstance(made, Tensor):
        return made.to(given.tensors[0].dtype)
    dtypes = {tensor.key: tensor.dtype for tensor in given.tensors}
    return {key: x.to(dtypes.get(key, x.dtype)) for key, x in made.items()}


def precision_of(run: RunConfig, flat: FlatParameters, made: Made = as_it_is) -> Precision:
    """Return how the stage's blocks are run; `made` of the function that runs one."""
    if run.precision == "bf16":
        return Bfloat16(flat, boundaries(run)[flat.numbers.start : flat.numbers.stop], made)
    return FullPrecision(flat, made, ends_apart=INT_GRID in run.codecs.averagings)
