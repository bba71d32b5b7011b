"""Alerts: what a run's owner is woken for, and how seldom.

Told by events and by the clock. An alert of one kind comes once in `AGAIN_S`; what comes earlier is
folded into the next one, which says how many there were. The end of a run is always told.

Units:   `now_s` seconds on the caller's clock, which goes on while events are silent.
"""

import math
from dataclasses import dataclass
from enum import StrEnum

from p2pswarm.progress.cost_events import BudgetReached
from p2pswarm.progress.events import (
    CheckpointFailed,
    Ended,
    Event,
    RolledBack,
    Stalled,
    Started,
    Stepped,
    Waiting,
)
from p2pswarm.progress.printable import printable
from p2pswarm.progress.step_pace import StepPace

AGAIN_S = 600.0  # a run that stands still all night wakes its owner some dozens of times at most
STALL_LEAST_S = 30.0  # nobody gets up for less
LOST_STAGE_S = 30.0  # a server that was cut off is back by then
TEXT_CHARS = 300


class AlertKind(StrEnum):
    """What an alert is about."""

    STALL = "stall"
    LOST_STAGE = "lost-stage"
    END = "end"
    BUDGET_NEAR = "budget-near"
    BUDGET_SPENT = "budget-spent"
    NOT_SAVED = "not-saved"


@dataclass(frozen=True, slots=True)
class Alert:
    """One message to the owner."""

    kind: AlertKind
    text: str
    step: int
    """The number of steps done."""


@dataclass(slots=True)
class _Folded:
    """Alerts of one kind."""

    next_s: float = -math.inf
    """Before this, an alert is not told."""
    held: int = 0
    """Those since the last one that was told."""


class Alerts:
    """The alerts of one run."""

    def __init__(self) -> None:
        self._kinds = {kind: _Folded() for kind in AlertKind}
        self._pace = StepPace(STALL_LEAST_S)
        self._step = 0
        self._committed_s: float | None = None
        """When the newest step was committed, or the first one began; None: nothing is due."""
        self._stalled = False
        """True if the present step was told to stand still."""
        self._cause = ""
        """Why it does, once that is known."""
        self._waiting: tuple[int, ...] = ()
        self._waiting_s = math.inf
        """When the stages that nobody serves are told."""
        self._alerts: list[Alert] = []

    def on_event(self, event: Event, now_s: float) -> None:
        """Take an event of the run."""
        match event:
            case Started():
                self._committed_s = now_s
                self._wait((), now_s)
            case Stepped():
                if self._committed_s is not None and event.step > self._step:
                    self._pace.add(now_s - self._committed_s)
                self._step, self._committed_s, self._stalled = event.step, now_s, False
                self._cause = ""
            case Stalled():
                self._cause = event.why
            case RolledBack():
                self._step = event.step
                self._wait((), now_s)
            case Waiting():
                self._wait(event.stages, now_s)
            case CheckpointFailed():
                self._tell(AlertKind.NOT_SAVED, event.text, now_s)
            case BudgetReached():
                kind = AlertKind.BUDGET_SPENT if event.over else AlertKind.BUDGET_NEAR
                self._tell(kind, event.text, now_s)
            case Ended():
                self._committed_s, self._waiting_s = None, math.inf
                self._alerts.append(Alert(AlertKind.END, _short(event.text), event.step))

    def drain(self) -> list[Alert]:
        """Return the alerts to send now; drained by reading."""
        drained, self._alerts = self._alerts, []
        return drained

    def next_deadline_s(self) -> float | None:
        """Return when to call `on_deadline`, if no event comes before."""
        due_s = min(self._waiting_s, self._stall_due_s())
        return due_s if due_s < math.inf else None

    def on_deadline(self, now_s: float) -> None:
        """Tell what has lasted too long."""
        if now_s >= self._waiting_s:
            self._waiting_s = math.inf
            stages = Waiting(self._waiting).text
            self._tell(AlertKind.LOST_STAGE, f"{stages} since {LOST_STAGE_S:.0f} s", now_s)
        if now_s >= self._stall_due_s():
            self._stalled = True
            assert self._committed_s is not None, "its step is late"
            text = f"step {self._step + 1} takes {now_s - self._committed_s:.0f} s"
            if (usual_s := self._pace.usual_s) is not None:
                text += f", usually {usual_s:.1f} s"
            cause = self._cause or (Waiting(self._waiting).text if self._waiting else "")
            self._tell(AlertKind.STALL, f"{text}: {cause}" if cause else text, now_s)

    def _wait(self, stages: tuple[int, ...], now_s: float) -> None:
        began = self._committed_s is not None  # before the first step it waits for newcomers
        if not stages:
            self._waiting_s = math.inf
        elif began and not self._waiting:
            self._waiting_s = now_s + LOST_STAGE_S
        self._waiting = stages

    def _stall_due_s(self) -> float:
        stall_s = self._pace.stall_s
        if stall_s is None and self._cause:  # it is known to stand still, in its first step
            stall_s = STALL_LEAST_S
        if self._committed_s is None or self._stalled or stall_s is None:
            return math.inf
        return self._committed_s + stall_s

    def _tell(self, kind: AlertKind, text: str, now_s: float) -> None:
        folded = self._kinds[kind]
        if now_s < folded.next_s:
            folded.held += 1
            return
        more = f" (and {folded.held} more of this kind before)" if folded.held else ""
        folded.next_s, folded.held = now_s + AGAIN_S, 0
        self._alerts.append(Alert(kind, _short(text) + more, self._step))


def _short(text: str) -> str:
    return printable(text[:TEXT_CHARS])
