"""SEAM 3: the calls of a stage server to the processor that holds its blocks.

`Stage` computes on microbatches, `Weights` holds what training changes. All methods block; the
server calls them one at a time, from one thread; only `Weights.hashes` may run beside another.
Torch implements them (`torch_stage.py`, `torch_weights.py`), and so does a simulation that only
counts seconds (`sim/compute.py`).

Shapes:  tokens_BS has B rows of S = T + 1 tokens: T inputs, and the targets one place further. A
         bundle crosses from stage to stage (docs/bundle.md); it is empty before the first stage.
         The gradient of a bundle has the keys of its differentiable tensors, in the same order.
Errors:  NotFiniteHere when a loss or a gradient is not finite; the sum is then unchanged.
"""
# ruff: noqa: N803  shapes are written at the end of names

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor

from p2pswarm.base.errors import Refused
from p2pswarm.models.base import Bundle
from p2pswarm.run.averaging.base import Sums
from p2pswarm.run.state.base import FrozenWeights
from p2pswarm.tensors.codecs.bundle import BundleSpec

Key = tuple[int, int]
"""(microbatch, attempt)."""


class NotFiniteHere(Refused):
    """A loss or a gradient is not finite: the model's fault, or this processor's."""


class CountPermit:
    """The right to add one gradient to the sum; either it is taken, or it is withdrawn before.

    The compute thread takes it just before it adds. The event loop withdraws it when the microbatch
    is not to be counted any more. One of the two comes first, because `deque.pop` is atomic.
    """

    def __init__(self) -> None:
        self._rights = deque((None,))
        self._withdrawn = False
        self.whole = False
        """True if the call that could take it has ended without an error."""

    @property
    def taken(self) -> bool:
        """True if the gradient is in the sum, or is just being added; ask on the event loop."""
        return not self._rights and not self._withdrawn

    def take(self) -> bool:
        """Return whether the gradient may be added; whoever gets True adds it."""
        try:
            self._rights.pop()
        except IndexError:
            return False
        return True

    def withdraw(self) -> bool:
        """Return whether the gradient will never be in the sum; False if it was taken before."""
        if not self._withdrawn:
            self._withdrawn = self.take()
        return self._withdrawn


@dataclass(frozen=True, slots=True)
class BackwardSpec:
    """The purpose of a backward."""

    counting: bool
    """Add the gradient of the weights to the sum, if the permit is still there then."""
    returning: bool
    """A stage below waits for the gradient of what it gave."""
    permit: CountPermit | None = field(default=None, compare=False)
    """Without one, counting is all that matters."""
    step: int = field(default=0, compare=False)
    microbatch: int = field(default=0, compare=False)
    """Of the run, and with the step the chance by which gradients are rounded to a grid."""

    @property
    def added(self) -> bool:
        """True if the permit was taken: the gradient is in the sum, or is just being added."""
        return self.permit is not None and self.permit.taken

    def may_add(self) -> bool:
        """Return whether to add the gradient now; asked once, when all else has succeeded."""
        return self.counting and (self.permit is None or self.permit.take())


@dataclass(frozen=True, slots=True)
class LossResult:
    """The result of the last stage for a microbatch."""

    loss: float
    """Mean nats per token."""
    gradient: Bundle
    """The gradient of what the stage below gave; empty if that stage does not wait for it."""


@dataclass(frozen=True, slots=True)
class HeldOutResult:
    """The result of the last stage for a held-out batch of pairs."""

    loss: float
    scores: tuple[float, ...]
    """Of each row: its log probability over its reference, or, without references, a token's."""


@dataclass(frozen=True, slots=True)
class Update:
    """One step of the optimizer."""

    number: int
    """The version that it makes, from 1."""
    scale: float
    """The factor of the gradient; 0 leaves weights and moments as they are."""
    learning_rate: float
    before: int = 0
    """Updates before the run that its moments have seen: their bias is corrected for all."""

    @property
    def count(self) -> int:
        """The updates that the moments have seen, with this one."""
        return self.before + self.number


