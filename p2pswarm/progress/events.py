"""Reports of a run: each has a sentence for people, and an event a line of JSON as well.

Units:   seconds since the first step began, 0 before it; losses in nats per byte.
"""

import dataclasses
import functools
import json
import typing
from dataclasses import dataclass, field
from typing import Any

from p2pswarm.progress.budget import money, per_million


class Report:
    """Something that a run reports."""

    __slots__ = ()

    @property
    def text(self) -> str:
        """The sentence for people; "" for figures that only become a part of an event."""
        return ""


KINDS: dict[str, type["Event"]] = {}
"""The kinds of events by their names in JSON; each class of an event adds itself."""


@dataclass(frozen=True, slots=True)
class Event(Report):
    """A report that scripts read: `to_line` writes all of its fields.

    A subclass needs its fields and its `text`; its name in JSON is that of the class.
    """

    seconds: float = field(default=0.0, kw_only=True)
    """Time since the first step began."""

    def __init_subclass__(cls) -> None:
        KINDS[cls.__name__.lower()] = cls


@dataclass(frozen=True, slots=True)
class MicrobatchCounts:
    """The numbers of microbatches so far."""

    asked: int
    """The microbatches of all steps that have begun; every stage is to count each once."""
    counted: int
    """The microbatches of committed steps that every stage has counted, each once."""
    replayed: int
    """The attempts beyond the first one of each microbatch."""
    quarantined: int = 0
    """The microbatches of committed steps that no stage counts, because they are not finite."""


@dataclass(frozen=True, slots=True)
class PeerLine:
    """One server, as the trainer sees it."""

    peer: str
    """The short form of its peer id."""
    stage: int
    ready: bool
    queued: int
    rate_per_s: float
    """Microbatches counted per second."""
    direct: int = 0
    """Number of its links to the trainer and other servers that lead to them directly."""
    mapped: int = 0
    """Number of those through a router that forwards a port."""
    punched: int = 0
    relayed: int = 0


@dataclass(frozen=True, slots=True)
class Waiting(Event):
    """The run waits for servers of these stages; if there are none, it goes on."""

    stages: tuple[int, ...]

    @property
    def text(self) -> str:
        if not self.stages:
            return "every stage is served"
        return f"waiting for a server of stage {', '.join(map(str, self.stages))}"


@dataclass(frozen=True, slots=True)
class Started(Event):
    """The first step begins."""

    parameters: int

    @property
    def text(self) -> str:
        return f"training begins: {self.parameters:,} parameters"


@dataclass(frozen=True, slots=True)
class Stepped(Event):
    """A step is committed."""

    step: int
    """The number of steps done: 1 after the first."""
    loss: float
    tokens_per_s: float
    """The rate over the last steps."""
    learning_rate: float
    gradient_norm: float
    counts: MicrobatchCounts

    @property
    def text(self) -> str:
        figures = _figures(self.tokens_per_s, self.counts)
        return f"step {self.step:5}  loss {self.loss:.4f}{figures}"


@dataclass(frozen=True, slots=True)
class HeldOut(Event):
    """The loss on text that is never trained on."""

    step: int
    nats_per_token: float
    """Of a run without a tokenizer a token is a byte; of pairs of answers it is nats per pair."""
    preferred: float | None = None
    """The share of held-out pairs whose chosen answer is preferred; None: they are no pairs."""

    @property
    def text(self) -> str:
        before = f"step {self.step:5}  held-out loss {self.nats_per_token:.4f}"
        if self.preferred is None:
            return f"{before} nats/token"
        return f"{before} nats/pair, {self.preferred:.1%} of the chosen answers preferred"


@dataclass(frozen=True, slots=True)
class Checkpointed(Event):
    """The whole state of the run after a step is saved."""

    step: int
    place: str
    """The checkpoint's folder or URL."""
    took_s: float
    """From the request to the end."""

    @property
    def text(self) -> str:
        return f"checkpoint of step {self.step} in {self.took_s:.1f} s: {self.place}"


@dataclass(frozen=True, slots=True)
class Peers(Event):
    """The servers of the run."""

    peers: tuple[PeerLine, ...]

    @property
    def text(self) -> str:
        return f"{len(self.peers)} servers"


@dataclass(frozen=True, slots=True)
class Relocated(Event):
    """A server is sent to another stage."""

    server: str
    """The short form of its peer id."""
    source: int
    target: int
    gain: float
    """Everybody's gain by the plan that it is a part of, as a share."""
    away_s: float
    """Time in which it computes nothing."""
    planned: int
    """Moves of that plan."""

    @property
    def text(self) -> str:
        worth = worth_text(self.gain, self.planned, self.away_s)
        return f"{self.server} moves from stage {self.source} to {self.target}: {worth}"


@dataclass(frozen=True, slots=True)
class Note(Event):
    """A message for people."""

    text: str = field()  # without `field()` the property of `Report` would be its default


@dataclass(frozen=True, slots=True)
class Ended(Event):
    """The run is over."""

    step: int
    reason: str
    failed: bool
    tokens_per_s: float
    """The rate over the whole run."""
    counts: MicrobatchCounts

    @property
    def outcome(self) -> str:
        """Return how the run ended, without figures."""
        return f"{'failed' if self.failed else 'done'} after {self.step} steps: {self.reason}"

    @property
    def text(self) -> str:
        return self.outcome + _figures(self.tokens_per_s, self.counts)


