"""A trainer's reports as the events that people and scripts read.

Units:   `now_s` seconds on the caller's clock; events count from the first step.
"""

import dataclasses
import re
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from p2pswarm.base.ids import PeerId
from p2pswarm.node.progress.common_events import line_of, rounded
from p2pswarm.progress.events import (
    Ended,
    Event,
    Joined,
    LeadershipTaken,
    Left,
    MachineFacts,
    MicrobatchCounts,
    MicrobatchesAgain,
    Note,
    PeerLine,
    Peers,
    Relocated,
    Report,
    RolledBack,
    Serving,
    Started,
    Stepped,
    StoodBy,
    Why,
    called,
)
from p2pswarm.progress.printable import printable
from p2pswarm.run.member_view import Incarnation
from p2pswarm.run.messages.cost import MachinePrice
from p2pswarm.run.messages.field_limits import MEMBERS_MAX
from p2pswarm.settings.config import RunConfig
from p2pswarm.trainer.balance.balance_reports import BalanceAsked, OrderedMove
from p2pswarm.trainer.reports.cost import ServerPriced
from p2pswarm.trainer.reports.leadership import Leads, StandbyTaken, SteppedDown, TrainerEnlisted
from p2pswarm.trainer.reports.reports import (
    ChainGrown,
    FactsKnown,
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
PEERS_PER_S = 200.0  # lines of servers: a run of 1,000 tells all of them each 5 s
LOAD_OLD_S = 5.0  # five words are missing: what a server did is not what it does
WHY_EVERY_S = 5.0  # reasons that change with each step would fill a log
HEAD_DIGITS = 12  # of a record's digest, for people
NUMBER = re.compile(r"\d+(\.\d+)?")

RunReport = RunBegun | StepDone | RunFinished | Leads | ChainGrown
MemberReport = MemberJoined | MemberReady | MemberLost | Loaded


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
        """When the first step began that this trainer knows of; it may lead several times."""
        self._ended_s: deque[float] = deque(maxlen=RATE_STEPS + 1)
        """Times at which the last steps ended; the run's beginning too."""
        self._done = self._first = done
        self._asked = 0
        self._counted = 0
        self._replayed = 0
        self._quarantined = 0
        self._voided = 0
        self._last_step_s = 0.0
        self._peers: dict[Incarnation, PeerLine] = {}
        self._loaded_s: dict[Incarnation, float] = {}
        """When each was heard last, of those that have told a load."""
        self._peers_told_s = float("-inf")
        self._facts: dict[bytes, FactsKnown] = {}
        """What each server has told of its machine; one that comes back is known."""
        self._prices: dict[bytes, MachinePrice] = {}
        """What the owner of each server says that it costs."""
        self._head = ChainGrown(0, b"")
        self._why_told = ""
        self._why_told_s = float("-inf")
        self._over = False
        """True if `Ended` was told; servers stay until their weights are fetched."""

    def on_report(self, report: Report, now_s: float) -> list[Event]:
        """Return what a report means to people and scripts."""
        seconds = now_s - self._begun_s if self._begun_s is not None else 0.0
        match report:
            case RunBegun() | StepDone() | RunFinished() | Leads() | ChainGrown():
                return self._on_run(report, now_s)
            case MemberJoined() | MemberReady() | MemberLost() | Loaded():
                return self._on_member(report, seconds, now_s)
            case FactsKnown():
                return self._on_facts(report, seconds)
            case ServerPriced(incarnation, price):
                self._on_price(incarnation.peer, price)
            case BalanceAsked():
                return self._why(report, seconds, now_s)
            case WentBack():
                self._forget_all()
                self._go_on_after(report.version, now_s)
            case Replayed():
                self._replayed += len(report.microbatches)
        event = self._alone(report)
        return [] if event is None else [dataclasses.replace(event, seconds=seconds)]

    def _on_run(self, report: RunReport, now_s: float) -> list[Event]:
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
            case ChainGrown():
                self._head = report
        return []

    def _leads(self, report: Leads, now_s: float) -> list[Event]:
        """This trainer coordinates the run: all members join it anew."""
        self._forget_all()
        if report.version == 0:  # no server has come yet, as is reported by itself
            return []
        self._go_on_after(report.version, now_s)
        if self._begun_s is None:  # another trainer made the steps before
            self._begun_s, self._first = now_s, report.version
        seconds = now_s - self._begun_s
        taken = LeadershipTaken(report.term, report.version, seconds=seconds)
        return [Started(self._parameters, seconds=seconds), taken]

    def _go_on_after(self, version: int, now_s: float) -> None:
        self._done, self._counted = version, version * self._size
        self._asked = self._counted + self._size * (version < self._steps)
        self._ended_s.clear()
        self._ended_s.append(now_s)

    def _on_member(self, report: MemberReport, seconds: float, now_s: float) -> list[Event]:
        """Tell of a server, and of all; not after each report of a load."""
        one, stage, name = report.incarnation, report.stage, self.name(report.incarnation.peer)
        server, told = short(one), list[Event]()
        match report:
            case MemberLost(reason=reason, voided=voided, why=why):
                self._peers.pop(one, None)
                self._loaded_s.pop(one, None)
                self._voided += voided
                told = [Left(server, stage, why, reason, voided, name, seconds=seconds)]
            case Loaded(load=load):
                if before := self._peers.get(one):
                    self._loaded_s[one] = now_s
                    self._peers[one] = line_of(
                        server, stage, load, ready=before.ready, counted=before.counted
                    )
                every_s = max(PEERS_EVERY_S, len(self._peers) / PEERS_PER_S)
                if self._over or now_s < self._peers_told_s + every_s:
                    return []
            case MemberJoined():
                self._peers[one] = PeerLine(server, stage, ready=False, queued=0, rate_per_s=0.0)
                told = [Joined(server, stage, name, seconds=seconds)]
            case MemberReady():
                self._peers[one] = PeerLine(server, stage, ready=True, queued=0, rate_per_s=0.0)
                told = [Serving(server, stage, name, seconds=seconds)]
        if self._over:
            return told
        self._peers_told_s = now_s
        return [*told, Peers(tuple(self._lines(now_s)), seconds=seconds)]

    def _forget_all(self) -> None:
        """All members join anew."""
        self._peers.clear()
        self._loaded_s.clear()

    def _lines(self, now_s: float) -> Iterator[PeerLine]:
        """All servers; one that has fallen silent counts nothing, whatever it told last."""
        for one, line in self._peers.items():
            changed: dict[str, Any] = {}
            if now_s > self._loaded_s.get(one, now_s) + LOAD_OLD_S:
                changed["rate_per_s"] = 0.0
            if (price := self._prices.get(one.peer)) is not None:
                changed |= {"price_per_hour": price.per_hour, "currency": price.currency}
            yield dataclasses.replace(line, **changed) if changed else line

    def _on_price(self, peer: bytes, price: MachinePrice) -> None:
        """Remember a price that is one; a machine of its owner's own has none."""
        self._prices.pop(peer, None)
        if price.per_hour:
            self._prices[peer] = price
        if len(self._prices) > MEMBERS_MAX:
            del self._prices[next(iter(self._prices))]

    def _on_facts(self, report: FactsKnown, seconds: float) -> list[Event]:
        """Tell of a machine once; an incarnation that says more than once is not heard."""
        peer, facts = report.incarnation.peer, report.facts
        known = self._facts.get(peer)
        if known is not None and known.incarnation == report.incarnation:
            return []
        self._facts.pop(peer, None)
        self._facts[peer] = report
        if len(self._facts) > MEMBERS_MAX:
            del self._facts[next(iter(self._facts))]
        if known is not None and known.facts == facts:
            return []
        name, device, region, software = map(
            printable, (facts.name, facts.processor, facts.region, facts.software)
        )
        server, threads = PeerId(peer).short, facts.threads
        return [MachineFacts(server, name, device, threads, region, software, seconds=seconds)]

    def _why(self, report: BalanceAsked, seconds: float, now_s: float) -> list[Event]:
        """Tell why nobody moves, if another reason than before holds."""
        rates = tuple(rounded(one.rate_per_s) for one in report.stages)
        measured = bool(rates) and any(one.ready > one.unmeasured for one in report.stages)
        slowest = rates.index(min(rates)) if measured else None
        reason = f"{slowest} {NUMBER.sub('#', report.decision.why)}"
        if reason == self._why_told or now_s < self._why_told_s + WHY_EVERY_S:
            return []
        self._why_told, self._why_told_s = reason, now_s
        return [Why(report.decision.why, rates, slowest, seconds=seconds)]

    def _stepped(self, report: StepDone, now_s: float) -> Stepped:
        self._done = report.step + 1
        self._counted += report.microbatches - len(report.quarantined)
        self._quarantined += len(report.quarantined)
        if self._done < self._steps:
            self._asked += self._size
        for one, count in report.counted:
            if before := self._peers.get(one):
                self._peers[one] = dataclasses.replace(before, counted=before.counted + count)
        took_s = now_s - self._ended_s[-1] if self._ended_s else 0.0
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
            took_s,
            report.equal,
            report.compared,
            self._head.height,
            self._head.head.hex()[:HEAD_DIGITS],
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
        return MicrobatchCounts(
            self._asked, self._counted, self._replayed, self._quarantined, self._voided
        )

    def name(self, peer: bytes) -> str:
        """Return what a server's owner calls its machine; empty if it did not say."""
        known = self._facts.get(peer)
        return printable(known.facts.name) if known else ""

    def named(self, text: str, peers: Sequence[bytes]) -> str:
        """Return a text with the names of machines behind the short ids of these peers."""
        return with_names(text, {PeerId(peer).short: self.name(peer) for peer in peers})

    def _alone(self, report: Report) -> Event | None:
        """Return what a report means that nothing is added to; None: nothing."""
        event: Event | None = None
        match report:
            case Event():
                event = report
            case OrderedMove(incarnation, source, target, gain, away_s, planned):
                event = Relocated(short(incarnation), source, target, gain, away_s, planned)
            case Replayed(microbatches=again, reason=reason):
                event = MicrobatchesAgain(self._done, len(again), reason)
            case WentBack(version, before):
                event = RolledBack(version, before)
            case SteppedDown() | StandbyTaken():
                event = StoodBy("", report.text)
            case TrainerEnlisted(peer):
                event = StoodBy(PeerId(peer).short, report.text)
            case _ if report.text:
                named = {short(one): self.name(one.peer) for one in incarnations(report)}
                kind = type(report).__name__.lower()
                event = Note(with_names(report.text, named), kind, tuple(named))
        return event


def incarnations(value: Any) -> Iterator[Incarnation]:
    """All that a report names."""
    if isinstance(value, Incarnation):
        yield value
    elif isinstance(value, tuple):
        for each in value:
            yield from incarnations(each)
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from incarnations(getattr(value, field.name))


def with_names(text: str, names: Mapping[str, str]) -> str:
    """A text in which the names of machines stand behind the short ids of their servers."""
    for server, name in names.items():
        text = text.replace(server, called(server, name), 1)
    return text
