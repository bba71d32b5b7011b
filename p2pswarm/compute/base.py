"""SEAM 3: what a stage server asks of the processor that holds its blocks.

`Stage` computes on microbatches, `Weights` holds what training changes. All methods block; the
server calls them one at a time, from one thread. Torch implements them (`torch_stage.py`,
`torch_weights.py`), and a simulation that only counts seconds can.

Shapes:  tokens_BS: B rows of S = T + 1 tokens, inputs and, one further, targets. What crosses
         from stage to stage is a bundle (docs/bundle.md), empty before the first stage. The
         gradient of a bundle has the keys of its differentiable tensors, in the same order.
Errors:  Refused with the reason when a loss or gradient is not finite; the sum is untouched then.
"""
# ruff: noqa: N803  shapes are written at the end of names

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from p2pswarm.allreduce.base import Sums
from p2pswarm.models.base import Bundle
from p2pswarm.tensors.bundle import BundleSpec

Key = tuple[int, int]
"""(microbatch, attempt)."""


@dataclass(frozen=True, slots=True)
class BackwardSpec:
    """The purpose of a backward."""

    counting: bool
    """Add the gradient of the weights to the sum."""
    returning: bool
    """A stage below waits for the gradient of what it gave."""


@dataclass(frozen=True, slots=True)
class LossResult:
    """The result of the last stage for a microbatch."""

    loss: float
    """Mean nats per token."""
    gradient: Bundle
    """The gradient of what the stage below gave; empty if nobody waits for it."""


@dataclass(frozen=True, slots=True)
class Update:
    """One step of the optimizer."""

    number: int
    """Counts from 1: the version it makes."""
    scale: float
    """The factor of the gradient; 0 leaves everything as it is."""
    learning_rate: float


class Stage(Protocol):
    """Forward and backward of a range of blocks."""

    recomputed: int
    """Backward passes so far whose graph had to be made again."""

    def forward(self, key: Key, tokens_BS: Tensor, given: Bundle) -> Bundle:
        """Compute what the next stage is given; what the backward needs is kept under `key`."""
        ...

    def backward(self, key: Key, gradient: Bundle, spec: BackwardSpec) -> Bundle:
        """Compute the gradient of what was given, or nothing; what was kept is gone."""
        ...

    def finish(self, tokens_BS: Tensor, given: Bundle, spec: BackwardSpec) -> LossResult:
        """Do the last stage's forward, loss and backward in one; nothing is kept."""
        ...

    def evaluate(self, tokens_BS: Tensor, given: Bundle) -> Bundle | float:
        """Compute what the next stage is given, or in the last the loss; nothing is kept."""
        ...

    def drop(self, keys: Iterable[Key] | None) -> None:
        """Forget what is kept under `keys`; None: under all."""
        ...


class Weights(Protocol):
    """The weights of a stage, their gradient sum and the optimizer's state."""

    def reset(self, *, draw: bool) -> bytes:
        """Empty the gradient sum; `draw`: make the weights of version 0. Returns their digest."""
        ...

    def reduction(self) -> Sums:
        """Give the sum, with new memory for its average beside it."""
        ...

    def apply(self, reduced: Sums, update: Update) -> bytes:
        """Change the weights by a reduced gradient and empty the sum; returns their digest."""
        ...

    def snapshot(self) -> memoryview:
        """Copy weights and optimizer state."""
        ...

    def install(self, snapshot: memoryview) -> bytes:
        """Take over a snapshot; returns its weights' digest. BadMessage if it does not fit."""
        ...


@dataclass(frozen=True, slots=True)
class Engine:
    """One stage on one processor, and what it is told and tells."""

    stage: Stage
    weights: Weights
    state_bytes: int
    """The size of a snapshot."""
    takes: BundleSpec
    """What the stage below gives; empty for the first stage."""
    gives: BundleSpec
    """What the stage above is given; empty for the last stage."""
