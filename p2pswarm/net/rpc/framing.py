"""The frames of calls and streams: the format of the messages on a transport stream.

The first frame is an opening: one byte for the kind (call or stream), the caller's
deadline, and a message. Every later frame is one byte of status and a message. Status
0 is a good message, 255 a part of one that is longer than a frame (`net/rpc/framing.py`).
Any other status ends the stream with an error, which the other side raises as the same
class. The deadline is relative, because clocks differ; the time on the way to the peer
is not subtracted.

Units:   milliseconds on the wire (u32, 0 = no deadline); seconds elsewhere.
Source:  docs/wire_messages.md, section 7.
"""

import logging
import math
import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated

from p2pswarm.base.errors import (
    BadCheckpoint,
    BadChunk,
    BadFrame,
    BadHandshake,
    BadMessage,
    BadRecord,
    Busy,
    DialFailed,
    Late,
    LinkLost,
    NobodyThere,
    NoRoute,
    NotAdmitted,
    NotComputed,
    NotSaved,
    NotServing,
    OtherCheckpoint,
    PathError,
    PeerError,
    Refused,
    RunEnded,
    SwarmError,
    TooLarge,
    UnknownLink,
    Unusable,
)
from p2pswarm.net.wire.message import (
    MESSAGE_BYTES_MAX,
    Message,
    Range,
    Size,
    class_at,
    decode,
    encode,
    longest,
    message,
)

FRAME_BYTES_MAX = 60 * 1024  # the largest message of the transport
GOOD = b"\0"  # the status of a message, or of its last part
PART = 255  # the status of a part that others follow; errors count up from 1
MORE = bytes((PART,))
CODE_END = 6  # msgpack's head of an array and a code take so many bytes at most


@dataclass(frozen=True, slots=True)
class LongMessage:
    """A message that came in parts."""

    body: bytes
    frames_bytes: tuple[int, ...]
    """The lengths of the frames that it came in: their credit is given back one by one."""


def cut(head: bytes, body: bytes) -> tuple[bytes, ...]:
    """The frames of a message that does not fit one; the first begins with `head`."""
    first, step = FRAME_BYTES_MAX - len(head), FRAME_BYTES_MAX - 1
    frames = [head + body[:first]]
    for at in range(first, len(body), step):
        status = MORE if at + step < len(body) else GOOD
        frames.append(status + body[at : at + step])
    return tuple(frames)


class Assembly:
    """The parts of one message after another, each until it is whole.

    Only kinds that name a limit above a frame's may be long (`net/wire/message.py`). All parts but
    the last fill their frame, so there is one way to cut, and a peer cannot send many tiny parts.
    The first part begins with the message's code: a kind that may not be long is refused before a
    second part comes.
    """

    __slots__ = ("_frame_bytes", "_left_bytes", "_lengths", "_parts", "kind")

    def __init__(self, frame_bytes: int = FRAME_BYTES_MAX) -> None:
        """`frame_bytes`: what all frames but a message's last one have."""
        self.kind: type[Message] | None = None
        """The class of the message whose parts are coming; None between two messages."""
        self._frame_bytes = frame_bytes
        self._left_bytes = 0  # that the message may still have
        self._parts: list[bytes] = []
        self._lengths: list[int] = []

    @property
    def frames_bytes(self) -> tuple[int, ...]:
        """The lengths of the frames of a message that is not whole."""
        return tuple(self._lengths)

    def begin(self, frame: bytes, head_bytes: int = 1) -> type[Message]:
        """Take the frame of a first part, which stands after `head_bytes`; what it begins."""
        kind = class_at(frame[head_bytes : head_bytes + CODE_END])
        if longest(kind) <= MESSAGE_BYTES_MAX:
            raise BadMessage(f"a {kind.__name__} in parts")
        self.kind, self._left_bytes = kind, longest(kind)
        self._keep(frame, head_bytes, last=False)
        return kind

    def add(self, frame: bytes) -> LongMessage | None:
        """Take a frame of a reply or a stream; the message, if that was its last part."""
        status = frame[:1]
        if self.kind is None and status == MORE:
            self.begin(frame)
            return None
        if self.kind is None or status not in (MORE, GOOD):
            raise BadMessage(f"a frame of {len(frame)} bytes that is no part of a message")
        self._keep(frame, 1, last=status == GOOD)
        if status == MORE:
            return None
        whole = LongMessage(b"".join(self._parts), tuple(self._lengths))
        self.kind, self._parts, self._lengths = None, [], []
        return whole

    def _keep(self, frame: bytes, head_bytes: int, *, last: bool) -> None:
        if last and len(frame) == head_bytes:
            raise BadMessage("the last part of a message is empty")
        if not last and len(frame) != self._frame_bytes:
            raise BadMessage(f"a part of {len(frame)} bytes, and others follow it")
        self._left_bytes -= len(frame) - head_bytes
        if self._left_bytes < 0:
            assert self.kind is not None, "a message has begun"
            raise BadMessage(f"a {self.kind.__name__} of over {longest(self.kind)} bytes")
        self._parts.append(frame[head_bytes:])
        self._lengths.append(len(frame))


