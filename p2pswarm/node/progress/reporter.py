"""A trainer's reports as the events that people and scripts read.

Units:   `now_s` seconds on the caller's clock; events count from the first step.
"""

import dataclasses
from collections import deque

from p2pswarm.base.ids import PeerId
from p2pswarm.node.progress.balance_news import balance_events
from p2pswarm.node.progress.checkpoint_news import checkpoint_event
from p2pswarm.node.progress.trouble import trouble_text
from p2pswarm.progress.events import (
    Ended,
    Event,
    HeldOut,
    MicrobatchCounts,
    Note,
    PeerLine,
    Peers,
    Started,
    Stepped,
    Waiting,
)
from p2pswarm.run.view import Incarnation
from p2pswarm.settings.config import RunConfig
from p2pswarm.trainer.balance.balance_reports import (
    BalanceReport,
)
from p2pswarm.trainer.coordinator.outputs import Report
from p2pswarm.trainer.reports import actions as act
from p2pswarm.trainer.reports.checkpoint_reports import (
    CheckpointFailed,
    CheckpointProgress,
    CheckpointSaved,
)
from p2pswarm.trainer.reports.leadership_reports import Leads, SteppedDown, TrainerEnlisted
from p2pswarm.trainer.reports.rollback_reports import WentBack

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
        self._stages = run.stages
        self._parameters = parameters
        self._begun_s: float | None = None
        self._ended_s: deque[float] = deque(maxlen=RATE_STEPS + 1)
        """When the last steps ended; the run's beginning too."""
        self._done = self._first = done
        self._asked = 0
        self._counted = 0
        self._replayed = 0
        self._quarantined = 0
        self._last_step_s = 0.0
        self._peers: dict[Incarnation, PeerLine] = {}
        self._peers_told_s = float("-inf")
        self._over = False
        """Whether `Ended` was told; servers stay until their weights are fetched."""

    def report(self, report: Report, now_s: float) -> list[Event]:
        """What a report means to people."""
        seconds = now_s - self._begun_s if self._begun_s is not None else 0.0
        if isinstance(report, BalanceReport):
            return balance_events(report, seconds)
        return self._of_the_run(report, seconds, now_s)

    def _of_the_run(self, report: Report, seconds: float, now_s: float) -> list[Event]:
        assert not isinstance(report, BalanceReport), "these were told"
        match report:
            case act.RunBegun():
                self._begun_s = now_s
                self._ended_s.append(now_s)
                self._asked += self._size
                event: Event = Started(0.0, self._parameters)
            case act.StagesUnserved():
                event = Waiting(seconds, report.stages)
            case act.StepDone():
                event = self._stepped(report, now_s)
            case act.EvaluationDone():
                event = HeldOut(seconds, report.version, report.loss)
            case act.RunFinished():
                event = self._ended(report)
            case act.Replayed():
                count = len(report.microbatches)
                self._replayed += count
                many = "microbatches are" if count > 1 else "microbatch is"
                event = Note(seconds, f"{count} {many} sent again: {report.reason}")
            case Leads() | SteppedDown() | TrainerEnlisted() | WentBack():
                return self._trainers(report, seconds, now_s)
            case act.MemberJoined() | act.MemberReady() | act.MemberLost() | act.Loaded():
                return self._member(report, seconds, now_s)
            case CheckpointSaved() | CheckpointFailed() | CheckpointProgress():
                event = checkpoint_event(report, seconds)
            case _:
                event = Note(seconds, trouble_text(report))
        return [event]

    def _trainers(
        self,
        report: Leads | SteppedDown | TrainerEnlisted | WentBack,
        seconds: float,
        now_s: float,
    ) -> list[Event]:
        """Who coordinates the run, and who stands by."""
        if isinstance(report, Leads | WentBack):
            self._peers.clear()  # all members join anew
        match report:
            case Leads(version=0):  # no server has come yet
                return [Waiting(0.0, tuple(range(self._stages)))]
            case Leads(version=version):
                self._goes_on_after(version)
                self._begun_s = now_s
                self._ended_s.clear()
                self._ended_s.append(now_s)
                text = f"this trainer coordinates the run: it goes on after step {version}"
                return [Started(0.0, self._parameters), Note(0.0, text)]
            case WentBack():
                return self._went_back(report, seconds, now_s)
            case SteppedDown(reason=reason):
                return [Note(seconds, f"this trainer stands by from now on: {reason}")]
            case TrainerEnlisted(peer=peer, address=address):
                return [Note(seconds, f"trainer {PeerId(peer).short} at {address} stands by")]

    def _went_back(self, report: WentBack, seconds: float, now_s: float) -> list[Event]:
        """The steps since that version are done anew."""
        self._goes_on_after(report.version)
        self._ended_s.clear()
        self._ended_s.append(now_s)
        version, before = report.version, report.before
        anew = f"the steps up to {before} are done anew" if before > version else "nothing is lost"
        text = f"the run has gone back to its checkpoint of step {version}: {anew}"
        return [Note(seconds, text)]

    def _goes_on_after(self, version: int) -> None:
        self._done, self._counted = version, version * self._size
        self._asked = self._counted + self._size * (version < self._steps)

    def _member(self, report: Report, seconds: float, now_s: float) -> list[Event]:
        """News of one server."""
        match report:
            case act.MemberJoined(incarnation=incarnation, stage=stage):
                self._peers[incarnation] = PeerLine(_short(incarnation), stage, False, 0, 0.0)
                text = f"server {_short(incarnation)} joins stage {stage}"
            case act.MemberReady(incarnation=incarnation, stage=stage):
                self._peers[incarnation] = PeerLine(_short(incarnation), stage, True, 0, 0.0)
                text = f"server {_short(incarnation)} of stage {stage} is ready"
            case act.MemberLost(incarnation=incarnation, stage=stage):
                self._peers.pop(incarnation, None)
                again = f"; its {report.voided} microbatches count anew" if report.voided else ""
                text = (
                    f"server {_short(incarnation)} of stage {stage} is lost: {report.reason}{again}"
                )
            case act.Loaded(incarnation=incarnation, stage=stage, load=load):
                if before := self._peers.get(incarnation):
                    self._peers[incarnation] = PeerLine(
                        before.peer,
                        stage,
                        before.ready,
                        load.queued,
                        load.rate_per_s,
                        **dataclasses.asdict(load.links),
                    )
                if self._over or now_s < self._peers_told_s + PEERS_EVERY_S:
                    return []
                text = ""
            case _:
                return []
        self._peers_told_s = now_s
        notes: list[Event] = [Note(seconds, text)] if text else []
        return notes if self._over else [*notes, Peers(seconds, tuple(self._peers.values()))]

    def _stepped(self, report: act.StepDone, now_s: float) -> Stepped:
        self._done += 1
        self._counted += report.microbatches - len(report.quarantined)
        self._quarantined += len(report.quarantined)
        if self._done < self._steps:
            self._asked += self._size
        self._ended_s.append(now_s)
        span_s = now_s - self._ended_s[0]
        begun_s = self._begun_s if self._begun_s is not None else now_s
        self._last_step_s = now_s - begun_s
        return Stepped(
            self._last_step_s,
            self._done,
            report.loss,
            self._rate(len(self._ended_s) - 1, span_s),
            report.learning_rate,
            report.gradient_norm,
            self._counts(),
        )

    def _ended(self, report: act.RunFinished) -> Ended:
        self._over = True
        if report.version is not None:  # of another trainer: nothing was measured here
            self._done = self._first = report.version
        rate = self._rate(self._done - self._first, self._last_step_s)
        return Ended(
            self._last_step_s, self._done, report.reason, report.failed, rate, self._counts()
        )

    def _rate(self, steps: int, span_s: float) -> float:
        """Tokens per second."""
        return steps * self._step_tokens / span_s if span_s > 0 else 0.0

    def _counts(self) -> MicrobatchCounts:
        return MicrobatchCounts(self._asked, self._counted, self._replayed, self._quarantined)


def _short(incarnation: Incarnation) -> str:
    return PeerId(incarnation.peer).short
