"""A frozen parameter with a matrix for each expert, of which one at a time is dense.

A mixture's own code takes `weight[e]` and multiplies by it. What lies here in the weight's place
unpacks that matrix for the product alone, adds its adapter's product, and does both again in the
backward. So neither memory nor a graph has the dense matrices of all experts. Whatever else is done
with it is done with the dense tensor.

Shapes:  E experts, O features out, I in, R of a rank. A weight is E O I, or E I O (`in_out`).
Source:  https://docs.pytorch.org/docs/stable/notes/extending.html, "Extending torch with a
         Tensor-like type".
"""
# ruff: noqa: N806, N803, N815  shapes end the names

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812  torch's own name for it

MATRIX = 2  # dimensions
EXPERTS = 3  # dimensions of a parameter that has a matrix for each expert
ROWS = 2  # dimensions of what such a matrix is multiplied with
PRODUCTS = (torch.matmul, Tensor.matmul, Tensor.__matmul__)
OPERATORS = (
    *("__add__", "__radd__", "__sub__", "__rsub__", "__mul__", "__rmul__", "__truediv__"),
    *("__rtruediv__", "__matmul__", "__rmatmul__", "__neg__", "__getitem__", "__iter__", "__len__"),
)
"""What Python looks up in the class, and not by `__getattr__`."""


class Matrices(Protocol):
    """The weight as it is kept."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape."""

    def dense(self, dtype: torch.dtype) -> Tensor:
        """All of it."""

    def first_in_scratch(self, index: int, dtype: torch.dtype) -> Tensor:
        """One expert's matrix, in memory that the next product writes anew."""


@dataclass(frozen=True, slots=True, eq=False)
class PlainMatrices:
    """Implements `Matrices` by a tensor that nothing trains."""

    weight: Tensor

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape."""
        return tuple(self.weight.shape)

    def dense(self, dtype: torch.dtype) -> Tensor:
        """All of it."""
        return self.weight.to(dtype)

    def first_in_scratch(self, index: int, dtype: torch.dtype) -> Tensor:
        """One expert's matrix."""
        return self.weight[index].to(dtype)


@dataclass(frozen=True, slots=True, eq=False)
class ExpertFactors:
    """The factors of an adapter, apart for each expert."""

    a_RI: Sequence[Tensor]
    b_OR: Sequence[Tensor]
    scaling: float


class _Stand:
    """What torch's functions take for a tensor that is made when it is needed."""

    def dense(self) -> Tensor:
        """The tensor itself, with its adapter."""
        raise NotImplementedError

    def product(self, function: object, given: Sequence[Any]) -> Tensor | None:
        """What a function makes of it without the dense tensor; None: nothing."""
        del function, given
        return None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.dense(), name)

    @classmethod
    def __torch_function__(
        cls,
        function: Callable[..., Any],
        types: object,
        given: Sequence[Any] = (),
        also: Mapping[str, Any] | None = None,
    ) -> Any:
        del cls, types
        own = [each for each in given if isinstance(each, _Stand)]
        if len(own) == 1 and not also and (made := own[0].product(function, given)) is not None:
            return made
        named = {name: _real(value) for name, value in (also or {}).items()}
        return function(*map(_real, given), **named)


def _real(value: Any) -> Any:
    """A value with tensors for all that stand for them, also in lists, as `torch.stack` has them.

    They are found by what they are: an equal sign would compare tensors element by element.
    """
    if isinstance(value, _Stand):
        return value.dense()
    if isinstance(value, list | tuple):
        made = [_real(each) for each in value]
        changed = any(one is not other for one, other in zip(made, value, strict=True))
        return (made if isinstance(value, list) else tuple(made)) if changed else value
    return value


def _done_with_dense(operator: str) -> Callable[..., Any]:
    def done(self: _Stand, *given: Any) -> Any:
        return getattr(self.dense(), operator)(*map(_real, given))

    return done


for _operator in OPERATORS:
    setattr(_Stand, _operator, _done_with_dense(_operator))


