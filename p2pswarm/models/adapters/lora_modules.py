"""LoRA inside a block's own modules: y = Wx + s B(A x), W frozen.

A module keeps its place, its name and its class, of which it becomes a subclass. So the library's
code finds what it expects, and parameters have the names that PEFT gives them: `lora_A.weight` and
`lora_B.weight`; of an embedding `lora_embedding_A` and `lora_embedding_B`; and where several
parameters of one module have adapters, `base_layer.lora_A.weight` for the last but one, as PEFT's
wrappers lie in each other.

Shapes:  I features in, O out, rank R, E experts. A is R I, B is O R. Of experts A is E*R I, expert
         first, and B is O R*E, rank first. An embedding's A is R V.
Source:  Hu et al., "LoRA" (arXiv 2106.09685), as PEFT 0.21 computes it.
"""
# ruff: noqa: N806, N815  names are PEFT's; shapes end the names

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  torch's own name for it

from p2pswarm.models.formats.expert_matrices import (
    EXPERTS,
    MATRIX,
    ExpertFactors,
    ExpertMatrices,
    Matrices,
    PlainMatrices,
    one_at_a_time,
)
from p2pswarm.models.formats.product_modules import become, first_real, product_dtype

BASE_LAYER = "base_layer"


@dataclass(frozen=True, slots=True)
class LoraShape:
    """The sizes of one adapter."""

    rank: int
    scaling: float
    dropout: float = 0.0


class Factor(nn.Module):
    """A or B. The library's code would draw an `nn.Linear`; it does not know this."""

    def __init__(self, rows: int, columns: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(rows, columns, dtype=dtype))


class LoraLinear(nn.Module):
    """Mixed into `nn.Linear`, and into the library's `Conv1D`, whose weight is I O."""

    lora_A: Factor
    lora_B: Factor
    lora_dropout: nn.Module
    lora_scaling: float

    def forward(self, x: Tensor) -> Tensor:
        """Compute the module's own result, and add the adapter's."""
        made: Tensor = super().forward(x)  # of the class that it is mixed into
        given = self.lora_dropout(x.to(self.lora_A.weight.dtype))
        low = F.linear(F.linear(given, self.lora_A.weight), self.lora_B.weight)
        return (made + low * self.lora_scaling).to(made.dtype)


class LoraEmbedding(nn.Module):
    """Mixed into an embedding, also into one that scales what it looks up."""

    lora_embedding_A: nn.Parameter
    lora_embedding_B: nn.Parameter
    lora_scaling: float

    def forward(self, ids: Tensor) -> Tensor:
        """Look up in the module's own table, and in that of the adapter."""
        made: Tensor = super().forward(ids)
        low = F.embedding(ids, self.lora_embedding_A.T) @ self.lora_embedding_B.T
        low = low * self.lora_scaling
        scale = getattr(self, "embed_scale", None)
        if scale is not None:
            low = low * (scale.to(low.dtype) if isinstance(scale, Tensor) else scale)
        return made + low


