"""Reports of a step's seconds and of stalls: as events, and as the answer to `AskWhy`.

Units:   `now_s` seconds on the caller's clock.
"""

from collections.abc import Callable, Sequence

from p2pswarm.base.errors import NotServing
from p2pswarm.base.estimates import Window
from p2pswarm.base.ids import PeerId
from p2pswarm.node.progress.common_events import names_of
from p2pswarm.progress.events import Event, Phases, Report, Stalled, StallEnded
from p2pswarm.progress.printable import nameless
from p2pswarm.progress.step_seconds import ChainPart, StageTimes
from p2pswarm.run.messages.field_limits import SECONDS_MAX
from p2pswarm.run.messages.waits import (
    CAUSE_CHARS,
    NAMES_TOLD_MAX,
    AskWhy,
    ChainLink,
    JourneyPart,
    RunWhy,
    StageSeconds,
)
from p2pswarm.trainer.reports.leadership import Leads
from p2pswarm.trainer.reports.reports import RunBegun, RunFinished, StepDone
from p2pswarm.trainer.reports.step_seconds import Stalling, StallOver, StepTimed

PHASES_EVERY_S = 1.0  # nobody reads faster, and a log of short steps stays small
MEASURED = 32  # steps remembered
NOT_HERE = "that run is not trained here; look up the runs again"


Named = Callable[[str, Sequence[bytes]], str]
"""Puts the names of machines behind the short ids of these peers in a text."""


def unnamed(text: str, _peers: Sequence[bytes]) -> str:
    """Leave a text as it is: no machine has told its name."""
    return text


class StepReports:
    """Keeps the newest; one run's trainer has one."""

    def __init__(self, run: bytes) -> None:
        self._run = run
        self._begun_s: float | None = None
        """When the first step began that this trainer knows of."""
        self._committed_s: float | None = None
        self._told_s = float("-inf")
        self._took_s = Window(MEASURED)
        self._timed: StepTimed | None = None
        self._stalled: Stalled | None = None

    def on_report(self, report: Report, now_s: float, named: Named = unnamed) -> list[Event]:
        """Return what a report of the trainer means to people and scripts; `named`: see `Named`."""
        seconds = 0.0 if self._begun_s is None else now_s - self._begun_s
        match report:
            case RunBegun() | Leads():
                self._begun_s = now_s if self._begun_s is None else self._begun_s
                self._committed_s = now_s
            case StepDone() | RunFinished():
                self._committed_s, self._stalled = now_s, None
            case StepTimed():
                self._timed = report
                self._took_s.add(report.duration_s)
                if now_s >= self._told_s + PHASES_EVERY_S:
                    self._told_s = now_s
                    return [_phases(report, seconds)]
            case Stalling():
                self._stalled = _stalled(report, named(report.why, report.peers), seconds)
                return [self._stalled]
            case StallOver(step, took_s):
                return [StallEnded(step + 1, _digits(took_s), seconds=seconds)]
        return []

    def answer(
        self, question: AskWhy, now_s: float, name: Callable[[bytes], str] = nameless
    ) -> RunWhy:
        """Where the newest step's seconds went, and what the run waits for now.

        `name`: what the owner of a peer calls its machine.
        """
        if question.run != self._run:
            raise NotServing(NOT_HERE)
        timed, committed_s = self._timed, self._committed_s
        under_way_s = 0.0 if committed_s is None else now_s - committed_s
        peers: list[bytes] = []
        if timed is not None:
            peers += [link.peer for link in timed.chain if link.peer]
            peers += [row.slowest for row in timed.stages if row.slowest]
        return RunWhy(
            step=0 if timed is None else timed.step + 1,
            seconds=0.0 if timed is None else min(SECONDS_MAX, timed.duration_s),
            usual_s=self._took_s.quantile(0.5),
            under_way_s=min(SECONDS_MAX, max(0.0, under_way_s)),
            stages=() if timed is None else timed.stages,
            chain=() if timed is None else timed.chain,
            stalled="" if self._stalled is None else self._stalled.text[:CAUSE_CHARS],
            names=names_of(peers, name)[:NAMES_TOLD_MAX],
        )


def _phases(report: StepTimed, seconds: float) -> Phases:
    stages = tuple(map(stage_times, report.stages))
    chain = tuple(map(chain_part, report.chain))
    return Phases(report.step + 1, _digits(report.duration_s), stages, chain, seconds=seconds)


def stage_times(row: StageSeconds) -> StageTimes:
    """A row of the table, as people and scripts have it."""
    spent = row.seconds
    return StageTimes(
        row.servers,
        _digits(spent.forward_s),
        _digits(spent.backward_s),
        _digits(spent.transfer_s),
        _digits(spent.waiting_s),
        _digits(spent.averaging_s),
        _digits(spent.commit_s),
        PeerId(row.slowest).short if row.slowest else "",
        row.doubtful,
    )


def chain_part(link: ChainLink) -> ChainPart:
    """A part of the slowest chain, as people and scripts have it."""
    server = PeerId(link.peer).short if link.peer else ""
    return ChainPart(JourneyPart(link.part).name.lower(), link.stage, server, _digits(link.seconds))


def _stalled(report: Stalling, why: str, seconds: float) -> Stalled:
    usual_s = None if report.usual_s is None else _digits(report.usual_s)
    servers = tuple(PeerId(peer).short for peer in report.peers)
    what = report.cause.value, servers, report.stages, why[:CAUSE_CHARS]
    return Stalled(report.step + 1, _digits(report.for_s), usual_s, *what, seconds=seconds)


def _digits(seconds: float) -> float:
    return float(f"{seconds:.4g}")
