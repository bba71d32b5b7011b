"""Messages that are longer than a frame: cut into parts, and put together again.

Only kinds that name a limit above a frame's may be long (`net/wire/message.py`). All parts but the
last fill their frame, so there is one way to cut, and a peer cannot send many tiny parts. The
first part begins with the message's code: a kind that may not be long is refused before a second
part comes.

Units:   bytes.
Errors:  BadMessage for parts that break a rule; UnknownCode for a kind that is not known here;
         ValueError for a message of ours that is too long.
Source:  docs/wire.md, section 7.
"""

from dataclasses import dataclass

from p2pswarm.base.errors import BadMessage
from p2pswarm.net.wire.message import MESSAGE_BYTES_MAX, Message, class_at, longest

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
    """The parts of one message after another, each until it is whole."""

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