log = logging.getLogger(__name__)

DETAIL_CHARS = 200  # of an error, so that it fits one line
RETRY_AFTER_MAX_S = 3600.0
DEADLINE_MAX_MS = (1 << 32) - 1  # 49 days
RESET_GIVEN_UP = 16  # the caller no longer wants the answer
RESET_LATE = 17  # the handler was stopped at the caller's deadline
RESET_LEAVING = 18  # the handler was stopped because its process ends
LONG = b"\3"  # instead of a kind: the first part of a call whose request is longer than a frame
_OPENING = struct.Struct(">BI")
OPENING_BYTES = _OPENING.size

# The numbers never change; a new class gets the next one. The first class that matches
# an error gives its number, so subclasses come before their parents.
STATUS: tuple[tuple[int, type[SwarmError]], ...] = (
    (1, Busy),
    (2, NotServing),
    (3, TooLarge),
    (4, Late),
    (5, NoRoute),
    (6, RunEnded),
    (17, BadCheckpoint),
    (18, OtherCheckpoint),
    (7, Unusable),
    (8, LinkLost),
    (19, NobodyThere),
    (24, UnknownLink),
    (9, DialFailed),
    (10, BadMessage),
    (11, BadChunk),
    (12, BadRecord),
    (13, BadFrame),
    (14, BadHandshake),
    (15, NotComputed),
    (16, NotSaved),
    (25, NotAdmitted),
    (20, Refused),
    (21, PathError),
    (22, PeerError),
    (23, SwarmError),
)
_CLASS = dict(STATUS)


class Kind(IntEnum):
    """The two uses of a transport stream."""

    UNARY = 1
    STREAM = 2


_KINDS = {int(kind): kind for kind in Kind}  # the enum's own look-up takes 1 us


@message(1)
@dataclass(frozen=True, slots=True)
class Failure(Message):
    """Why a call or a stream ended badly."""

    detail: Annotated[str, Size(4 * DETAIL_CHARS)]
    retry_after_s: Annotated[float, Range(0, RETRY_AFTER_MAX_S)] = 0.0
    """Used by Busy only."""


def status_of(error: SwarmError) -> int:
    """The number of the first class in `STATUS` that `error` belongs to."""
    return next(number for number, known in STATUS if isinstance(error, known))


def failure_of(error: SwarmError) -> Failure:
    """The message that tells the other side of `error`."""
    wait_s = error.retry_after_s if isinstance(error, Busy) else 0.0
    sane_s = min(max(wait_s, 0.0), RETRY_AFTER_MAX_S) if math.isfinite(wait_s) else 0.0
    return Failure(str(error)[:DETAIL_CHARS], sane_s)


def error_of(status: int, failure: Failure) -> SwarmError:
    """The error to raise on this side; an unknown status becomes Refused."""
    known = _CLASS.get(status, Refused)
    if known is Busy:
        return Busy(failure.detail, failure.retry_after_s)
    return known(failure.detail)


def pack_opening(kind: Kind, timeout_s: float | None, body: bytes) -> bytes:
    """The first frame of a stream; `body` is an encoded message."""
    frame = _OPENING.pack(kind, _timeout_ms(timeout_s)) + body
    if len(frame) > FRAME_BYTES_MAX:
        raise ValueError(f"a message of {len(frame)} bytes is over {FRAME_BYTES_MAX}")
    return frame


