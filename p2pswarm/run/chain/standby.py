"""A trainer that stands by: when it stands for a term, when it gives way, when it tries again.

It stands when its link to the coordinator ended, or when the coordinator was silent for so long
that voters will listen. Trainers wait by their rank, and a little by chance, so that usually one of
them stands alone. Nothing here is needed for safety: voters decide who leads.

Units:   seconds on the caller's clock.
Errors:  none.
Source:  Ongaro and Ousterhout, "In Search of an Understandable Consensus Algorithm" (2014), 5.2 and
         9.3, for chance; docs/chain.md.
"""

import math
import random
from enum import Enum

from p2pswarm.run.messages.types import TERM_MAX

RANK_S = 0.3  # longer than a round trip round the world: the first asks before the second stands
CHANCE_S = 0.3  # two of one rank, or of ranks that do not agree, rarely stand at once
SILENCE_S = 4.0  # a voter is calm for 3 s, and heartbeats come each second
KEEN_S = 3.0  # so long after our link ended, a voter's link may end and let it listen any moment
ATTEMPT_S = 3.0  # an attempt takes a few round trips; one that hangs is in the way of others
PAUSES_MAX = 4  # a pause doubles so often, to about 10 s: voters that are away are not flooded


class StandbyState(Enum):
    """What a trainer does about leading."""

    FOLLOWING = "another leads, or nobody yet"
    STANDING = "asks voters to follow it"
    LEADING = "leads a term"


class Standby:
    """One trainer's patience. It stands when `next_deadline_s` has come and `stands` says so."""

    def __init__(self, rank: int, rng: random.Random, now_s: float) -> None:
        self.rank = rank
        """The place among the trainers of the head; 0 stands first."""
        self.next_deadline_s: float | None = None
        """When to call `on_deadline`; None while this trainer leads."""
        self.coordinator: bytes | None = None
        """Who was heard last as the leader of a term."""
        self.term = 0
        """The greatest term that was heard of, led or promised."""
        self.named = False
        """Whether the coordinator has handed over to this trainer, which has not led since."""
        self._rng = rng
        self.state = StandbyState.FOLLOWING
        self._failures = 0
        self._keen_until_s = -math.inf
        self._wait(now_s, SILENCE_S)

    def start(self, now_s: float) -> None:
        """There is nobody to wait for: a run that is founded, or resumed by the first trainer."""
        self.next_deadline_s = now_s

    def heard(self, coordinator: bytes, term: int, now_s: float) -> bool:
        """This node's voter follows another trainer in `term`; True if our attempt is over."""
        gives_way = self.state is not StandbyState.FOLLOWING
        if gives_way and term < self.term:
            return False
        self.coordinator, self.term, self.named = coordinator, max(term, self.term), False
        self.state = StandbyState.FOLLOWING
        self._failures = 0
        self._wait(now_s, SILENCE_S)
        return gives_way

    def link_lost(self, peer: bytes, now_s: float) -> None:
        """A link ended: if it led to the coordinator, this trainer need not wait for silence."""
        if peer == self.coordinator and self.state is StandbyState.FOLLOWING:
            self.coordinator = None
            self._keen_until_s = now_s + KEEN_S
            self._wait(now_s, 0.0)

    def handed_over(self, by: bytes, to: bytes, now_s: float, *, ours: bool) -> None:
        """A coordinator leads no more, and names its successor; `ours`: that is this trainer.

        The others wait for the successor as for a coordinator.
        """
        if by != self.coordinator or self.state is not StandbyState.FOLLOWING:
            return
        if ours:
            self.coordinator, self.named = None, True
            self.next_deadline_s = now_s + RANK_S  # all voters have been told by then
        else:
            self.gave_way(to, now_s)

    def gave_way(self, to: bytes, now_s: float) -> None:
        """This trainer does not lead, for as long as another may need to: it waits for that one."""
        self.coordinator = to
        self._wait(now_s, SILENCE_S)

    def on_deadline(self, now_s: float) -> int | None:
        """The term to stand for now; None if an attempt has just been given up, or none is left.

        An attempt that hangs is over: the caller drops its `Leader`.
        """
        if self.state is StandbyState.STANDING:
            self.failed(self.term, now_s)
            return None
        if self.term >= TERM_MAX:
            self.next_deadline_s = None
            return None
        self.term += 1
        self.state = StandbyState.STANDING
        self.next_deadline_s = now_s + ATTEMPT_S
        return self.term

    def failed(self, promised: int, now_s: float) -> None:
        """The attempt, or the leadership, is over; `promised` is a term that a voter has named."""
        self.term = max(promised, self.term)
        self.state = StandbyState.FOLLOWING
        if now_s < self._keen_until_s:
            self._wait(now_s, 0.0)
            return
        self._wait(now_s, (2.0**self._failures - 1) * (RANK_S + CHANCE_S))
        self._failures = min(self._failures + 1, PAUSES_MAX)
        self.named = self.named and self._failures == 1  # a voter may have heard of it too late

    def leads(self) -> None:
        """The attempt succeeded: this trainer waits for nobody."""
        self.coordinator, self.named = None, False
        self.state = StandbyState.LEADING
        self._failures = 0
        self.next_deadline_s = None

    def _wait(self, now_s: float, least_s: float) -> None:
        pause_s = least_s + self.rank * RANK_S + self._rng.random() * CHANCE_S
        self.next_deadline_s = now_s + pause_s
