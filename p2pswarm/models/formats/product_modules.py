"""Modules that compute from packed weights: of a product only the packed bytes are kept.

A forward unpacks a weight, multiplies, and lets it go; the backward unpacks it again. So a graph
holds no dense weight. Of a mixture one expert is unpacked at a time (`expert_matrices.py`). What is
no product has its weight unpacked once, when it is filled.

Shapes:  as the modules that these are mixed into.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  torch's own name for it

from p2pswarm.models.formats.expert_matrices import EXPERTS, ExpertMatrices, one_at_a_time
from p2pswarm.models.formats.weight_formats import WeightFormat, dense_values


class ScratchMemory:
    """Memory of a stage in which matrices are unpacked, one after another."""

    def __init__(self) -> None:
        self._kept: dict[torch.dtype, Tensor] = {}

    def of(self, values: int, dtype: torch.dtype) -> Tensor:
        """So much memory, which the next call may give again."""
        there = self._kept.get(dtype)
        if there is None or len(there) < values:
            there = self._kept[dtype] = torch.empty(values, dtype=dtype)
        return there


@dataclass(frozen=True, slots=True, eq=False)
class PackedWeight:
    """A tensor in a format."""

    format: WeightFormat
    data: Tensor
    shape: tuple[int, ...]
    scratch: ScratchMemory

    def dense(self, dtype: torch.dtype) -> Tensor:
        """The tensor itself, in a dtype."""
        return self.format.unpack(self.data, self.shape, dtype)

    def in_scratch(self, dtype: torch.dtype) -> Tensor:
        """The same in memory that the stage's next product writes anew.

        A host takes as long to give new memory to a matrix as to fill it.
        """
        if self.data.device.type != "cpu":
            return self.dense(dtype)  # torch keeps a GPU's memory by itself
        there = self.scratch.of(dense_values(self.shape), dtype)
        return self.format.unpack(self.data, self.shape, dtype, there)

    def first_in_scratch(self, index: int, dtype: torch.dtype) -> Tensor:
        """Element `index` of its first dimension; as `in_scratch`."""
        there = None
        if self.data.device.type == "cpu":
            there = self.scratch.of(dense_values(self.shape[1:]), dtype)
        return self.format.unpack_first(self.data, self.shape, dtype, index, there)


class PackedLinear(nn.Module):
    """Mixed into `nn.Linear`, and into the library's `Conv1D`, whose weight is I O."""

    packs: Mapping[str, bool]
    """The parameters that are packed, and whether they are quantised."""
    packed: PackedWeight | None

    def forward(self, x: Tensor) -> Tensor:
        """Compute the module's own result."""
        if self.packed is None:  # on the meta device, where only shapes count
            made: Tensor = super().forward(x)
            return made
        dtype = product_dtype(x)
        in_out = not isinstance(self, nn.Linear)
        made = _Product.apply(x.to(dtype), self.packed, dtype, in_out)  # type: ignore[no-untyped-call]
        bias = self._parameters["bias"]
        return made if bias is None else made + bias.to(dtype)


class PackedEmbedding(nn.Module):
    """Mixed into an `nn.Embedding` that scales nothing: it looks up before it converts."""

    packs: Mapping[str, bool]
    packed: PackedWeight | None
    out_dtype: torch.dtype

    def forward(self, ids: Tensor) -> Tensor:
        """Look tokens up."""
        if self.packed is None:
            made: Tensor = super().forward(ids)
            return made
        return F.embedding(ids, self.packed.dense(torch.bfloat16)).to(self.out_dtype)


class PackedParameters(nn.Module):
    """Mixed into a module that multiplies by its own parameters."""

    packs: Mapping[str, bool]
    packs_dtype: torch.dtype
    """Of the model."""
    packed: dict[str, PackedWeight]

    def forward(self, *given: Any, **also: Any) -> Any:
        """Run the module's own forward with its weights unpacked."""
        own = self.__dict__  # what lies in the instance's table is found before its parameters
        names = [name for name in self.packed if name not in own]  # or an adapter was added
        dtype = self.packs_dtype if (x := first_real(given)) is None else product_dtype(x)
        try:
            for name in names:
                packed = self.packed[name]
                matrices = len(packed.shape) == EXPERTS
                own[name] = ExpertMatrices(packed, dtype) if matrices else packed.dense(dtype)
            return super().forward(*given, **also)
        finally:
            for name in names:
                own.pop(name, None)


def first_real(given: Iterable[object]) -> Tensor | None:
    """The first tensor of real numbers that a module is given, also in a bundle."""
    for value in given:
        for x in value.values() if isinstance(value, dict) else (value,):
            if isinstance(x, Tensor) and x.is_floating_point():
                return x
    return None


def product_dtype(x: Tensor) -> torch.dtype:
    """The dtype that a product with `x` has here: autocast's where it is on."""
    kind = x.device.type
    autocast = kind != "meta" and torch.is_autocast_enabled(kind)
    return torch.get_autocast_dtype(kind) if autocast else x.dtype


def _unpacked(packed: PackedWeight, dtype: torch.dtype) -> Tensor:
    """A weight for one product; what is compiled may keep it longer."""
    return packed.dense(dtype) if torch.compiler.is_compiling() else packed.in_scratch(dtype)


class _Product(torch.autograd.Function):
    """x W^T, of which the graph keeps W's bytes alone."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        packed: PackedWeight,
        dtype: torch.dtype,
        in_out: bool,  # noqa: FBT001  torch passes all by their places
    ) -> Tensor:
        ctx.packed, ctx.dtype, ctx.in_out = packed, dtype, in_out
        weight = _unpacked(packed, dtype)
        return x @ weight if in_out else F.linear(x, weight)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (gradient,) = gradients
        weight = _unpacked(ctx.packed, ctx.dtype)
        return gradient @ (weight.mT if ctx.in_out else weight), None, None, None


def pack_linear(module: Any, *, quantised: bool) -> None:
    """Have a linear layer compute from a packed weight, once it has one."""
    module.packs, module.packed = {"weight": quantised}, None
    become(module, PackedLinear)


def pack_embedding(module: Any) -> None:
    """The same for an embedding that scales nothing; its table is not quantised."""
    module.packs, module.packed, module.out_dtype = {"weight": False}, None, module.weight.dtype
    become(module, PackedEmbedding)


def pack_parameters(module: Any, names: Iterable[str]) -> None:
    """The same for parameters that a module multiplies by itself."""
    module.packs, module.packed = dict.fromkeys(names, True), {}
    module.packs_dtype = next(module.parameters()).dtype
    one_at_a_time(module)
    become(module, PackedParameters)


def own_kind(module: nn.Module) -> type[nn.Module]:
    """The class of a module before it became more."""
    kind = type(module)
    while (more := _MORE.get(kind)) is not None:
        kind = more
    return kind


_KINDS: dict[tuple[type[nn.Module], type[nn.Module]], type[nn.Module]] = {}
_MORE: dict[type[nn.Module], type[nn.Module]] = {}
"""Of each of them, the class that it was made of."""


def become(module: nn.Module, kind: type[nn.Module]) -> None:
    """Have a module be what it is and `kind`, whose forward runs first."""
    both = kind, type(module)
    if both not in _KINDS:
        _KINDS[both] = type(both[1].__name__, both, {})
        _MORE[_KINDS[both]] = both[1]
    module.__class__ = _KINDS[both]
