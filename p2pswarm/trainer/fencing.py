"""One round of fencing: which attempts are being given up, and who has not yet promised.

A round may also be a probe: nothing is given up, but a member that does not answer counts as gone.
Rounds do not overlap. While one is open no newcomer is made ready: a server that has not answered
yet could still push a fenced attempt to the newcomer, which was never asked.

Units:   seconds on the caller's clock.
Errors:  none.
"""

import math

from p2pswarm.swarm.messages.step import FencedWork
from p2pswarm.swarm.view import Incarnation
from p2pswarm.trainer.in_flight import JobPhase, MicrobatchJob

FENCE_S = 10.0  # an event loop answers at once; a lost packet or two may come in between
FENCE_BATCH = 1024  # the limit of `Fence.work`


class Fencing:
    """Attempts that are over, and the certainty that they are."""

    def __init__(self) -> None:
        self._next: dict[int, MicrobatchJob] = {}
        self._probe = False
        self._open: list[MicrobatchJob] | None = None
        self._silent: dict[Incarnation, None] = {}
        self.deadline_s = math.inf
        """When the members that have not answered count as gone."""

    @property
    def open(self) -> bool:
        """Whether a round is under way."""
        return self._open is not None

    @property
    def idle(self) -> bool:
        """Whether there is nothing to fence, now or next."""
        return self._open is None and not self._next and not self._probe

    @property
    def silent(self) -> list[Incarnation]:
        """The members that have not answered the round."""
        return list(self._silent)

    def add(self, job: MicrobatchJob) -> None:
        """Give up the running attempt of a job: it is fenced in the next round."""
        job.phase = JobPhase.FENCING
        self._next[job.microbatch] = job

    def probe(self) -> None:
        """Open the next round even if there is nothing to fence."""
        self._probe = True

    def begin(self, incarnations: list[Incarnation], deadline_s: float) -> tuple[FencedWork, ...]:
        """Open a round over `incarnations`; returns what to tell each of them."""
        self._probe = False
        self._open = list(self._next.values())[:FENCE_BATCH]
        for job in self._open:
            del self._next[job.microbatch]
        self._silent = dict.fromkeys(incarnations)
        self.deadline_s = deadline_s
        return tuple(FencedWork(job.microbatch, job.attempt) for job in self._open)

    def wait_until(self, deadline_s: float) -> None:
        """Give the members that have not answered more time."""
        if self.open:
            self.deadline_s = deadline_s

    def heard(self, incarnation: Incarnation) -> bool:
        """An incarnation has promised, or has ended; True if it was asked."""
        return incarnation in self._silent and self._silent.pop(incarnation, True) is None

    def settled(self) -> list[MicrobatchJob]:
        """The jobs of a round that all members have answered; reading closes the round."""
        if self._silent or self._open is None:
            return []
        settled, self._open = self._open, None
        self.deadline_s = math.inf
        return [job for job in settled if job.phase is JobPhase.FENCING]
