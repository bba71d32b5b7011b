"""The frozen weights of a stage: packed, hashed once, and used where they lie.

The hash of the blocks' roots is the leaf of a stage, one more in the tree of its state
(`tensors/state_tree.py`). So whoever agrees on a state agrees on the base under it.

Shapes:  bytes are uint8, one buffer for each block.
"""

from collections.abc import Sequence

import torch
from torch import nn

from p2pswarm.models.base_weights.base_layout import base_tensors, block_root, fill_block, size_of
from p2pswarm.models.formats.product_modules import (
    PackedEmbedding,
    PackedLinear,
    PackedParameters,
    PackedWeight,
    ScratchMemory,
)
from p2pswarm.models.formats.weight_formats import DTYPES, PlainFormat
from p2pswarm.settings.config import RunConfig


class BaseMemory:
    """The frozen weights of the blocks of a stage."""

    def __init__(
        self, run: RunConfig, numbers: range, blocks: Sequence[nn.Module], device: torch.device
    ) -> None:
        self._run, self._numbers, self._blocks = run, numbers, blocks
        self._dtype = DTYPES[run.model.dtype]
        self._tensors = [base_tensors(run, block) for block in blocks]
        sizes = map(size_of, self._tensors)
        self.buffers = [torch.zeros(size, dtype=torch.uint8, device=device) for size in sizes]
        self._scratch = ScratchMemory()
        self._copies: dict[int, tuple[nn.Parameter, PackedWeight]] = {}
        """What is computed with in another dtype than it is kept in, by where its bytes lie."""
        self.roots: tuple[bytes, ...] = ()
        """Of each block."""
        self.bind(blocks)

    @property
    def size_bytes(self) -> int:
        """The bytes of all blocks."""
        return sum(map(len, self.buffers))

    @property
    def storages(self) -> frozenset[int]:
        """The memory of frozen weights: a graph refers to it and does not hold it."""
        there = (*self.buffers, *(copy for copy, _ in self._copies.values()))
        return frozenset(x.untyped_storage().data_ptr() for x in there)

    def bind(self, blocks: Sequence[nn.Module]) -> None:
        """Have modules use the weights; also those of a second copy of the blocks."""
        for block, tensors, data in zip(blocks, self._tensors, self.buffers, strict=True):
            for tensor in tensors:
                owner, _, own = tensor.name.rpartition(".")
                part = data[tensor.start : tensor.stop]
                packed = PackedWeight(tensor.format, part, tensor.shape, self._scratch)
                self._bind(block.get_submodule(owner), own, packed)

    def _bind(self, module: nn.Module, name: str, packed: PackedWeight) -> None:
        form = packed.format
        if isinstance(form, PlainFormat) and form.dtype == self._dtype:
            there = form.view(packed.data, packed.shape)
            setattr(module, name, nn.Parameter(there, requires_grad=False))
        elif isinstance(module, PackedParameters) and name in module.packs:
            module.packed[name] = packed
        elif isinstance(module, PackedLinear | PackedEmbedding) and name in module.packs:
            module.packed = packed
        else:
            place = packed.data.data_ptr()
            if place not in self._copies:
                empty = torch.empty(packed.shape, dtype=self._dtype, device=packed.data.device)
                self._copies[place] = nn.Parameter(empty, requires_grad=False), packed
            setattr(module, name, self._copies[place][0])

    @torch.no_grad()
    def fill(self) -> None:
        """Draw the weights, or read them from the files of the run's model."""
        there = zip(self._numbers, self._blocks, self._tensors, self.buffers, strict=True)
        for number, block, tensors, data in there:
            fill_block(self._run, number, block, tensors, data)
        self.changed()

    @torch.no_grad()
    def changed(self) -> None:
        """The bytes are others than before."""
        for copy, packed in self._copies.values():
            copy.copy_(packed.dense(self._dtype))
        self.roots = tuple(map(block_root, self.buffers))