class ExpertMatrices(_Stand):
    """The weight of all experts."""

    def __init__(
        self,
        weight: Matrices,
        dtype: torch.dtype,
        factors: ExpertFactors | None = None,
        *,
        in_out: bool = False,
        merged: Callable[[], Tensor] | None = None,
    ) -> None:
        """`merged`: makes the dense tensor with its adapter."""
        self._weight, self._dtype, self._factors = weight, dtype, factors
        self._in_out = in_out
        self._merged = merged
        self.shape = torch.Size(weight.shape)

    def dense(self) -> Tensor:
        """The tensor itself, with its adapter."""
        return self._weight.dense(self._dtype) if self._merged is None else self._merged()

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, Tensor) and index.dim() == 0:
            index = int(index)
        if not isinstance(index, int):
            return self.dense()[index]
        index = range(len(self))[index]  # IndexError beyond the last one
        return ExpertMatrix(self._weight, self._dtype, index, self._factors, self._in_out)


@dataclass(frozen=True, slots=True, eq=False)
class ExpertMatrix(_Stand):
    """The weight of one expert."""

    weight: Matrices
    dtype: torch.dtype
    index: int
    factors: ExpertFactors | None
    in_out: bool

    def dense(self) -> Tensor:
        """The tensor itself, with its adapter."""
        here = self.weight.first_in_scratch(self.index, self.dtype).clone()
        if self.factors is None:
            return here
        a_RI, b_OR = self.factors.a_RI[self.index], self.factors.b_OR[self.index]
        low = (a_RI.mT, b_OR.mT) if self.in_out else (b_OR, a_RI)
        return torch.addmm(here, *low, alpha=self.factors.scaling)

    def product(self, function: object, given: Sequence[Any]) -> Tensor | None:
        """The product of rows and the matrix; None for anything else."""
        x, *others = given
        second = len(others) == 1 and others[0] is self
        if not second or not isinstance(x, Tensor) or x.dim() != ROWS:
            return None
        if function is not F.linear and function not in PRODUCTS:
            return None
        a_RI = b_OR = None
        if self.factors is not None:
            a_RI, b_OR = self.factors.a_RI[self.index], self.factors.b_OR[self.index]
        made: Tensor = _ExpertProduct.apply(  # type: ignore[no-untyped-call]
            x.to(self.dtype), a_RI, b_OR, self, function is F.linear
        )
        return made


def one_at_a_time(module: Any) -> None:
    """Have a mixture's own code loop over experts, where a faster one would take all at once.

    The faster one makes the matrices of all experts dense, and its graph keeps them: gigabytes a
    layer.
    """
    config = getattr(module, "config", None)
    if hasattr(config, "_experts_implementation"):
        module.config = copy.copy(config)  # others of the model share it
        module.config._experts_implementation = "eager"  # noqa: SLF001  of transformers


class _ExpertProduct(torch.autograd.Function):
    """Rows times one expert's matrix, of which the graph keeps the packed bytes and factors."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        a_RI: Tensor | None,
        b_OR: Tensor | None,
        matrix: ExpertMatrix,
        transposed: bool,  # noqa: FBT001  torch passes all by their places
    ) -> Tensor:
        ctx.save_for_backward(x, a_RI, b_OR)
        ctx.matrix, ctx.transposed = matrix, transposed
        weight = _with_factors(matrix, a_RI, b_OR)
        return F.linear(x, weight) if transposed else x @ weight

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (dy,) = gradients
        x, a_RI, b_OR = ctx.saved_tensors
        weight = _with_factors(ctx.matrix, a_RI, b_OR)
        dx = dy @ (weight if ctx.transposed else weight.mT)
        if a_RI is None:
            return dx, None, None, None, None
        dW = dy.mT @ x if ctx.transposed else x.mT @ dy
        scaling = ctx.matrix.factors.scaling
        if ctx.matrix.in_out:  # W has the factors A^T B^T
            return dx, (dW @ b_OR).mT * scaling, (a_RI @ dW).mT * scaling, None, None
        return dx, b_OR.mT @ dW * scaling, dW @ a_RI.mT * scaling, None, None


def _with_factors(matrix: ExpertMatrix, a_RI: Tensor | None, b_OR: Tensor | None) -> Tensor:
    here = matrix.weight.first_in_scratch(matrix.index, matrix.dtype)
    if a_RI is None or b_OR is None:
        return here
    low = (a_RI.mT, b_OR.mT) if matrix.in_out else (b_OR, a_RI)
    return torch.addmm(here, *low, alpha=matrix.factors.scaling if matrix.factors else 1.0)
