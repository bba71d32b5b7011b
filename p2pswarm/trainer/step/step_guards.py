"""What guards one step: microbatches that are set aside, and those that are computed twice.

Both may find that sums hold what must not be counted. A sum cannot give up one microbatch, so the
incarnations that hold it are void, and their work is done again.

Units:   `now_s` seconds on the caller's clock; microbatches by their global number.
Errors:  none.
Source:  docs/training.md, docs/spot_checks.md.
"""

from dataclasses import dataclass
from typing import Self

from p2pswarm.run.messages.microbatch import CHECK_BASE, Sketch
from p2pswarm.run.messages.types import Work
from p2pswarm.run.view import Incarnation
from p2pswarm.settings.config import RunConfig
from p2pswarm.trainer.blame.blame import Blame
from p2pswarm.trainer.reports import actions as act
from p2pswarm.trainer.step.in_flight import InFlight, JobPhase, MicrobatchJob
from p2pswarm.trainer.step.ledger import StepLedger
from p2pswarm.trainer.step.quarantine import Quarantine
from p2pswarm.trainer.step.spot_checks import OPINIONS_MAX, SpotChecks

HOLDS_IT = "its sum holds a microbatch that is not finite"


GuardReport = act.Quarantined | act.ResultsTied | act.WrongResult


@dataclass(frozen=True, slots=True)
class Guards:
    """What is remembered from step to step."""

    quarantine: Quarantine
    checks: SpotChecks

    @classmethod
    def of(cls, config: RunConfig, key: bytes) -> Self:
        """The guards of a run; `key`: a secret of the trainer."""
        return cls(Quarantine(config.batch.microbatches), SpotChecks(config, key))


class StepGuards:
    """The guards in one step."""

    def __init__(self, number: int, jobs: InFlight, ledger: StepLedger, guards: Guards) -> None:
        self._number = number
        self._jobs = jobs
        self._ledger = ledger
        self._quarantine, self._checks = guards.quarantine, guards.checks
        self._checks.clear()
        self._condemned: list[MicrobatchJob] = []
        self._reports: list[GuardReport] = []
        self.aside: set[int] = set()
        """The microbatches and held-out batches that were set aside."""

    @property
    def hopeless(self) -> str | None:
        """Why the run must end, if it must."""
        return self._quarantine.hopeless

    def sketched(self, by: Incarnation, stage: int, note: Sketch) -> None:
        """A server tells what it took and gave."""
        if note.step == self._number and self._checks.share:
            self._checks.heard(by, stage, note)

    def counted_by_all(self, microbatch: int, now_s: float) -> None:
        """Every stage has counted a microbatch, perhaps again: it may have to be checked."""
        if not self._checks.share or not self._checks.chosen(microbatch):
            return
        job = self._jobs.job(microbatch + CHECK_BASE)
        if job is None:
            check = MicrobatchJob(microbatch + CHECK_BASE, Work.FORWARD, check=True)
            self._jobs.add(check)
        elif job.phase is JobPhase.DONE:
            self._jobs.again(job, now_s)

    def checked(self, job: MicrobatchJob, now_s: float) -> None:
        """A check is through: stage 0 had its gradient, or it was tried in vain for too long."""
        microbatch = job.microbatch - CHECK_BASE
        self._checks.computed(microbatch, self._ledger.counted_by(microbatch))
        self._jobs.finish(job, now_s)
        if not self._checks.disputed(microbatch):
            return
        if job.attempt + 1 < OPINIONS_MAX:
            self._jobs.again(job, now_s)
        elif tied := self._checks.tied(microbatch):
            self._reports.append(tied)

    def acquit(self, job: MicrobatchJob) -> None:
        """Every stage has counted it after all."""
        job.condemned = False
        if job in self._condemned:
            self._condemned.remove(job)

    def to_void(self, blame: Blame, now_s: float) -> list[tuple[Incarnation, str]]:
        """Whose incarnation must end because of what its sum holds, and why."""
        for microbatch in blame.condemned():
            job = self._jobs.job(microbatch)
            if job is not None and not job.condemned:
                job.condemned = True
                self._condemned.append(job)
        holders = [one for job in self._unsound() for one in self._holders(job)]
        void = [(one, HOLDS_IT) for one in holders]
        if wrong := self._checks.wrong():
            found = [blame.computes_wrong(result, now_s) for result in wrong]
            self._reports += found
            void += [(result.incarnation, result.reason) for result in wrong]
            void += [(one, f"step {self._number} is done again") for one in self._ledger.counting]
            self._checks.begin_anew()  # what is done again is checked again
        return void

    def settled(self, now_s: float) -> list[GuardReport]:
        """Nobody holds what is to be set aside any more: do it; what people are to know."""
        for job in self._unsound():
            held_out = job.work is Work.EVALUATE
            self._condemned.remove(job)
            self._jobs.finish(job, now_s)
            if job.check:
                continue
            self.aside.add(job.microbatch)
            if not held_out:
                self._ledger.set_aside(job.microbatch)
            report = act.Quarantined(self._number, job.microbatch, job.reason, held_out)
            self._quarantine.add(report)
            self._reports.append(report)
        drained, self._reports = self._reports, []
        return drained

    def decided(self) -> tuple[int, ...]:
        """The step is decided; what was set aside in it."""
        return self._quarantine.decided()

    def _unsound(self) -> list[MicrobatchJob]:
        """The condemned jobs of which nothing is under way any more."""
        return [job for job in self._condemned if job.phase is JobPhase.WAITING]

    def _holders(self, job: MicrobatchJob) -> tuple[Incarnation, ...]:
        return self._ledger.who_counted(job.microbatch) if job.counts else ()
