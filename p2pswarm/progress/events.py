"""The events that a trainer reports about its run, one JSON object per line.

Units:   `seconds` since the first step began, 0 before it; losses in nats per byte.
Errors:  ValueError for a line that is no event.
"""

import dataclasses
import json
from dataclasses import dataclass
from typing import Any


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
    """So many of its links to the trainer and other servers lead to them directly."""
    mapped: int = 0
    """And so many through a router that forwards a port."""
    punched: int = 0
    relayed: int = 0


@dataclass(frozen=True, slots=True)
class Waiting:
    """The run waits for servers of these stages; if there are none, it goes on."""

    seconds: float
    stages: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Started:
    """The first step begins."""

    seconds: float
    parameters: int


@dataclass(frozen=True, slots=True)
class Stepped:
    """A step is committed."""

    seconds: float
    step: int
    """The number of steps done: 1 after the first."""
    loss: float
    tokens_per_s: float
    """The rate over the last steps."""
    learning_rate: float
    gradient_norm: float
    counts: MicrobatchCounts


@dataclass(frozen=True, slots=True)
class HeldOut:
    """The loss on text that is never trained on."""

    seconds: float
    step: int
    nats_per_token: float
    """Of a run without a tokenizer a token is a byte."""


@dataclass(frozen=True, slots=True)
class Checkpointed:
    """The whole state of the run after a step is saved."""

    seconds: float
    step: int
    place: str
    """The checkpoint's folder or URL."""
    took_s: float


@dataclass(frozen=True, slots=True)
class Peers:
    """The servers of the run."""

    seconds: float
    peers: tuple[PeerLine, ...]


@dataclass(frozen=True, slots=True)
class Relocated:
    """A server is sent to another stage."""

    seconds: float
    server: str
    """The short form of its peer id."""
    source: int
    target: int
    gain: float
    """What everybody gains by the plan that it is a part of, as a share."""
    away_s: float
    """How long it computes nothing."""
    planned: int
    """Moves of that plan."""


@dataclass(frozen=True, slots=True)
class Note:
    """A message for people."""

    seconds: float
    text: str


@dataclass(frozen=True, slots=True)
class Ended:
    """The run is over."""

    seconds: float
    step: int
    reason: str
    failed: bool
    tokens_per_s: float
    """The rate over the whole run."""
    counts: MicrobatchCounts


Event = Waiting | Started | Stepped | HeldOut | Checkpointed | Peers | Relocated | Note | Ended
KINDS: dict[str, type[Event]] = {
    kind.__name__.lower(): kind
    for kind in (Waiting, Started, Stepped, HeldOut, Checkpointed, Peers, Relocated, Note, Ended)
}


def checkpoint_text(event: Checkpointed) -> str:
    """A checkpoint as people read it."""
    return f"checkpoint of step {event.step} in {event.took_s:.1f} s: {event.place}"


def relocated_text(event: Relocated) -> str:
    """A move as people read it."""
    worth = worth_text(event.gain, event.planned, event.away_s)
    return f"{event.server} moves from stage {event.source} to {event.target}: {worth}"


def gain_text(gain: float) -> str:
    """What a move brings, as a share."""
    return f"{100 * gain:+.0f} % for everybody"


def worth_text(gain: float, planned: int, away_s: float) -> str:
    """What a move brings and what it costs."""
    more = f" with {planned - 1} more" if planned > 1 else ""
    return f"{gain_text(gain)}{more}, costs {seconds_text(away_s)} of its time"


def seconds_text(seconds: float) -> str:
    """A time that is short or long: 0.02 s, 0.5 s, 40 s."""
    return f"{seconds:.1g} s" if seconds < 1 else f"{seconds:.0f} s"


def to_line(event: Event) -> str:
    """An event as one line of JSON, without the line end."""
    fields = {"event": type(event).__name__.lower(), **dataclasses.asdict(event)}
    return json.dumps(fields, separators=(",", ":"))


def from_line(line: str) -> Event:
    """Read an event that `to_line` wrote; ValueError for any other line."""
    try:
        fields: Any = json.loads(line)
        kind = KINDS[fields.pop("event")]
        if "counts" in fields:
            fields["counts"] = MicrobatchCounts(**fields["counts"])
        if "peers" in fields:
            fields["peers"] = tuple(PeerLine(**peer) for peer in fields["peers"])
        if "stages" in fields:
            fields["stages"] = tuple(fields["stages"])
        return kind(**fields)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"not an event of a run: {line[:80]!r}") from error
