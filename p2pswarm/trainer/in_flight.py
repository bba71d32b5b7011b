"""The microbatches of a step under way: attempts, paths, deadlines, and what to launch next.

A job waits, runs, is perhaps fenced and waits again, and is done when every stage has counted it.
An attempt may take four times the 95th percentile of the last ones.

Units:   seconds on the caller's clock.
Errors:  none; notes about attempts that are over get None or are ignored.
"""

from collections import deque
from dataclasses import dataclass, field
from enum import Enum

from p2pswarm.flow.estimates import Window
from p2pswarm.swarm.messages.types import Work
from p2pswarm.swarm.view import Incarnation

EVALUATION_BASE = 2**61  # held-out batches are numbered from here: no step reaches it
FIRST_DEADLINE_S = 120.0  # nothing is measured yet, and first passes are slow
DEADLINE_MIN_S = 10.0  # below this a pause of the garbage collector or the kernel would count
DEADLINE_MAX_S = 600.0
DEADLINE_FACTOR = 4.0  # times the 95th percentile: one healthy attempt in thousands is fenced
MEASURED = 64  # attempts remembered for the percentile
RETRY_FIRST_S = 0.02  # doubles with each attempt, so that a broken stage is not hammered
RETRY_MAX_S = 2.0
RETRY_DOUBLINGS_MAX = 7  # then it is RETRY_MAX_S, however often an attempt is lost
REFUSALS_MAX = 24  # about half a minute of retries; then the run ends with the reason


class JobPhase(Enum):
    """What a job is doing."""

    WAITING = "to be launched"
    RUNNING = "in the pipeline"
    FENCING = "given up, and not yet certain that nobody will count it"
    DONE = "counted by every stage"


@dataclass(slots=True)
class MicrobatchJob:
    """One microbatch of the step, or one held-out batch."""

    microbatch: int
    work: Work
    phase: JobPhase = JobPhase.WAITING
    attempt: int = -1
    path: list[Incarnation] = field(default_factory=list)
    launched_s: float = 0.0
    not_before_s: float = float("-inf")
    refusals: int = 0
    """Attempts that got stuck; those that were lost with a server do not count."""
    reason: str = ""
    """Why the last attempt was given up."""


class InFlight:
    """All jobs of one step.

    After every note we look for late jobs and for the next to launch. So the jobs that were
    launched and are not done are kept apart: they are few, however large the batch is.
    """

    def __init__(self, jobs: list[MicrobatchJob], runs_s: Window) -> None:
        self._jobs = {job.microbatch: job for job in jobs}
        self._fresh = deque(jobs)
        """Never launched."""
        self._begun: dict[int, MicrobatchJob] = {}
        """Launched, and not done."""
        self._undone = len(jobs)
        self._runs_s = runs_s  # shared from step to step
        self._deadline_s = _deadline_s(runs_s)

    @property
    def finished(self) -> bool:
        """Whether every job is done."""
        return not self._undone

    def job(self, microbatch: int) -> MicrobatchJob | None:
        """The job of a microbatch, if it is of this step."""
        return self._jobs.get(microbatch)

    def running(self, microbatch: int, attempt: int) -> MicrobatchJob | None:
        """The job, if exactly this attempt of it is in the pipeline."""
        job = self._jobs.get(microbatch)
        current = job is not None and job.phase is JobPhase.RUNNING and job.attempt == attempt
        return job if current else None

    def launch(self, window: int, now_s: float) -> MicrobatchJob | None:
        """Start the next attempt of the first job that may start; None if the window is full."""
        if sum(job.phase is JobPhase.RUNNING for job in self._begun.values()) >= window:
            return None
        again = (
            job
            for job in self._begun.values()
            if job.phase is JobPhase.WAITING and job.not_before_s <= now_s
        )
        job = next(again, None) or self._next_fresh()
        if job is not None:
            self._begun[job.microbatch] = job
            job.phase, job.launched_s, job.path = JobPhase.RUNNING, now_s, []
            job.attempt += 1
        return job

    def finish(self, job: MicrobatchJob, now_s: float) -> None:
        """Every stage has counted it."""
        if job.phase is JobPhase.RUNNING:
            self._runs_s.add(now_s - job.launched_s)
        if job.phase is not JobPhase.DONE:
            self._undone -= 1
        job.phase = JobPhase.DONE
        self._begun.pop(job.microbatch, None)

    def again(self, job: MicrobatchJob, now_s: float) -> None:
        """Nobody will count the last attempt any more: it may be launched once more."""
        if job.phase is JobPhase.DONE:
            self._begun[job.microbatch] = job
            self._undone += 1
        doublings = min(max(0, job.attempt - 1), RETRY_DOUBLINGS_MAX)
        delay_s = min(RETRY_MAX_S, RETRY_FIRST_S * 2.0**doublings)
        job.phase, job.not_before_s = JobPhase.WAITING, now_s + delay_s

    def touched_by(self, gone: Incarnation) -> list[MicrobatchJob]:
        """The running jobs that went through an incarnation."""
        return [job for job in self._running() if gone in job.path]

    def most_refused(self) -> MicrobatchJob | None:
        """The job that got stuck most often, of those that are not done."""
        return max(self._begun.values(), key=lambda job: job.refusals, default=None)

    def late(self, now_s: float) -> list[MicrobatchJob]:
        """The running jobs that have been under way for too long."""
        return [job for job in self._running() if now_s >= job.launched_s + self._deadline_s]

    def next_deadline_s(self, now_s: float) -> float | None:
        """When a job will be late, or may be launched again."""
        times = [job.launched_s + self._deadline_s for job in self._running()]
        times += [
            job.not_before_s
            for job in self._begun.values()
            if job.phase is JobPhase.WAITING and job.not_before_s > now_s
        ]
        return min(times, default=None)

    def _next_fresh(self) -> MicrobatchJob | None:
        """The next job never launched; a peer may claim to have counted such a one."""
        while self._fresh:
            job = self._fresh.popleft()
            if job.phase is JobPhase.WAITING and job.microbatch not in self._begun:
                return job
        return None

    def _running(self) -> list[MicrobatchJob]:
        return [job for job in self._begun.values() if job.phase is JobPhase.RUNNING]


def runs_window() -> Window:
    """How long the last jobs took, empty at the start of a run."""
    return Window(MEASURED)


def _deadline_s(runs_s: Window) -> float:
    slow_s = runs_s.quantile(0.95)
    if slow_s is None:
        return FIRST_DEADLINE_S
    return min(DEADLINE_MAX_S, max(DEADLINE_MIN_S, DEADLINE_FACTOR * slow_s))
