"""The plan by which several devices share a block's matrices, and what a block asks of them.

A block of one's own has the attribute `tensor_plan`: names of its modules or parameters, each with
a `TensorShare` or a `TensorSplit`. A module that is shared is run for the block, with the exchange
that its style needs. A parameter that is split is one which the block multiplies by itself: it then
calls its `tensor_group`, which on one device does nothing.

    self.tensor_plan = {"up": TensorShare(Style.COLWISE), "down": TensorShare(Style.ROWWISE)}

What is not named is whole on every device. docs/devices.md has the picture.

Shapes:  weights are `out` by `in`, as in `nn.Linear`.
Source:  Shoeybi et al., "Megatron-LM" (arXiv 1909.08053); styles as `transformers` calls them.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from torch import Tensor

# ruff: noqa: D102  `TensorGroup` documents the methods of `OneDevice`


class Style(StrEnum):
    """How devices share a module; the values are those of `transformers`."""

    COLWISE = "colwise"
    """A linear layer: each device makes some of the features, and goes on with these alone."""
    ROWWISE = "rowwise"
    """A linear layer: each device has some of the features, and their sums are added up."""
    COLWISE_GATHERED = "colwise_gather_output"
    """As colwise, and then each device has all features."""
    ROWWISE_FROM_WHOLE = "rowwise_split_input"
    """As rowwise, and each device takes its features out of all."""
    PACKED_COLWISE = "packed_colwise"
    """A parameter: two matrices in one, of which each is cut as in colwise."""
    EMBEDDING = "embedding_rowwise"
    """An embedding: each device has some of the vocabulary."""
    EXPERTS = "moe_tp_experts"
    """The experts of a mixture: each device has some features of every one."""
    OWN_FEATURES = "replicated_with_grad_allreduce"
    """A norm on a device's own heads: it is whole, and its gradient a sum over the devices."""


@dataclass(frozen=True, slots=True)
class TensorShare:
    """A module, or a parameter of one, that is shared."""

    style: Style
    units: int = 0
    """What is not cut: so many heads, a multiple of the number of devices. 0: anything may be."""


@dataclass(frozen=True, slots=True)
class TensorSplit:
    """A parameter that the block multiplies by itself."""

    dim: int
    """The dimension that is cut."""
    parts: int = 1
    """How many matrices of one size lie there, one after the other; each is cut."""
    units: int = 0
    """As in `TensorShare`, in each of them."""


TensorPlan = Mapping[str, TensorShare | TensorSplit]
"""By the names of a block's modules and parameters."""


class TensorGroup(Protocol):
    """What a block asks of the devices that share it."""

    def enter(self, x: Tensor) -> Tensor:
        """From what all have to what each does by itself; its gradients are added up."""
        ...

    def leave(self, x: Tensor) -> Tensor:
        """The sum of what each has."""
        ...

    def look_up(self, table: Callable[[Tensor], Tensor], ids: Tensor, vocabulary: int) -> Tensor:
        """The vectors of tokens, of which each device's `table` has some."""
        ...


class OneDevice:
    """Implements `TensorGroup` where nothing is shared."""

    def enter(self, x: Tensor) -> Tensor:
        return x

    def leave(self, x: Tensor) -> Tensor:
        return x

    def look_up(self, table: Callable[[Tensor], Tensor], ids: Tensor, vocabulary: int) -> Tensor:
        del vocabulary
        return table(ids)


ONE_DEVICE = OneDevice()
