"""One round of fencing: which attempts are being given up, and who has not yet promised.

A round may also be a probe: nothing is given up, but a member that does not answer counts as gone.
Rounds do not overlap. While a member has not answered, no newcomer is made ready: that member could
still push a fenced attempt to the newcomer, which was never asked. A suspended one, which is waited
for too, cannot: it is told of no newcomers any more.

Units:   seconds on the caller's clock.
"""

import math

from p2pswarm.run.messages.step import FencedWork
from p2pswarm.run.view import Incarnation
from p2pswarm.trainer.members.membership import AnswerLimits
from p2pswarm.trainer.step.in_flight import JobPhase, MicrobatchJob

FENCE_S = 10.0  # an event loop answers at once; a lost packet or two may come in between
FENCE_MAX_S = 60.0  # of one that was slow before: a link that is full for so long carries nothing
FENCE_BATCH = 1024  # the limit of `Fence.work`


class Fences:
    """Attempts that are over, and the certainty that they are."""

    def __init__(self, limits: AnswerLimits | None = None) -> None:
        self._limits = limits or AnswerLimits(FENCE_S, FENCE_MAX_S)
        self._next: dict[int, MicrobatchJob] = {}
        self._probe = False
        self._open: dict[int, MicrobatchJob] | None = None
        self._silent: dict[Incarnation, float] = {}
        """When each of those that have not answered is overdue."""
        self._absent: dict[Incarnation, None] = {}
        """Members that cannot be asked, and whose promise every round needs."""
        self._begun_s = 0.0
        self.deadline_s = math.inf
        """When to ask who is overdue."""

    @property
    def open(self) -> bool:
        """True if a round is under way."""
        return self._open is not None

    @property
    def asking(self) -> bool:
        """True if a member that was asked in the open round has not answered."""
        return any(one not in self._absent for one in self._silent)

    @property
    def idle(self) -> bool:
        """True if there is nothing to fence, now or next."""
        return self._open is None and not self._next and not self._probe

    @property
    def silent(self) -> list[Incarnation]:
        """The members that have not answered the round."""
        return list(self._silent)

    def unsure(self, job: MicrobatchJob) -> bool:
        """Return whether somebody may still count an attempt of it that was given up.

        It may be done all the same: the answer to a fence can tell that every stage has counted it.
        """
        return job.microbatch in self._next or job.microbatch in (self._open or {})

    def add(self, job: MicrobatchJob) -> None:
        """Give up the running attempt of a job: it is fenced in the next round."""
        job.phase = JobPhase.FENCING
        self._next[job.microbatch] = job

    def probe(self) -> None:
        """Open the next round even if there is nothing to fence."""
        self._probe = True

    def limit_s(self, one: Incarnation) -> float:
        """Return how long a member may take to answer."""
        return self._limits.limit_s(one.peer)

    def begin(self, incarnations: list[Incarnation], now_s: float) -> tuple[FencedWork, ...]:
        """Open a round over `incarnations`; returns what to tell each of them."""
        self._probe = False
        self._open = dict(list(self._next.items())[:FENCE_BATCH])
        for microbatch in self._open:
            del self._next[microbatch]
        self._silent = {one: now_s + self.limit_s(one) for one in incarnations}
        self._silent |= dict.fromkeys(self._absent, math.inf)
        self._begun_s, self.deadline_s = now_s, min(self._silent.values(), default=now_s)
        return tuple(FencedWork(job.microbatch, job.attempt) for job in self._open.values())

    def overdue(self, now_s: float) -> list[Incarnation]:
        """The members that should have answered by now."""
        return [one for one, due_s in self._silent.items() if now_s >= due_s]

    def wait_longer(self, now_s: float) -> None:
        """Give the members that are overdue and may still answer more time."""
        for one in self.overdue(now_s):
            self._silent[one] = now_s + self.limit_s(one)
        if self.open:
            self.deadline_s = min(self._silent.values(), default=now_s)

    def suspend(self, incarnation: Incarnation) -> None:
        """A member cannot be asked now: wait for it, in the open round and in all that follow."""
        self._absent[incarnation] = None
        if incarnation in self._silent:
            self._silent[incarnation] = math.inf
            self.deadline_s = min(self._silent.values())

    def on_timeout(self, incarnation: Incarnation) -> None:
        """A member did not answer in time: its peer has longer the next time."""
        self._limits.on_timeout(incarnation.peer)

    def on_answer(self, incarnation: Incarnation, now_s: float) -> bool:
        """An incarnation has promised; True if it was asked."""
        asked = self.on_promise(incarnation)
        if asked:
            self._limits.on_answer(incarnation.peer, now_s - self._begun_s)
        return asked

    def on_promise(self, incarnation: Incarnation) -> bool:
        """An incarnation has promised, or has ended; True if it was asked."""
        self._absent.pop(incarnation, None)
        return self._silent.pop(incarnation, None) is not None

    def settle(self) -> list[MicrobatchJob]:
        """The jobs of a round that all members have answered; reading closes the round."""
        if self._silent or self._open is None:
            return []
        settled, self._open = self._open, None
        self.deadline_s = math.inf
        return [job for job in settled.values() if job.phase is JobPhase.FENCING]
