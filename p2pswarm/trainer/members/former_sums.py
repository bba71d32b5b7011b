"""Sums of the step that were counted under former coordinators, after a takeover.

Servers come to a new coordinator with the sums that they had. It takes those that do not overlap,
and of which it has launched nothing itself. So it launches nothing until those who should have sums
are here, or a moment has passed.

Units:   seconds on the caller's clock; terms as in docs/chain.md.
Errors:  none.
Source:  docs/training.md, "A sum that outlives its coordinator".
"""

from collections.abc import Iterable

from p2pswarm.run.chain.record import term_of
from p2pswarm.run.messages.membership import HeldSum, Join
from p2pswarm.run.messages.types import MEMBERS_MAX
from p2pswarm.run.view import Incarnation

FORMER_SUMS_S = 1.5  # one that hears nothing asks twice a second who leads, and then dials


class FormerSums:
    """Who should come with a sum, and what was taken."""

    def __init__(
        self, term: int, era: int, named: Iterable[bytes], wait_s: float = FORMER_SUMS_S
    ) -> None:
        """`named`: the peers that the record of the last step names."""
        self._term = term
        self._era = era
        self._named = frozenset(named)
        self._awaited = set(self._named)
        self._wait_s = wait_s
        self._due_s: float | None = None
        """When nobody is waited for any more; None before somebody has come."""
        self._brought: set[bytes] = set()
        self._spoiled = False
        """Whether one that served had wrong weights: what it gave may be in any sum."""
        self.taken = False
        """Whether a sum of a former term is, or was, a part of this step."""

    def joined(self, peer: bytes, join: Join, now_s: float) -> None:
        """A server has come."""
        self._awaited.discard(peer)
        if self.may_take(join) and len(self._brought) < MEMBERS_MAX:
            self._brought.add(peer)
        if self._due_s is None:
            self._due_s = now_s + self._wait_s

    def may_take(self, join: Join) -> HeldSum | None:
        """The sum of one that joins, if it was counted under a former coordinator of this era."""
        told = join.sum
        if self._spoiled or told is None or join.era != self._era:
            return None
        return told if term_of(told.incarnation) < self._term else None

    def trusts(self, one: Incarnation) -> bool:
        """Whether a sum says that its server has served: a stranger can claim one, too."""
        return not self.taken or one.peer in self._named

    def found_wrong(self, peer: bytes) -> bool:
        """A server says other weights than its stage's; True if its work may be in sums taken.

        No further sum of this step is taken then. What others claim who never served is no matter.
        """
        if peer not in self._named and peer not in self._brought:
            return False
        self._spoiled = True
        return self.taken

    def awaited(self, now_s: float) -> bool:
        """Whether a sum may come that holds what is not launched yet."""
        return bool(self._awaited) and (self._due_s is None or now_s < self._due_s)

    def next_deadline_s(self, now_s: float) -> float | None:
        """When nobody is waited for any more."""
        return self._due_s if self.awaited(now_s) else None

    def next_step(self) -> None:
        """Another step begins, with empty sums."""
        self._awaited.clear()
        self._brought.clear()
        self.taken = self._spoiled = False
