"""One round of fencing: which attempts are being given up, and who has not yet promised.

A round may also be a mere probe: nothing is given up, but whoever does not answer is gone. Rounds
do not overlap. While one is open no newcomer is made ready, because a server that has not
answered yet could still hand a fenced attempt to somebody who was never asked.

Units:   seconds on the caller's clock.
Errors:  none.
"""

import math

from p2pswarm.swarm.messages import FencedWork
from p2pswarm.swarm.view import Life
from p2pswarm.train.flight import Job, Phase

FENCE_S = 10.0  # who cannot even say what it has counted is gone: sooner than its link says so
FENCE_BATCH = 1024  # the message's limit


class Fencing:
    """Attempts that are over, and the certainty that they are."""

    def __init__(self) -> None:
        self._next: dict[int, Job] = {}
        self._probe = False
        self._open: list[Job] | None = None
        self._silent: dict[Life, None] = {}
        self.deadline_s = math.inf
        """When the silent ones count as gone."""

    @property
    def open(self) -> bool:
        """Whether a round is under way."""
        return self._open is not None

    @property
    def idle(self) -> bool:
        """Whether there is nothing to fence, now or next."""
        return self._open is None and not self._next and not self._probe

    @property
    def silent(self) -> list[Life]:
        """Who has not answered the round."""
        return list(self._silent)

    def add(self, job: Job) -> None:
        """Give up the running attempt of a job: it is fenced in the next round."""
        job.phase = Phase.FENCING
        self._next[job.microbatch] = job

    def probe(self) -> None:
        """Ask everybody for an answer in the next round, whatever there is to fence."""
        self._probe = True

    def begin(self, lives: list[Life], now_s: float) -> tuple[FencedWork, ...]:
        """Open a round over `lives`; returns what to tell each of them."""
        self._probe = False
        self._open = list(self._next.values())[:FENCE_BATCH]
        for job in self._open:
            del self._next[job.microbatch]
        self._silent = dict.fromkeys(lives)
        self.deadline_s = now_s + FENCE_S
        return tuple(FencedWork(job.microbatch, job.attempt) for job in self._open)

    def heard(self, life: Life) -> bool:
        """A life has promised, or has ended; True if it was asked."""
        return life in self._silent and self._silent.pop(life, True) is None

    def settled(self) -> list[Job]:
        """The jobs of a round that everybody has answered; it is closed by reading."""
        if self._silent or self._open is None:
            return []
        settled, self._open = self._open, None
        self.deadline_s = math.inf
        return [job for job in settled if job.phase is Phase.FENCING]
