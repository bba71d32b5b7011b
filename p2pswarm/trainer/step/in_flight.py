"""The microbatches of a step under way: attempts, paths, deadlines, and what to launch next.

A job waits, runs, is perhaps fenced and waits again, and is done when every stage has counted it.
The trainer asks after every note what is late and what to launch. So nothing here walks over what
is in flight: deadlines and retries stand in heaps, and what went through an incarnation is kept by
incarnation. An entry of a heap is not taken out when it is no longer true, but dropped when it
comes up.

Units:   seconds on the caller's clock.
Errors:  none; notes about attempts that are over get None or are ignored.
"""

from collections import deque
from dataclasses import dataclass, field
from enum import Enum
from heapq import heappop, heappush

from p2pswarm.run.messages.types import Work
from p2pswarm.run.view import Incarnation
from p2pswarm.trainer.step.attempt_timeout import AttemptTimeout

EVALUATION_BASE = 2**61  # held-out batches are numbered from here: no step reaches it
RETRY_FIRST_S = 0.02  # doubles with each attempt, so that a broken stage is not hammered
RETRY_MAX_S = 2.0
RETRY_DOUBLINGS_MAX = 7  # then it is RETRY_MAX_S, however often an attempt is lost
REFUSALS_MAX = 24  # about half a minute of retries; then the run ends with the reason
NEVER_S = float("-inf")  # it was never given up


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
    not_before_s: float = NEVER_S
    refusals: int = 0
    """Attempts that got stuck; those that were lost with a server do not count."""
    timeout_s: float = 0.0
    """What the last attempt that was late has earned the next; 0 if none was."""
    given_s: float = 0.0
    """How long the running attempt may take, as it was launched."""
    reason: str = ""
    """Why the last attempt was given up."""
    stuck: bool = False
    """An attempt was late or got stuck: the next one computes all, wherever it goes."""
    check: bool = False
    """A spot check: it goes the whole way, and nobody counts it."""
    condemned: bool = False
    """It is not finite on any path: once its last attempt is fenced, it is set aside."""

    @property
    def counts(self) -> bool:
        """Whether stages are to count it."""
        return self.work is Work.FORWARD and not self.check

    @property
    def may_use_kept(self) -> bool:
        """Whether who has counted it may hand on what it has computed before."""
        return self.counts and not self.stuck


