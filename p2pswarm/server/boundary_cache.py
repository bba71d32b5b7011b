"""The results that a server has given to the stages beside it, kept until the step is decided."""

from dataclasses import dataclass, field
from enum import Enum, auto

from p2pswarm.models.base import Bundle
from p2pswarm.models.compute.base import Key
from p2pswarm.run.messages.field_limits import Work
from p2pswarm.run.messages.microbatch import Push

KEPT_BYTES = 1 << 30  # 64 microbatches of 2,048 tokens and 1,024 numbers each, both ways


class ResultRoute(Enum):
    """The destination of a result."""

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
    """The work that a fence or the end of a step has dropped."""

    items: tuple[WorkItem, ...]
    keys: tuple[Key, ...]
    """Held inputs to be forgotten."""


@dataclass(slots=True)
class Period:
    """The work since the last report."""

    started_s: float
    counted: int = 0
    waits_s: list[float] = field(default_factory=list)
    computes_s: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class KeptAnswer:
    """The answer to a push that needs no computing, and its destination."""

    exit: ResultRoute
    bundle: Bundle


@dataclass(slots=True)
class _Given:
    """The results for one attempt of a microbatch."""

    attempt: int
    activation: Bundle | None = None
    gradient: Bundle | None = None
    counted: bool = False

    @property
    def nbytes(self) -> int:
        return _size(self.activation or {}) + _size(self.gradient or {})


class BoundaryCache:
    """The results that one stage has given to its neighbours in the step.

    When a stage loses a sum, what was in it goes through that stage again. The stages below have
    computed the activation before, and the stages above the gradient; who counted the microbatch
    there hands on what it has, and computes nothing (docs/recovery.md, "What is not computed
    again"). What does not fit is not kept, and is computed again if it is asked for.
    """

    def __init__(self, stage: int, me: bytes = b"", limit_bytes: int = 0) -> None:
        """`me`: the peer that others name as the keeper; `limit_bytes`: 0 keeps nothing."""
        self._stage = stage
        self._me = me
        self._limit_bytes = limit_bytes
        self._kept: dict[int, _Given] = {}
        self.held_bytes = 0

    def gave(self, key: Key, activation: Bundle) -> None:
        """A forward is done, and its activation goes on."""
        microbatch, attempt = key
        self._forget(microbatch)
        if self._fits(activation):
            self._kept[microbatch] = _Given(attempt, activation)
            self.held_bytes += _size(activation)

    def counted(self, key: Key, gradient: Bundle | None) -> None:
        """A microbatch is in the sum; `gradient` goes to the stage below, if there is one."""
        microbatch, attempt = key
        entry = self._kept.get(microbatch)
        if entry is None or entry.attempt != attempt:
            self._forget(microbatch)
            entry = _Given(attempt)
        entry.counted = True
        if gradient is not None and self._fits(gradient):
            entry.gradient = gradient
            self.held_bytes += _size(gradient)
        if entry.activation is not None or entry.gradient is not None:
            self._kept[microbatch] = entry

    def keeps(self, microbatch: int, bundle: Bundle) -> bool:
        """Return whether this bundle is what is kept of a microbatch."""
        entry = self._kept.get(microbatch)
        return entry is not None and (entry.activation is bundle or entry.gradient is bundle)

    def replace(self, microbatch: int, bundle: Bundle, on_host: Bundle) -> None:
        """Keep a copy on the host instead, if the bundle is still kept."""
        if self.keeps(microbatch, bundle):
            entry = self._kept[microbatch]
            if entry.activation is bundle:
                entry.activation = on_host
            else:
                entry.gradient = on_host

    def answer(self, push: Push) -> KeptAnswer | None:
        """The answer to a push that names this peer as the keeper; None if it is to be computed.

        Nobody below the lowest stage that counts it needs a graph, and nobody above the highest one
        adds anything.
        """
        named = push.work == Work.FORWARD and self._stage < len(push.keepers)
        if not named or push.keepers[self._stage] != self._me or not push.counting:
            return None
        entry = self._kept.get(push.microbatch)
        if entry is None or not entry.counted:
            return None
        if self._stage < min(push.counting) and entry.activation is not None:
            return KeptAnswer(ResultRoute.ONWARD, entry.activation)
        if self._stage > max(push.counting) and entry.gradient is not None:
            return KeptAnswer(ResultRoute.BACK, entry.gradient)
        return None

    def drop(self, key: Key) -> None:
        """An attempt is over: its activation is of no use, unless it was counted."""
        entry = self._kept.get(key[0])
        if entry is not None and entry.attempt == key[1] and not entry.counted:
            self._forget(key[0])

    def clear(self) -> None:
        """Nothing is kept any more."""
        self._kept.clear()
        self.held_bytes = 0

    def drop_before(self, microbatch: int) -> None:
        """Another step begins, whose first microbatch this is."""
        for former in [kept for kept in self._kept if kept < microbatch]:
            self._forget(former)

    def resume(self, former: "BoundaryCache | None") -> None:
        """Go on with what the incarnation before has kept, with its sum."""
        if former is None:
            return
        for microbatch, entry in former._kept.items():  # noqa: SLF001  of this class
            if entry.counted:
                self._kept[microbatch] = entry
                self.held_bytes += entry.nbytes
        former.clear()

    def _fits(self, bundle: Bundle) -> bool:
        return self.held_bytes + _size(bundle) <= self._limit_bytes

    def _forget(self, microbatch: int) -> None:
        entry = self._kept.pop(microbatch, None)
        if entry is not None:
            self.held_bytes -= entry.nbytes


def _size(bundle: Bundle) -> int:
    return sum(x.nbytes for x in bundle.values())
