"""RunView: a run as its events tell it, in bounded memory, for all that show one.

The page of a terminal, the page of a browser, `/metrics` and `p2pswarm watch` are drawn from it. It
takes events one by one, of one node or of several, and reads no clock: `now_s` is the wall clock of
who looks, and in a replay that of the newest event. So a replay shows what was shown live.

Units:   `at` and `now_s` in seconds since 1970; losses in nats per token.
"""

import dataclasses
from collections import deque
from dataclasses import dataclass
from typing import Any

from p2pswarm.progress.budget import per_million
from p2pswarm.progress.cost_events import CostSoFar
from p2pswarm.progress.curve_points import CurvePoint, ThinnedCurve
from p2pswarm.progress.event_lines import EventLine
from p2pswarm.progress.events import (
    Begun,
    Checkpointed,
    CheckpointFailed,
    Ended,
    Event,
    HeldOut,
    Joined,
    LeadershipTaken,
    Left,
    MachineFacts,
    MicrobatchCounts,
    Peers,
    Phases,
    Relocated,
    RolledBack,
    Serving,
    Started,
    Stepped,
    Waiting,
    Why,
    name_of,
)
from p2pswarm.progress.servers_view import (
    CURRENCY_CHARS,
    NAME_CHARS,
    NUMBER_MAX,
    STAGES_MAX,
    ServersView,
    plain_number,
    shown,
)
from p2pswarm.progress.step_pace import StepPace
from p2pswarm.progress.step_view import StepView
from p2pswarm.progress.time_left import EndEstimate, TimeLeft

EVENTS_KEPT = 1_000  # what a developer scrolls through; 500 bytes each
EVENTS_SHOWN = 100  # in a snapshot, if nobody asks for more
TEXT_CHARS = 500  # of an event's sentence
STALL_LEAST_S = 1.0  # steps of milliseconds vary more than threefold, and nobody minds
STALLS_MAX = 100
NODES_MAX = 256  # whose newest event is remembered
HOUR_S = 3_600.0
HOURS_MAX = 48  # since last evening, also after a day away
Snapshot = dict[str, Any]
"""A run at one moment, as `RunView.to_json` has it; docs/watch.md has its fields."""
FIGURE_EVENTS = (Stepped, Peers, HeldOut, MachineFacts, CostSoFar, Phases)
"""Events that are figures; all others are sentences in the list of events."""


@dataclass(frozen=True, slots=True)
class ShownEvent:
    """An event as a list shows it."""

    at: float
    by: str
    n: int
    event: str
    """Its name in JSON."""
    text: str


@dataclass(slots=True)
class StepStall:
    """A step that took far longer than others."""

    step: int
    """The number of steps done before."""
    since: float
    """When the step before was committed."""
    until: float | None
    """When it was; None: it goes on."""
    waiting: tuple[int, ...]
    """The stages for whose servers the run waited."""


@dataclass(slots=True)
class _NodeRow:
    """One process that tells events."""

    role: str = ""
    name: str = ""
    software: str = ""
    at: float = 0.0
    """When its newest event was told."""
    events: int = 0
    replayed: int = 0
    """The newest count that it told; it begins anew with the process."""
    voided: int = 0


@dataclass(slots=True)
class _Hour:
    """What happened in an hour."""

    at: float
    steps: int = 0
    joined: int = 0
    lost: int = 0
    moved: int = 0
    again: int = 0
    """Microbatches that were sent again."""


