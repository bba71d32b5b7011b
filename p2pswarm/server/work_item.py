"""What a scheduler keeps of the microbatches that were pushed to it.

Units:   seconds on the caller's clock.
Errors:  none.
"""

from dataclasses import dataclass, field
from enum import Enum, auto

from p2pswarm.models.compute.base import Key
from p2pswarm.run.messages.microbatch import Push
from p2pswarm.run.messages.types import Work


class Exit(Enum):
    """Where a result goes."""

    ONWARD = auto()
    """To a server of the next stage."""
    BACK = auto()
    """As a gradient, to the server that the microbatch came from."""
    NOWHERE = auto()


@dataclass(frozen=True, slots=True, eq=False)
class WorkItem:
    """One push that was admitted."""

    push: Push
    sender: bytes
    work: Work

    @property
    def key(self) -> Key:
        """Microbatch and attempt."""
        return self.push.microbatch, self.push.attempt


@dataclass(slots=True)
class HeldInput:
    """A microbatch between forward and backward."""

    item: WorkItem
    next_peer: bytes | None = None
    """The server that has it now, and may send the gradient."""


@dataclass(frozen=True, slots=True)
class Dropped:
    """What a fence or the end of a step has dropped."""

    items: tuple[WorkItem, ...]
    keys: tuple[Key, ...]
    """Held inputs to be forgotten."""


@dataclass(slots=True)
class Period:
    """What was done since the last report."""

    started_s: float
    counted: int = 0
    waits_s: list[float] = field(default_factory=list)
    computes_s: list[float] = field(default_factory=list)