def pack_call(timeout_s: float | None, body: bytes) -> tuple[bytes, ...]:
    """The frames of a call's request, nearly always one; `body` is an encoded message."""
    if fits(body, OPENING_BYTES):
        return (_OPENING.pack(Kind.UNARY, _timeout_ms(timeout_s)) + body,)
    return cut(_OPENING.pack(LONG[0], _timeout_ms(timeout_s)), body)


def fits(body: bytes, head_bytes: int) -> bool:
    """Return whether an encoded message fits one frame; ValueError if it must and does not."""
    size = head_bytes + len(body)
    if size <= FRAME_BYTES_MAX:
        return True
    if longest(class_at(body)) <= MESSAGE_BYTES_MAX:
        raise ValueError(f"a message of {size} bytes is over {FRAME_BYTES_MAX}")
    return False


def _timeout_ms(timeout_s: float | None) -> int:
    if timeout_s is None:
        return 0
    return min(max(math.ceil(timeout_s * 1e3), 1), DEADLINE_MAX_MS)


def unpack_opening(frame: bytes) -> tuple[Kind, float | None, Message]:
    """Read a first frame: kind, deadline in seconds from now or None, and request."""
    timeout_s = unpack_deadline(frame)
    kind = _KINDS.get(frame[0])
    if kind is None:
        raise BadMessage(f"a stream of kind {frame[0]}")
    return kind, timeout_s, decode(frame[OPENING_BYTES:])


def unpack_deadline(frame: bytes) -> float | None:
    """The deadline in a first frame: seconds from now, or None."""
    if len(frame) < OPENING_BYTES:
        raise BadMessage(f"an opening of {len(frame)} bytes")
    timeout_ms = _OPENING.unpack_from(frame)[1]
    return timeout_ms / 1e3 if timeout_ms else None


def pack_good(good: Message) -> tuple[bytes, ...]:
    """The frames that carry a message, nearly always one."""
    body = encode(good)
    return (GOOD + body,) if fits(body, len(GOOD)) else cut(MORE, body)


def pack_error(error: SwarmError) -> bytes:
    """A frame that ends the stream with an error."""
    return bytes((status_of(error),)) + encode(failure_of(error))


def is_good(frame: bytes) -> bool:
    """Return whether a frame carries a message and not an error."""
    return frame[:1] == GOOD


def unpack_good(frame: bytes) -> Message:
    """The message of a good frame; BadMessage for any other frame."""
    if not is_good(frame):
        raise BadMessage("an error where a message was expected")
    return decode(frame[1:])


def unpack_error(frame: bytes) -> SwarmError:
    """The error of a frame that is not good."""
    if not frame:
        raise BadMessage("a frame without a status")
    failure = decode(frame[1:])
    if not isinstance(failure, Failure):
        raise BadMessage(f"status {frame[0]} with a {type(failure).__name__}")
    return error_of(frame[0], failure)


def reset_error(code: int) -> SwarmError:
    """The error of a stream that the other side has reset with `code`."""
    if code < RESET_GIVEN_UP:
        return Busy(
            "the peer takes no more: it has too many streams open, or replies that we did not read"
        )
    if code == RESET_LATE:
        return Late("the peer stopped working on it at the deadline")
    return Refused("the peer gave it up")


def error_for_caller(error: Exception, request: Message) -> SwarmError:
    """The error to send for an error in a handler; one that is no SwarmError is our bug."""
    if isinstance(error, SwarmError):
        return error
    log.error("the handler of %s failed", type(request).__name__, exc_info=error)
    return Refused("internal error")


def pack_outcome(outcome: Message | SwarmError | None, request: Message) -> tuple[bytes, ...]:
    """The frames of a call's reply; one that cannot be encoded is our bug."""
    if isinstance(outcome, SwarmError):
        return (pack_error(outcome),)
    try:
        return pack_good(outcome)  # type: ignore[arg-type]  # None is a TypeError there
    except (TypeError, ValueError) as error:
        return (pack_error(error_for_caller(error, request)),)