class InFlight:
    """All jobs of one step."""

    def __init__(self, jobs: list[MicrobatchJob], timeout: AttemptTimeout) -> None:
        self._jobs = {job.microbatch: job for job in jobs}
        self._fresh = deque(jobs)
        """Never launched."""
        self._undone = len(jobs)
        self._running: dict[int, MicrobatchJob] = {}
        self._through: dict[Incarnation, dict[int, MicrobatchJob]] = {}
        """What runs through an incarnation."""
        self._timeout = timeout
        self.begun_s: float | None = None
        """When the first job was launched."""
        self._late: list[tuple[float, int, int]] = []
        """A heap: when to look whether it is late, microbatch, attempt."""
        self._again: list[tuple[float, int]] = []
        """A heap: when it may be launched again, microbatch."""
        self._refused: list[tuple[int, int]] = []
        """A heap: its refusals below zero, microbatch."""

    @property
    def finished(self) -> bool:
        """Whether every job is done."""
        return not self._undone

    def add(self, job: MicrobatchJob) -> None:
        """Take on another job, after all others."""
        self._jobs[job.microbatch] = job
        self._fresh.append(job)
        self._undone += 1

    @property
    def all_launched(self) -> bool:
        """Whether no job waits to be launched for the first time."""
        while self._fresh and not _is_fresh(self._fresh[0]):
            self._fresh.popleft()
        return not self._fresh

    def job(self, microbatch: int) -> MicrobatchJob | None:
        """The job of a microbatch, if it is of this step."""
        return self._jobs.get(microbatch)

    def was_launched(self, microbatch: int) -> bool:
        """Whether somebody can have counted it."""
        job = self._jobs.get(microbatch)
        return job is not None and job.attempt >= 0

    def running(self, microbatch: int, attempt: int) -> MicrobatchJob | None:
        """The job, if exactly this attempt of it is in the pipeline."""
        job = self._jobs.get(microbatch)
        current = job is not None and job.phase is JobPhase.RUNNING and job.attempt == attempt
        return job if current else None

    def launch(self, window: int, now_s: float) -> MicrobatchJob | None:
        """Start the next attempt of the first job that may start; None if the window is full."""
        if len(self._running) >= window:
            return None
        job = self._next_again(now_s) or self._next_fresh()
        if job is not None:
            self._running[job.microbatch] = job
            self.begun_s = now_s if self.begun_s is None else self.begun_s
            job.phase, job.launched_s, job.path = JobPhase.RUNNING, now_s, []
            job.attempt += 1
            job.given_s = max(job.timeout_s, self._timeout.timeout_s)
            heappush(self._late, (now_s + self._timeout.usual_s, job.microbatch, job.attempt))
        return job

    def handed(self, job: MicrobatchJob, to: Incarnation) -> None:
        """The running attempt of a job goes through an incarnation."""
        through = self._through.setdefault(to, {})
        if job.microbatch not in through:
            through[job.microbatch] = job
            job.path.append(to)

    def finish(self, job: MicrobatchJob, now_s: float) -> None:
        """Every stage has counted it."""
        if job.phase is JobPhase.RUNNING:
            self._timeout.finished(now_s - job.launched_s)
        if job.phase is not JobPhase.DONE:
            self._undone -= 1
        self._leave(job, JobPhase.DONE)

    def give_up(self, job: MicrobatchJob, reason: str) -> None:
        """The last attempt of a job is to be fenced, though it may be done by what was counted."""
        job.reason = reason
        self._leave(job, JobPhase.FENCING)

    def again(self, job: MicrobatchJob, now_s: float) -> None:
        """Nobody will count the last attempt any more: it may be launched once more."""
        doublings = min(max(0, job.attempt - 1), RETRY_DOUBLINGS_MAX)
        job.not_before_s = now_s + min(RETRY_MAX_S, RETRY_FIRST_S * 2.0**doublings)
        heappush(self._again, (job.not_before_s, job.microbatch))
        self._leave(job, JobPhase.WAITING)

    def touched_by(self, gone: Incarnation) -> list[MicrobatchJob]:
        """The running jobs that went through an incarnation."""
        return list(self._through.get(gone, {}).values())

    def refuse(self, job: MicrobatchJob) -> None:
        """An attempt of a job got stuck."""
        job.refusals += 1
        self._remember_refusals(job)

    def most_refused(self) -> MicrobatchJob | None:
        """The job that got stuck most often, of those that are not done; None if none did."""
        while self._refused:
            job = self._jobs[self._refused[0][1]]
            if job.phase is not JobPhase.DONE:  # an older entry of it is below its newest
                return job
            heappop(self._refused)
        return None

    def late(self, now_s: float) -> list[MicrobatchJob]:
        """The running jobs that have been under way for too long; each is told once."""
        late = []
        for job in self._looked_at(now_s):
            given_s = max(job.timeout_s, self._timeout.extended_s(job.given_s))
            late_s = job.launched_s + given_s
            if late_s <= now_s:
                late.append((job, given_s))
            else:  # look again before that: the time is shorter once one finishes
                pause_s = max(self._timeout.usual_s, now_s - job.launched_s)
                again_s = min(late_s, now_s + pause_s)
                heappush(self._late, (again_s, job.microbatch, job.attempt))
        for job, given_s in late:  # after all: those that are late together do not teach each other
            job.timeout_s = self._timeout.late(given_s)
        return [job for job, _ in late]

    def next_deadline_s(self, now_s: float) -> float | None:
        """When to ask what is late, or what may be launched again."""
        while self._late and self.running(*self._late[0][1:]) is None:
            heappop(self._late)
        times = [self._late[0][0]] if self._late else []
        again_s = self._next_again_s()
        if again_s is not None and again_s > now_s:  # else it waits for the window, not for time
            times.append(again_s)
        return min(times, default=None)

    def _looked_at(self, now_s: float) -> list[MicrobatchJob]:
        """The running jobs of which it is time to look whether they are late."""
        jobs = []
        while self._late and self._late[0][0] <= now_s:
            _, microbatch, attempt = heappop(self._late)
            if job := self.running(microbatch, attempt):
                jobs.append(job)
        return jobs

    def _next_again_s(self) -> float | None:
        """When the first of the jobs that wait may be launched again."""
        while self._again:
            not_before_s, microbatch = self._again[0]
            job = self._jobs[microbatch]
            if job.phase is JobPhase.WAITING and job.not_before_s == not_before_s:
                return not_before_s
            heappop(self._again)
        return None

    def _next_again(self, now_s: float) -> MicrobatchJob | None:
        again_s = self._next_again_s()
        if again_s is None or again_s > now_s:
            return None
        return self._jobs[heappop(self._again)[1]]

    def _next_fresh(self) -> MicrobatchJob | None:
        """The next job never launched; some were counted under a former coordinator."""
        return None if self.all_launched else self._fresh.popleft()

    def _leave(self, job: MicrobatchJob, phase: JobPhase) -> None:
        """End the running attempt of a job, if there is one."""
        if job.phase is JobPhase.DONE and phase is not JobPhase.DONE:
            self._undone += 1
            self._remember_refusals(job)
        job.phase = phase
        if self._running.pop(job.microbatch, None) is not None:
            for incarnation in job.path:
                del self._through[incarnation][job.microbatch]

    def _remember_refusals(self, job: MicrobatchJob) -> None:
        if job.refusals:
            heappush(self._refused, (-job.refusals, job.microbatch))


def _is_fresh(job: MicrobatchJob) -> bool:
    """Whether a job was never launched, and is not counted by all without that."""
    return job.phase is JobPhase.WAITING and job.not_before_s == NEVER_S
