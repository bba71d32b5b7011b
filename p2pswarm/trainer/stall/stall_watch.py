"""StallWatch: when a step has taken so long that people are told who waits for whom.

    RUNNING -> STALLED      the step has taken three usual steps' time
    STALLED -> RUNNING      it is done, or the run is over

Units:   seconds on a clock that stands still while the trainer is stopped, but for `stopped_s`.
Source:  docs/slow.md, "When a step stalls".
"""

import math

from p2pswarm.progress.step_pace import StepPace
from p2pswarm.run.messages.waits import CAUSE_CHARS
from p2pswarm.trainer.reports.step_seconds import StallCause, Stalling, StallOver
from p2pswarm.trainer.stall.trainer_view import TrainerView
from p2pswarm.trainer.stall.verdict import Answers, StallVerdict, verdict

LEAST_S = 3.0  # below this a pause of the network is no stall; silence is known after 2.5 s
FIRST_S = 60.0  # before a step was measured: first passes are slow
AGAIN_S = 5.0  # until a stall is looked at again; twice as long each time
AGAIN_MAX_S = 600.0
VAGUE = (StallCause.UNKNOWN, StallCause.QUEUE)
"""Causes that a second look finds once another is over, and any look while batches are evaluated:
all work, and there is more of it."""


class StallWatch:
    """One run under one coordinator."""

    def __init__(self) -> None:
        self._pace = StepPace(LEAST_S)
        self._step = -1
        self._begun_s = math.inf
        self._look_s = math.inf
        """Time to look who waits for whom."""
        self._pause_s = AGAIN_S
        self._told: StallVerdict | None = None
        self._asks = False
        """True if somebody is to be asked, and no answers have come."""
        self._reports: list[Stalling | StallOver] = []

    @property
    def usual_s(self) -> float | None:
        """How long steps take; None before one was measured."""
        return self._pace.usual_s

    @property
    def limit_s(self) -> float:
        """How long a step may take."""
        stall_s = self._pace.stall_s
        return FIRST_S if stall_s is None else stall_s

    def begin(self, step: int, now_s: float) -> None:
        """A step begins, and the one before is done, if there was one."""
        if self._begun_s < math.inf:
            took_s = now_s - self._begun_s
            self._pace.add(took_s)
            if self._told is not None:
                self._reports.append(StallOver(self._step, took_s))
        self._step, self._begun_s, self._told = step, now_s, None
        self._look_s, self._pause_s = now_s + self.limit_s, AGAIN_S
        self._asks = False

    def close(self) -> None:
        """The run is over, or another trainer leads: nothing more is told."""
        self._begun_s = self._look_s = math.inf
        self._reports, self._asks = [], False

    def on_stop(self, stopped_s: float, now_s: float) -> None:
        """This process stood still for a time that is none on its clock."""
        if self._begun_s == math.inf or stopped_s < self.limit_s:
            return
        why = f"this trainer itself stood still for {stopped_s:.1f} s: its process was stopped"
        found = StallVerdict(StallCause.STOPPED, (), (), why)
        self._told = found
        self._reports.append(self._report(found, stopped_s))
        self._look_s, self._asks = now_s + self.limit_s, False

    def on_answers(self, view: TrainerView, answers: Answers, now_s: float) -> None:
        """Those that were asked have answered, or have had their time."""
        if not self._asks or view.step != self._step:
            return  # it is done meanwhile
        self._asks = False
        if view.waits_by_plan:
            return
        found = verdict(view, answers)
        vague = found.cause in VAGUE and (self._told is not None or view.evaluates)
        if not vague and (self._told is None or self._told.names != found.names):
            self._told = found
            self._reports.append(self._report(found, now_s - self._begun_s))

    def drain(self) -> list[Stalling | StallOver]:
        """Return what is to be told by now."""
        reports, self._reports = self._reports, []
        return reports

    @property
    def asks(self) -> bool:
        """Return whether servers are to be asked, and `on_answers` told what they say."""
        return self._asks

    def next_deadline_s(self) -> float | None:
        """Return when to look who waits for whom."""
        return self._look_s if self._look_s < math.inf else None

    def on_deadline(self, now_s: float) -> None:
        """Ask, if the step has taken too long; ask again later, less and less often."""
        if now_s < self._look_s:
            return
        self._asks = True
        self._look_s = now_s + self._pause_s
        self._pause_s = min(AGAIN_MAX_S, 2.0 * self._pause_s)

    def _report(self, found: StallVerdict, for_s: float) -> Stalling:
        why = found.why[:CAUSE_CHARS]
        return Stalling(
            self._step, for_s, self.usual_s, found.cause, found.peers, found.stages, why
        )