# Money.


@dataclass(frozen=True, slots=True)
class Cost(Event):
    """What the run has cost by the prices that its machines have told, as the trainer adds it up."""

    currency: str
    trainer: float
    """Of the trainers."""
    invited: float
    """Of servers that the run's owner has invited."""
    others: float
    """Of other servers, as far as it counts."""
    uncounted: float
    """What other servers have said beyond that."""
    joining: float
    """Of what counts, wasted while servers fetched their weights;"""
    idle: float
    """while servers that were ready computed nothing;"""
    again: float
    """for what was computed again;"""
    after_end: float
    """after the last step."""
    tokens: float
    """Of the steps that this bought."""
    per_hour: float
    """The present price."""
    budget: float = 0.0
    """0: there is none."""

    @property
    def total(self) -> float:
        """All that counts."""
        return self.trainer + self.invited + self.others

    @property
    def wasted(self) -> float:
        """What brought no step on."""
        return min(self.total, self.joining + self.idle + self.again + self.after_end)

    @property
    def text(self) -> str:
        so_far = f"cost: {money(self.total, self.currency)} so far"
        if self.budget:
            so_far += f" of {money(self.budget, self.currency)}"
        parts = [so_far, f"{money(self.per_hour, self.currency)} an hour"]
        paid = per_million(self.total, self.tokens)
        useful = per_million(self.total - self.wasted, self.tokens)
        if paid is not None and useful is not None:
            each = f"{money(paid, self.currency)} a million tokens"
            parts.append(f"{each}, {money(useful, self.currency)} without what is wasted")
        shares = {
            "joining": self.joining,
            "idle": self.idle,
            "computed again": self.again,
            "after the end": self.after_end,
        }
        wasted = [f"{name} {part / self.total:.1%}" for name, part in shares.items() if part]
        if wasted and self.total:
            parts.append(f"wasted: {', '.join(wasted)}")
        return ", ".join(parts)


@dataclass(frozen=True, slots=True)
class BudgetReached(Event):
    """So much of the budget is spent that its owner is told, or all of it."""

    total: float
    budget: float
    currency: str
    per_hour: float
    over: bool
    """The run is saved and ends."""

    @property
    def text(self) -> str:
        budget, total = money(self.budget, self.currency), money(self.total, self.currency)
        if self.over:
            return (
                f"the budget of {budget} is spent ({total}): the run is saved and ends; to go on, "
                "raise train.budget"
            )
        left = f"{total} of the budget of {budget} are spent"
        if not self.per_hour:
            return left
        hours = (self.budget - self.total) / self.per_hour
        return f"{left}; at {money(self.per_hour, self.currency)} an hour it lasts {hours:.1f} h"


def _figures(tokens_per_s: float, counts: MicrobatchCounts) -> str:
    return f"  {tokens_per_s:7.0f} tokens/s  counted {counts.counted}  replayed {counts.replayed}"


def gain_text(gain: float) -> str:
    """Return what a move brings, as a share."""
    return f"{100 * gain:+.0f} % for everybody"


def worth_text(gain: float, planned: int, away_s: float) -> str:
    """Return what a move brings and what it costs."""
    more = f" with {planned - 1} more" if planned > 1 else ""
    return f"{gain_text(gain)}{more}, costs {seconds_text(away_s)} of its time"


def seconds_text(seconds: float) -> str:
    """A time that is short or long: 0.02 s, 0.5 s, 40 s."""
    return f"{seconds:.1g} s" if seconds < 1 else f"{seconds:.0f} s"


def to_line(event: Event, at: str = "") -> str:
    """An event as one line of JSON, without the line end; `at`: its date and time, if not empty."""
    fields = {"event": type(event).__name__.lower(), **dataclasses.asdict(event)}
    return json.dumps(fields | ({"at": at} if at else {}), separators=(",", ":"))


def from_line(line: str) -> Event:
    """Read an event that `to_line` wrote; ValueError for any other line."""
    try:
        fields: Any = json.loads(line)
        fields.pop("at", None)  # of people and of other programs: a run knows no dates
        event: Event = _read(KINDS[fields.pop("event")], fields)
    except (
        AttributeError,
        KeyError,
        TypeError,
        ValueError,
        OverflowError,
        RecursionError,
    ) as error:
        raise ValueError(f"not an event of a run: {line[:80]!r}") from error
    return event


def _read(kind: Any, value: Any) -> Any:
    """A value of the type `kind` from JSON, which has neither dataclasses nor tuples."""
    if typing.get_origin(kind) is tuple:
        return tuple(_read(typing.get_args(kind)[0], each) for each in value)
    if type(None) in (given := typing.get_args(kind)):
        return None if value is None else _read(given[0], value)
    if kind is float and type(value) is int:
        return float(value)
    if not dataclasses.is_dataclass(kind):
        if type(value) is not kind:
            raise TypeError(f"{value!r:.40} is no {kind.__name__}")
        return value
    make: Any = kind
    types = _types(make)
    return make(**{name: _read(types[name], each) for name, each in value.items()})


@functools.cache
def _types(kind: Any) -> dict[str, Any]:
    return typing.get_type_hints(kind)