class LoraParameters(nn.Module):
    """Mixed into a module that multiplies by its own parameters: experts, a router, a block."""

    lora_places: tuple[tuple[str, str], ...]
    """The names of parameters, and where their adapters lie."""
    lora_scalings: dict[str, float]

    def forward(self, *given: Any, **also: Any) -> Any:
        """Run the module's own forward with the sum of each weight and its adapter's product."""
        own = self.__dict__  # what lies in the instance's table is found before its parameters
        x = first_real(given)
        try:
            for name, _ in self.lora_places:
                packed = getattr(self, "packed", {}).get(name)
                weight: Any = self._parameters[name]
                dtype = weight.dtype if x is None else product_dtype(x)
                matrices = PlainMatrices(weight) if packed is None else packed
                own[name] = self._with_adapter(name, matrices, dtype)
            return super().forward(*given, **also)
        finally:
            for name, _ in self.lora_places:
                own.pop(name, None)

    def merged(self, name: str, weight: Tensor) -> Tensor:
        """The sum of a weight and its adapter's product, in the weight's dtype."""
        scaling = self.lora_scalings[name]
        if weight.dim() == MATRIX:
            a, b = self._factors(name, weight.dtype)
            return weight + (b @ a) * scaling
        a_ERI, b_EOR = self._of_experts(name, len(weight), weight.dtype)
        if self._in_out:
            return torch.baddbmm(weight, a_ERI.mT, b_EOR.mT, alpha=scaling)
        return torch.baddbmm(weight, b_EOR, a_ERI, alpha=scaling)

    def _with_adapter(self, name: str, weight: Matrices, dtype: torch.dtype) -> Any:
        """What is computed with instead of a weight."""
        if len(weight.shape) == MATRIX:
            return self.merged(name, weight.dense(dtype))
        a_ERI, b_EOR = self._of_experts(name, weight.shape[0], dtype)
        scaling = self.lora_scalings[name]
        factors = ExpertFactors(a_ERI.unbind(0), b_EOR.unbind(0), scaling)
        return ExpertMatrices(
            *(weight, dtype, factors),
            in_out=self._in_out,
            merged=lambda: self.merged(name, weight.dense(dtype)),
        )

    @property
    def _in_out(self) -> bool:
        return bool(getattr(self, "is_transposed", False))

    def _factors(self, name: str, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        factors: Any = self.get_submodule(dict(self.lora_places)[name])
        return factors.lora_A.weight.to(dtype), factors.lora_B.weight.to(dtype)

    def _of_experts(self, name: str, experts: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        a, b = self._factors(name, dtype)
        a_ERI = a.reshape(experts, -1, a.shape[-1])
        return a_ERI, b.reshape(len(b), -1, experts).permute(2, 0, 1)


def is_linear(module: nn.Module) -> bool:
    """Return whether it is a linear layer, of torch or the library's `Conv1D`."""
    return isinstance(module, nn.Linear) or type(module).__name__ == "Conv1D"


def add_to_linear(module: Any, shape: LoraShape) -> None:
    """Give a linear layer an adapter."""
    out, into = module.weight.shape if isinstance(module, nn.Linear) else module.weight.shape[::-1]
    _add_factors(module, into, out, shape.rank, module.weight.dtype)
    module.lora_scaling = shape.scaling
    module.lora_dropout = nn.Dropout(shape.dropout) if shape.dropout else nn.Identity()
    become(module, LoraLinear)


def add_to_embedding(module: Any, shape: LoraShape) -> None:
    """Give an embedding an adapter; PEFT leaves out its dropout."""
    rows, columns = module.weight.shape
    dtype = module.weight.dtype
    module.lora_embedding_A = nn.Parameter(torch.empty(shape.rank, rows, dtype=dtype))
    module.lora_embedding_B = nn.Parameter(torch.empty(columns, shape.rank, dtype=dtype))
    module.lora_scaling = shape.scaling
    become(module, LoraEmbedding)


def add_to_parameters(module: Any, shapes: dict[str, LoraShape]) -> None:
    """Give some parameters of a module adapters; `shapes`: by their names."""
    names = [name for name, _ in module.named_parameters(recurse=False) if name in shapes]
    places = []
    holder = module
    for depth, name in enumerate(reversed(names)):  # the last one is the outermost
        if depth:
            holder.add_module(BASE_LAYER, nn.Module())
            holder = holder.get_submodule(BASE_LAYER)
        weight, rank = module.get_parameter(name), shapes[name].rank
        experts, (out, into) = 1, weight.shape[-MATRIX:]
        if weight.dim() == EXPERTS:
            experts = len(weight)
            if getattr(module, "is_transposed", False):
                out, into = into, out
        _add_factors(holder, into, out, rank * experts, weight.dtype)
        places.append((name, ".".join([BASE_LAYER] * depth)))
    one_at_a_time(module)
    module.lora_places = tuple(places)
    module.lora_scalings = {name: shapes[name].scaling for name in names}
    become(module, LoraParameters)


def adapter_parameters(block: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """The parameters of a block's adapters, by their names in it."""
    for name, parameter in block.named_parameters():
        if is_of_adapter(name):
            yield name, parameter


def is_of_adapter(name: str) -> bool:
    """Return whether a parameter's name is that of an adapter's matrix."""
    return name.removesuffix(".weight").rpartition(".")[2] in FACTORS


FACTORS = frozenset({"lora_A", "lora_B", "lora_embedding_A", "lora_embedding_B"})


@torch.no_grad()
def draw_adapters(block: nn.Module) -> None:
    """Draw a block's adapters, inside `PortableDraws`: their products begin as zeros."""
    for name, parameter in adapter_parameters(block):
        kind = name.removesuffix(".weight").rpartition(".")[2]
        if kind == "lora_A":
            bound = 1.0 / math.sqrt(parameter.shape[1])  # kaiming_uniform_ with a = sqrt(5)
            parameter.uniform_(-bound, bound)
        elif kind == "lora_embedding_B":
            parameter.normal_()
        else:
            parameter.zero_()


def _add_factors(holder: Any, into: int, out: int, rank: int, dtype: torch.dtype) -> None:
    holder.lora_A = Factor(rank, into, dtype)
    holder.lora_B = Factor(out, rank, dtype)