class RunView:
    """One run; see the module."""

    def __init__(self) -> None:
        self.begun: Begun | None = None
        """The run's figures, of the last process that told them."""
        self.run = ""
        self.servers = ServersView()
        self.stepped: Stepped | None = None
        self.held_out: HeldOut | None = None
        self.ended: Ended | None = None
        self.waiting: tuple[int, ...] = ()
        self.waiting_since: float | None = None
        self.why = ""
        self.slowest: int | None = None
        """The stage that the run is as fast as."""
        self.again = self.voided = self.moved = 0
        """Microbatches that were sent again, or counted anew; moves."""
        self.cost: CostSoFar | None = None
        """What the run has cost, as its trainer told last."""
        self._time_left = TimeLeft()
        self.newest_at: float | None = None
        """The wall clock of the newest event."""
        self._began: float | None = None
        """When the first step began, as far as events tell."""
        self._committed: float | None = None
        """When the newest step was committed, or the first one began."""
        self._saved: Checkpointed | None = None
        self._saved_at: float | None = None
        self._unsaved = ""
        self.pace = StepPace(STALL_LEAST_S)
        """How long its steps take, and from when on one stands still."""
        self._curves = {name: ThinnedCurve() for name in ("loss", "held_out", "tokens_per_s")}
        self._events: deque[ShownEvent] = deque(maxlen=EVENTS_KEPT)
        self._stalls: deque[StepStall] = deque(maxlen=STALLS_MAX)
        self._stalls_in_all = 0
        self._steps = StepView()
        self._nodes: dict[str, _NodeRow] = {}
        self._hours: deque[_Hour] = deque(maxlen=HOURS_MAX)

    def on_event(self, told: EventLine) -> None:
        """Take the next event."""
        at, event = told.at, told.event
        self.newest_at = at
        self.run = told.run or self.run
        node = self._node(told.by)
        node.at, node.events = at, node.events + 1
        match event:
            case Begun():
                self._on_begun(event, node, at)
            case Started():
                self._begin(at)
            case Stepped():
                self._on_step(event, node, at)
            case HeldOut():
                self.held_out = event
                self._curves["held_out"].add(event.step, at, event.nats_per_token)
            case Waiting():
                self._wait(event.stages, at)
            case CostSoFar():
                self.cost = event
            case Peers(peers=(line,)) if line.peer == told.by and node.role != "trainer":
                led = any(one.role == "trainer" for one in self._nodes.values())
                self.servers.on_own(line, at, led=led)
            case Peers() | MachineFacts() | Joined() | Serving() | Left():
                self._on_servers(event, at)
            case _:
                self._on_other(event, at)
        self._steps.on_event(event, at)
        if not isinstance(event, FIGURE_EVENTS):
            text = shown(event.text, TEXT_CHARS)
            name, by = name_of(type(event)), shown(told.by, NAME_CHARS)
            self._events.append(ShownEvent(at, by, told.n, name, text))

    def committed_ago_s(self, now_s: float) -> float | None:
        """How long ago the newest step was committed; None before the first one."""
        if self.stepped is None or self._committed is None:
            return None
        return max(0.0, now_s - self._committed)

    def is_stalled(self, now_s: float) -> bool:
        """Return whether the present step takes far longer than others."""
        ago_s, stall_s = self.committed_ago_s(now_s), self.pace.stall_s
        return not self.ended and ago_s is not None and stall_s is not None and ago_s > stall_s

    def tokens_per_s(self, now_s: float) -> float:
        """The rate over the last steps; 0 if the newest is older than three steps take."""
        if self.stepped is None or self.ended or self.is_stalled(now_s):
            return 0.0
        return plain_number(self.stepped.tokens_per_s) or 0.0

    def state(self, now_s: float) -> str:
        """The run in a word: starting, waiting, training, stalled, ended or failed."""
        if self.ended:
            return "failed" if self.ended.failed else "ended"
        if self.waiting:
            return "waiting"
        if self._began is None and self.stepped is None:
            return "starting"
        return "stalled" if self.is_stalled(now_s) else "training"

    def stalls(self, now_s: float) -> list[StepStall]:
        """The steps that took far longer than others, the newest last; one may go on."""
        found = list(self._stalls)
        if self.is_stalled(now_s) and self.stepped and self._committed is not None:
            found.append(StepStall(self.stepped.step, self._committed, None, self.waiting))
        return found

    @property
    def counts(self) -> MicrobatchCounts:
        """The numbers of microbatches, as the newest step has them."""
        newest = self.ended or self.stepped
        return newest.counts if newest else MicrobatchCounts(0, 0, 0)

    @property
    def step(self) -> int:
        """The number of steps done."""
        if self.stepped is not None:
            return self.stepped.step
        return self.begun.done if self.begun else 0

    def to_json(self, now_s: float, events: int = EVENTS_SHOWN, *, curves: bool = True) -> Snapshot:
        """The run at `now_s` as plain values that JSON has, of bounded size.

        `events`: how many of the newest events are in it; `curves`: they are most of its bytes.
        """
        step, begun = self.stepped, self.begun
        ago_s = self.committed_ago_s(now_s)
        return {
            "at": now_s,
            "run": self.run,
            "name": shown(begun.run_name, NAME_CHARS) if begun else "",
            "state": self.state(now_s),
            "newest_age_s": None if self.newest_at is None else max(0.0, now_s - self.newest_at),
            "step": self.step,
            "steps": begun.steps if begun else 0,
            "step_tokens": begun.step_tokens if begun else 0,
            "microbatches": begun.microbatches if begun else 0,
            "parameters": begun.parameters if begun else 0,
            "model": shown(begun.model, NAME_CHARS) if begun else "",
            "optimizer": shown(begun.optimizer, NAME_CHARS) if begun else "",
            "codecs": [shown(each, NAME_CHARS) for each in begun.codecs[:8]] if begun else [],
            "software": shown(begun.software, NAME_CHARS) if begun else "",
            "loss": plain_number(step.loss) if step else None,
            "held_out": plain_number(self.held_out.nats_per_token) if self.held_out else None,
            "learning_rate": plain_number(step.learning_rate) if step else None,
            "gradient_norm": plain_number(step.gradient_norm) if step else None,
            "tokens_per_s": self.tokens_per_s(now_s),
            "whole_tokens_per_s": plain_number(self.ended.tokens_per_s) if self.ended else None,
            "usual_step_s": self.pace.usual_s,
            "began": self._began,
            "committed": self._committed if step else None,
            "committed_ago_s": ago_s,
            "counts": dataclasses.asdict(self.counts),
            "exactness": {
                "equal": step.equal if step else 0,
                "compared": step.compared if step else 0,
                "height": step.height if step else 0,
                "head": shown(step.head, NAME_CHARS) if step else "",
            },
            "waiting": {"stages": list(self.waiting), "since": self.waiting_since},
            "why": self.why,
            "phases": self._steps.phases(self.servers.name),
            "waits": self._steps.waits(),
            "slowest": self.slowest,
            "stages": self._stage_rows(now_s),
            "servers": self.servers.rows(now_s),
            "links": self.servers.links(),
            "checkpoint": {
                "step": self._saved.step if self._saved else None,
                "at": self._saved_at,
                "place": shown(self._saved.place) if self._saved else "",
                "failure": self._unsaved,
            },
            "totals": self._totals(now_s),
            "stalls": [_stall(each, now_s) for each in self.stalls(now_s)],
            "curves": self.curves() if curves else {},
            "hours": [dataclasses.asdict(hour) for hour in self._hours],
            "nodes": {by: dataclasses.asdict(node) for by, node in self._nodes.items()},
            "ended": shown(self.ended.outcome) if self.ended else "",
            **self._outlook(now_s),
            "events": self.events(events),
        }

    def curves(self) -> dict[str, list[list[float]]]:
        """Each curve as points of step, time and value."""
        return {name: _points(curve.points) for name, curve in self._curves.items()}

    def events(self, most: int = EVENTS_KEPT) -> list[dict[str, Any]]:
        """The newest events that are sentences, the newest last."""
        newest = list(self._events)[-most:] if most > 0 else []
        return [dataclasses.asdict(one) for one in newest]

    def _on_begun(self, event: Begun, node: _NodeRow, at: float) -> None:
        node.role, node.name = shown(event.role, NAME_CHARS), shown(event.name, NAME_CHARS)
        node.software = shown(event.software, NAME_CHARS)
        known = self.begun
        if event.stages and (known is None or not known.parameters or event.parameters):
            self.begun = event
            self.servers.begin(event.stages, at)
        elif known is None:
            self.begun = event

    def estimate(self, now_s: float) -> EndEstimate | None:
        """When the run is done; None if it is over, or nothing can be said yet."""
        if self.ended or self.begun is None:
            return None
        return self._time_left.estimate(now_s, self.begun.steps)

    def _outlook(self, now_s: float) -> dict[str, Any]:
        """What the run has cost, and when it is done by the wall clock."""
        found = self.estimate(now_s)
        eta = found and {
            "at": now_s + found.left_s,
            "earliest": now_s + found.earliest_s,
            "latest": now_s + found.latest_s,
            "left_s": found.left_s,
            "spread_s": found.spread_s,
        }
        spent = plain_number(self.cost.total) if self.cost else None
        return {"spent": spent, "cost": _cost(self.cost) if self.cost else None, "eta": eta}

    def _begin(self, at: float) -> None:
        self._time_left.begin(at, self.step)
        self._wait((), at)
        self.ended = None
        self._began = at if self._began is None else self._began
        self._committed = at

    def _wait(self, stages: tuple[int, ...], at: float) -> None:
        if bool(stages) != bool(self.waiting):
            self.waiting_since = at if stages else None
        self.waiting = stages[:STAGES_MAX]

    def _on_step(self, event: Stepped, node: _NodeRow, at: float) -> None:
        last, committed = self.stepped, self._committed
        if last is not None and event.step == last.step and at < (committed or 0.0) + STALL_LEAST_S:
            return  # a new coordinator tells the step that it has of the one before
        self.ended = None
        took_s = event.took_s if 0 < event.took_s < NUMBER_MAX else at - (committed or at)
        if took_s > 0 and committed is not None:
            stall_s = self.pace.stall_s
            if stall_s is not None and took_s > stall_s:
                done = last.step if last else 0
                self._stalls.append(StepStall(done, at - took_s, at, self.waiting))
                self._stalls_in_all += 1
            self.pace.add(took_s)
        self._began = at - took_s if self._began is None else self._began
        self.stepped, self._committed = event, at
        self._time_left.on_step(at, event.step)
        self._curves["loss"].add(event.step, at, event.loss)
        self._curves["tokens_per_s"].add(event.step, at, event.tokens_per_s)
        hour = self._hour(at)
        hour.steps += 1
        counts = event.counts
        again = _grown(node.replayed, counts.replayed)
        hour.again += again
        self.again += again
        self.voided += _grown(node.voided, counts.voided)
        node.replayed, node.voided = counts.replayed, counts.voided

    def _on_servers(self, event: Peers | MachineFacts | Joined | Serving | Left, at: float) -> None:
        match event:
            case Peers():
                self.servers.on_peers(event, at)
            case MachineFacts():
                self.servers.on_facts(event)
            case Joined():
                self.servers.on_joined(event, at)
                self._hour(at).joined += 1
            case Serving():
                self.servers.on_serving(event, at)
            case Left():
                self.servers.on_left(event, at)
                self._hour(at).lost += event.why != "moved"
                if event.why != "moved":
                    self._time_left.on_loss()

    def _on_other(self, event: Event, at: float) -> None:
        match event:
            case LeadershipTaken():
                self.servers.on_leader(at)
            case RolledBack():
                self.servers.on_leader(at)
                self._time_left.on_step(at, event.step)
                for curve in self._curves.values():
                    curve.cut(event.step)
            case Relocated():
                self.moved += 1
                self._hour(at).moved += 1
            case Checkpointed():
                self._saved, self._saved_at, self._unsaved = event, at, ""
            case CheckpointFailed():
                self._unsaved = shown(event.text)
            case Why():
                self.why, self.slowest = shown(event.text), event.slowest
            case Ended():
                self.ended = event
                self._wait((), at)

    def _node(self, by: str) -> _NodeRow:
        name = shown(by, NAME_CHARS)
        node = self._nodes.pop(name, None) or _NodeRow()
        self._nodes[name] = node
        if len(self._nodes) > NODES_MAX:
            del self._nodes[next(iter(self._nodes))]
        return node

    def _hour(self, at: float) -> _Hour:
        """The hour of an event; files of several clocks may go back a little."""
        begin = at // HOUR_S * HOUR_S
        found = next((hour for hour in reversed(self._hours) if hour.at == begin), None)
        if found is None:
            found = _Hour(begin)
            self._hours.append(found)
        return found

    def _totals(self, now_s: float) -> dict[str, Any]:
        return {
            "joined": self.servers.joined,
            "left": dict(self.servers.left),
            "moved": self.moved,
            "again": self.again,
            "voided": self.voided,
            "stalls": self._stalls_in_all + self.is_stalled(now_s),
        }

    def _stage_rows(self, now_s: float) -> list[dict[str, Any]]:
        cut = self.begun.cut if self.begun else ()
        rows = self.servers.stages(now_s)
        for number, row in enumerate(rows):
            row["blocks"] = cut[number] if number < len(cut) else None
            row["slowest"] = number == self.slowest
        return rows


def _grown(before: int, now: int) -> int:
    """How much a count has grown, which begins anew with its process."""
    return now - before if now >= before else now


def _cost(cost: CostSoFar) -> dict[str, Any]:
    """What a run has cost, as plain values; sums that a hostile log has are left out."""
    fields = dataclasses.asdict(cost) | {"total": cost.total, "wasted": cost.wasted}
    del fields["seconds"]
    numbers = {name: plain_number(value) for name, value in fields.items() if name != "currency"}
    return {
        "currency": shown(cost.currency, CURRENCY_CHARS),
        **numbers,
        "paid_per_mtoken": plain_number(per_million(cost.total, cost.tokens)),
        "useful_per_mtoken": plain_number(per_million(cost.total - cost.wasted, cost.tokens)),
    }


def _stall(stall: StepStall, now_s: float) -> dict[str, Any]:
    until = now_s if stall.until is None else stall.until
    return {
        "step": stall.step,
        "since": stall.since,
        "until": stall.until,
        "seconds": max(0.0, until - stall.since),
        "waiting": list(stall.waiting),
    }


def _points(points: list[CurvePoint]) -> list[list[float]]:
    return [[one.step, one.at, one.value] for one in points]