class Stage(Protocol):
    """Forward and backward of a range of blocks."""

    recomputed: int
    """Backward passes so far of whose forward only the input was kept: too many were on their way.

    Not those of graphs that are made block by block: fewer on their way would not spare that."""
    gradient_norm: float
    """Of the weights' gradient that the last backward made; 0 if it made none."""

    def forward(self, key: Key, tokens_BS: Tensor, given: Bundle) -> Bundle:
        """Compute the bundle for the next stage; keep under `key` what the backward needs."""
        ...

    def backward(self, key: Key, gradient: Bundle, spec: BackwardSpec) -> Bundle:
        """Compute the gradient of what was given, if returning; forget what was kept."""
        ...

    def finish(self, tokens_BS: Tensor, given: Bundle, spec: BackwardSpec) -> LossResult:
        """Do forward, loss and backward of the last stage in one; keep nothing."""
        ...

    def evaluate(
        self, tokens_BS: Tensor, given: Bundle, *, training: bool = False
    ) -> Bundle | float | HeldOutResult:
        """Compute the bundle for the next stage, or the loss in the last; keep nothing.

        `training`: of a microbatch that is trained on, by stages that have counted it before; so
        what is drawn is drawn.
        """
        ...

    def drop(self, keys: Iterable[Key] | None) -> None:
        """Forget what is kept under `keys`; None: under all keys."""
        ...


class StateMemory(Protocol):
    """Weights and optimizer state, piece by piece (`tensors/state_tree.py`)."""

    tensors: int
    """Weights, first moments, second moments."""
    pieces: int

    def part_bytes(self, tensor: int, piece: int) -> int:
        """The size of a piece's part of one tensor."""
        ...

    def read(self, tensor: int, piece: int) -> memoryview:
        """Copy a part; also on a thread of its own, while nothing changes the weights."""
        ...

    def write(self, piece: int, parts: Sequence[memoryview], version: int = 0) -> None:
        """Put a piece in its place; raises BadMessage if it does not fit, and changes nothing.

        `version`: the piece's; with a delay it says where its weights are.
        """
        ...

    def gradient(self, reduced: Sums, piece: int) -> Tensor:
        """Copy a piece's part of a reduced gradient."""
        ...

    def follow(self, piece: int, gradient: Tensor, update: Update) -> None:
        """Change one piece as `Weights.apply` changes all of them."""
        ...


class Weights(Protocol):
    """The weights of a stage, their gradient sum and the optimizer's state."""

    spread: bool
    """True if the sum has to be brought together for its reduction, from several devices."""

    @property
    def base_roots(self) -> tuple[bytes, ...]:
        """Return the roots of the frozen weights of the stage's blocks, if the run has some."""
        ...

    def reset(self, *, draw: bool) -> None:
        """Empty the gradient sum; `draw`: make the weights of version 0."""
        ...

    def hashes(self) -> tuple[bytes, ...]:
        """The hashes of the state's pieces, and the leaf of the base if there is one.

        Their root is the state's digest (`tensors/state_tree.py`).

        They may be computed beside the work of the `Stage`. Meanwhile the state must not change.
        """
        ...

    def tied_digest(self) -> bytes:
        """The digest of the tied tensor and its moments, if any, computed as `hashes` are.

        It tells a damaged memory, and is no proof against a peer that makes two states alike.
        """
        ...

    def reduction(self, step: int = 0) -> Sums:
        """Give the sum of a step, with new memory for its average."""
        ...

    def apply(self, reduced: Sums, update: Update) -> None:
        """Change the weights by a reduced gradient and empty its step's sum."""
        ...


@dataclass(frozen=True, slots=True)
class Engine:
    """One stage on one processor, and the bundles that it takes and gives."""

    stage: Stage
    weights: Weights
    state: StateMemory
    takes: BundleSpec
    """What the stage below gives; empty for the first stage."""
    gives: BundleSpec
    """What it gives to the stage above; empty for the last stage."""
    odd: Stage | None = None
    """With a delay: computes odd steps, and `stage` even ones. What is kept and dropped is common.

    A step t is computed with version t-1 of the weights, and the newest version of state t is that
    of step t+1 (docs/delay.md)."""
    base: FrozenWeights | None = field(default=None, kw_only=True)
    """What is frozen, if the run has some."""
    draws: bool = field(default=True, kw_only=True)
    """It can make version 0 and what is frozen; else these come from members that can."""

    def of_step(self, step: int) -> Stage:
        """Return what computes the microbatches of a step."""
        return self.stage if self.odd is None or step % 2 == 0 else self.odd

    @property
    def recomputed(self) -> int:
        """See `Stage`, of both."""
        return self.stage.recomputed + (0 if self.odd is None else self.odd.recomputed)

    @property
    def state_bytes(self) -> int:
        """The size of weights and optimizer state."""
        return sum(sum(part_sizes(self.state, piece)) for piece in range(self.state.pieces))

    @property
    def part_bytes_max(self) -> int:
        """The size of the largest piece's part of one tensor."""
        return max(max(part_sizes(self.state, piece)) for piece in range(self.state.pieces))


def part_sizes(state: StateMemory, piece: int) -> list[int]:
    """The sizes of a piece's parts: one of each tensor, in their order."""
    return [state.part_bytes(tensor, piece) for tensor in range(state.tensors)]
