"""The rules of calls: what the bytes of a stream mean, and who may ask how much.

A stream's first frame is a request: one byte that says call or exchange, the
caller's deadline, a message. Every later frame is one byte of status and a
message; status 0 is a good one, any other ends the stream with an error that
the other side raises as the same class. The deadline is relative, because
clocks differ; the way there costs the caller what it costs.

Units:   milliseconds on the wire (u32, 0 = no deadline); seconds elsewhere.
Errors:  BadMessage for bytes that are none of this.
"""

import math
import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated

from p2pswarm.errors import (
    BadChunk,
    BadFrame,
    BadHandshake,
    BadMessage,
    BadRecord,
    Busy,
    DialFailed,
    Late,
    LinkLost,
    NoRoute,
    NotServing,
    PathError,
    PeerError,
    Refused,
    RunEnded,
    SwarmError,
    TooLarge,
    Unusable,
)
from p2pswarm.ids import PeerId
from p2pswarm.wire.codec import Message, Range, Size, decode, encode, message

DETAIL_CHARS = 200  # an error is one line
RETRY_AFTER_MAX_S = 3600.0
DEADLINE_MAX_MS = (1 << 32) - 1  # 49 days
GOOD = b"\0"
_OPENING = struct.Struct("<BI")

# Numbers are for ever: a new class gets the next one. The first class that an error
# belongs to names it on the wire, so subclasses stand before their parents.
STATUS: tuple[tuple[int, type[SwarmError]], ...] = (
    (1, Busy),
    (2, NotServing),
    (3, TooLarge),
    (4, Late),
    (5, NoRoute),
    (6, RunEnded),
    (7, Unusable),
    (8, LinkLost),
    (9, DialFailed),
    (10, BadMessage),
    (11, BadChunk),
    (12, BadRecord),
    (13, BadFrame),
    (14, BadHandshake),
    (20, Refused),
    (21, PathError),
    (22, PeerError),
    (23, SwarmError),
)
_CLASS = dict(STATUS)


class Kind(IntEnum):
    """What a stream is for."""

    CALL = 1
    EXCHANGE = 2


@message(1)
@dataclass(frozen=True, slots=True)
class Failure(Message):
    """Why a call or an exchange ended badly."""

    detail: Annotated[str, Size(4 * DETAIL_CHARS)]
    retry_after_s: Annotated[float, Range(0, RETRY_AFTER_MAX_S)] = 0.0
    """Meant with Busy alone."""


def status_of(error: SwarmError) -> int:
    """The number of the first class in `STATUS` that `error` belongs to."""
    return next(number for number, known in STATUS if isinstance(error, known))


def failure_of(error: SwarmError) -> Failure:
    """What the other side is told of `error`."""
    wait_s = error.retry_after_s if isinstance(error, Busy) else 0.0
    sane_s = min(max(wait_s, 0.0), RETRY_AFTER_MAX_S) if math.isfinite(wait_s) else 0.0
    return Failure(str(error)[:DETAIL_CHARS], sane_s)


def error_of(status: int, failure: Failure) -> SwarmError:
    """The error to raise on this side; an unknown status is a plain Refused."""
    known = _CLASS.get(status, Refused)
    if known is Busy:
        return Busy(failure.detail, failure.retry_after_s)
    return known(failure.detail)


def pack_opening(kind: Kind, timeout_s: float | None, body: bytes) -> bytes:
    """The first frame of a stream; `body` is an encoded message."""
    if timeout_s is None:
        return _OPENING.pack(kind, 0) + body
    return _OPENING.pack(kind, min(max(math.ceil(timeout_s * 1e3), 1), DEADLINE_MAX_MS)) + body


def unpack_opening(frame: bytes) -> tuple[Kind, float | None, Message]:
    """Kind, deadline in seconds from now or None, request."""
    if len(frame) < _OPENING.size:
        raise BadMessage(f"an opening of {len(frame)} bytes")
    kind, timeout_ms = _OPENING.unpack_from(frame)
    if kind not in (Kind.CALL, Kind.EXCHANGE):
        raise BadMessage(f"a stream of kind {kind}")
    request = decode(memoryview(frame)[_OPENING.size :])
    return Kind(kind), timeout_ms / 1e3 if timeout_ms else None, request


def pack_good(reply: Message) -> bytes:
    """A frame that carries a message."""
    return GOOD + encode(reply)


def pack_error(error: SwarmError) -> bytes:
    """A frame that ends the stream with an error."""
    return bytes((status_of(error),)) + encode(failure_of(error))


def unpack(frame: bytes) -> Message:
    """The message of a good frame; raises the error that another one carries."""
    if not frame:
        raise BadMessage("a frame without a status")
    body = decode(memoryview(frame)[1:])
    if frame[0] == 0:
        return body
    if not isinstance(body, Failure):
        raise BadMessage(f"status {frame[0]} with a {type(body).__name__}")
    raise error_of(frame[0], body)


class Intake:
    """How many handlers run, for each peer and in all."""

    def __init__(self, per_peer: int, total: int) -> None:
        self._per_peer = per_peer
        self._total = total
        self._running: dict[PeerId, int] = {}
        self.count = 0

    def enter(self, peer: PeerId) -> None:
        """Count one more in; raises Busy where there is no room."""
        mine = self._running.get(peer, 0)
        if mine >= self._per_peer or self.count >= self._total:
            raise Busy(f"{mine} calls of yours and {self.count} in all are under way")
        self._running[peer] = mine + 1
        self.count += 1

    def leave(self, peer: PeerId) -> None:
        """One of `peer` is done."""
        mine = self._running[peer] - 1
        self.count -= 1
        if mine:
            self._running[peer] = mine
        else:
            del self._running[peer]
