"""What a trainer tells about its run, one JSON object a line.

Units:   `seconds` since the first step began, 0 before; losses in nats per byte.
Errors:  ValueError for a line that is none of these.
"""

import dataclasses
import json
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class MicrobatchCounts:
    """What became of the microbatches so far."""

    asked: int
    """Microbatches of the steps begun: each is to count once in every stage."""
    counted: int
    """Of these, the ones whose step is committed: all stages counted them, each once."""
    replayed: int
    """Ways through the pipeline beyond the first."""


@dataclass(frozen=True, slots=True)
class PeerLine:
    """One server as the trainer sees it."""

    peer: str
    """The short id."""
    stage: int
    ready: bool
    queued: int
    rate_per_s: float
    """Microbatches counted per second."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """The run waits for servers of these stages; none: it waits no more."""

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
    """Steps done: 1 after the first."""
    loss: float
    tokens_per_s: float
    """Over the last steps."""
    learning_rate: float
    gradient_norm: float
    counts: MicrobatchCounts


@dataclass(frozen=True, slots=True)
class HeldOut:
    """The loss on text that is never trained on."""

    seconds: float
    step: int
    nats_per_byte: float


@dataclass(frozen=True, slots=True)
class Peers:
    """Who serves."""

    seconds: float
    peers: tuple[PeerLine, ...]


@dataclass(frozen=True, slots=True)
class Note:
    """Something happened that a person wants to know."""

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
    """Over the whole run."""
    counts: MicrobatchCounts


Event = Waiting | Started | Stepped | HeldOut | Peers | Note | Ended
KINDS: dict[str, type[Event]] = {
    kind.__name__.lower(): kind for kind in (Waiting, Started, Stepped, HeldOut, Peers, Note, Ended)
}


def to_line(event: Event) -> str:
    """One line of JSON, without its end."""
    fields = {"event": type(event).__name__.lower(), **dataclasses.asdict(event)}
    return json.dumps(fields, separators=(",", ":"))


def from_line(line: str) -> Event:
    """Read what `to_line` wrote."""
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
        raise ValueError(f"no event of a run: {line[:80]!r}") from error
