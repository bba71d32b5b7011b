"""A trainer's reports as the events that people and scripts read.

Units:   `now_s` seconds on the caller's clock; events count from the first step.
"""

import dataclasses
from collections import deque

from p2pswarm.progress.events import (
    Ended,
    Event,
    MicrobatchCounts,
    Note,
    PeerLine,
    Peers,
    Relocated,
    Report,
    Started,
    Stepped,
)
from p2pswarm.run.member_view import Incarnation
from p2pswarm.settings.config import RunConfig
from p2pswarm.trainer.balance.balance_reports import OrderedMove
from p2pswarm.trainer.reports.leadership import Leads
from p2pswarm.trainer.reports.reports import (
    Loaded,
    MemberJoined,
    MemberLost,
    MemberReady,
    Replayed,
    RunBegun,
    RunFinished,
    StepDone,
    WentBack,
    short,
)

RATE_STEPS = 10  # steps that throughput is told over: one alone is noisy
PEERS_EVERY_S = 0.5  # each server reports its load every second


class Reporter:
    """Keeps what must be added up; answers each report with events."""

    def __init__(self, run: RunConfig, parameters: int, done: int = 0) -> None:
        """`done`: the steps before those that are reported here."""
        batch = run.batch
        self._size = batch.microbatches
        self._step_tokens = batch.microbatches * batch.rows * run.model.sequence_length
        self._steps = run.steps
        self._parameters = parameters
        self._begun_s: float | None = None
        self._ended_s: deque[float] = deque(maxlen=RATE_STEPS + 1)
        """Times at which the last steps ended; the run's beginning too."""
        self._done = self._first = done
        self._asked = 0
        self._counted = 0
        self._replayed = 0
        self._quarantined = 0
        self._last_step_s = 0.0
        self._peers: dict[Incarnation, PeerLine] = {}
        self._peers_told_s = float("-inf")
        self._over = False
        """True if `Ended` was told; servers stay until their weights are fetched."""

    def on_report(self, report: Report, now_s: float) -> list[Event]:
        """Return what a report means to people and scripts."""
        seconds = now_s - self._begun_s if self._begun_s is not None else 0.0
        match report:
            case RunBegun():
                self._begun_s = now_s
                self._ended_s.append(now_s)
                self._asked += self._size
                return [Started(self._parameters)]
            case StepDone():
                return [self._stepped(report, now_s)]
            case RunFinished():
                return [self._ended(report)]
            case Leads():
                return self._leads(report, now_s)
            case WentBack():
                self._peers.clear()
                self._go_on_after(report.version, now_s)
            case Replayed():
                self._replayed += len(report.microbatches)
            case MemberJoined() | MemberReady() | MemberLost() | Loaded():
                return _alone(report, seconds) + self._on_member(report, seconds, now_s)
        return _alone(report, seconds)

    def _leads(self, report: Leads, now_s: float) -> list[Event]:
        """This trainer coordinates the run: all members join it anew."""
        self._peers.clear()
        if report.version == 0:  # no server has come yet, as is reported by itself
            return []
        self._go_on_after(report.version, now_s)
        self._begun_s = now_s
        return [Started(self._parameters), Note(report.text)]

    def _go_on_after(self, version: int, now_s: float) -> None:
        self._done, self._counted = version, version * self._size
        self._asked = self._counted + self._size * (version < self._steps)
        self._ended_s.clear()
        self._ended_s.append(now_s)

    def _on_member(
        self,
        report: MemberJoined | MemberReady | MemberLost | Loaded,
        seconds: float,
        now_s: float,
    ) -> list[Event]:
        """The servers after a report of one, but not after each report of a load."""
        one, stage = report.incarnation, report.stage
        match report:
            case MemberLost():
                self._peers.pop(one, None)
            case Loaded(load=load):
                if before := self._peers.get(one):
                    links = dataclasses.asdict(load.links)
                    figures = load.queued, load.rate_per_s
                    self._peers[one] = PeerLine(before.peer, stage, before.ready, *figures, **links)
                if self._over or now_s < self._peers_told_s + PEERS_EVERY_S:
                    return []
            case _:
                ready = isinstance(report, MemberReady)
                self._peers[one] = PeerLine(short(one), stage, ready, 0, 0.0)
        self._peers_told_s = now_s
        return [] if self._over else [Peers(tuple(self._peers.values()), seconds=seconds)]

    def _stepped(self, report: StepDone, now_s: float) -> Stepped:
        self._done = report.step + 1
        self._counted += report.microbatches - len(report.quarantined)
        self._quarantined += len(report.quarantined)
        if self._done < self._steps:
            self._asked += self._size
        self._ended_s.append(now_s)
        span_s = now_s - self._ended_s[0]
        begun_s = self._begun_s if self._begun_s is not None else now_s
        self._last_step_s = now_s - begun_s
        return Stepped(
            self._done,
            report.loss,
            self._rate(len(self._ended_s) - 1, span_s),
            report.learning_rate,
            report.gradient_norm,
            self._counts(),
            seconds=self._last_step_s,
        )

    def _ended(self, report: RunFinished) -> Ended:
        self._over = True
        if report.version is not None:  # of another trainer: nothing was measured here
            self._done = self._first = report.version
        return Ended(
            self._done,
            report.reason,
            report.failed,
            self._rate(self._done - self._first, self._last_step_s),
            self._counts(),
            seconds=self._last_step_s,
        )

    def _rate(self, steps: int, span_s: float) -> float:
        """Tokens per second."""
        return steps * self._step_tokens / span_s if span_s > 0 else 0.0

    def _counts(self) -> MicrobatchCounts:
        return MicrobatchCounts(self._asked, self._counted, self._replayed, self._quarantined)


def _alone(report: Report, seconds: float) -> list[Event]:
    """Return what a report means that nothing is added to."""
    match report:
        case Event():
            return [dataclasses.replace(report, seconds=seconds)]
        case OrderedMove(incarnation, source, target, gain, away_s, planned):
            server = short(incarnation)
            return [Relocated(server, source, target, gain, away_s, planned, seconds=seconds)]
    return [Note(report.text, seconds=seconds)] if report.text else []
