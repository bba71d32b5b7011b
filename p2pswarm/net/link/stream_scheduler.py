"""StreamScheduler: which stream of a link sends its next message, and which answers leave together.

Source:  docs/wire.md, section 3.
"""

from collections import deque
from dataclasses import dataclass, field

from p2pswarm.net.wire import frames

STREAM_WINDOW_BYTES = 256 * 1024  # four messages under way, or 20 Mbit/s at 100 ms
STREAM_NUMBERS = 1 << 32  # numbers have 32 bits on the wire


@dataclass(slots=True, eq=False)
class StreamState:
    """The queue, the credit and the state of one stream."""

    handle: int  # the name that our user knows
    number: int  # the name on the wire
    priority: int
    theirs: bool  # the peer opened it
    announced: bool  # its OPEN has been sent or received
    queue: deque[tuple[bytes, int]] = field(default_factory=deque)  # message, flags
    queued_bytes: int = 0
    credit: int = STREAM_WINDOW_BYTES  # bytes that we may still send
    allowance: int = STREAM_WINDOW_BYTES  # bytes that the peer may still send
    unconsumed: int = 0  # bytes received that our user has not taken yet
    owed: int = 0  # bytes taken for which the peer has no credit yet
    ready: bool = False  # queued for sending
    wanted: bool = False  # our user waits for CreditGained
    local_ended: bool = False  # our END is sent
    remote_ended: bool = False


MESSAGE_COST_BYTES = 64  # about what Python adds to a message that waits
RESERVE_BYTES = STREAM_WINDOW_BYTES  # four of the largest calls under way, or a thousand small ones


class StreamScheduler:
    """The streams of a link that may send, by priority.

    Streams that have a message and credit of their own stand in the line of their priority, and
    take turns there. If the session's credit is too small for the first, nothing behind it goes, so
    that a crowd of small messages does not starve a large one.

    The last RESERVE_BYTES of the session's credit are for calls alone: for a message that opens a
    stream and ends it, or that answers a stream which its opener has ended. Their receiver gives
    the credit back at once. The other messages may wait for their reader as long as it likes, so
    without a reserve sixteen exchanges that nobody reads would keep every call of the link from
    leaving.
    """

    def __init__(self) -> None:
        self.count = 0
        """The number of streams in line."""
        self._lines: list[deque[StreamState]] = [deque() for _ in range(frames.PRIORITIES)]

    def add(self, stream: StreamState) -> None:
        """Put the stream in line if it has a message and credit for it, and stands in none."""
        if stream.ready or not stream.queue:
            return
        if len(stream.queue[0][0]) + MESSAGE_COST_BYTES <= stream.credit:
            stream.ready = True
            self.count += 1
            self._lines[stream.priority].append(stream)

    def remove(self, stream: StreamState) -> None:
        """Take the stream out of its line, if it stands in one."""
        if stream.ready:
            stream.ready = False
            self.count -= 1
            self._lines[stream.priority].remove(stream)

    def take(self, credit: int, room: int) -> StreamState | None:
        """Take out the next stream, if the session's `credit` and the record's `room` suffice."""
        for line in self._lines:
            if not line:
                continue
            stream = line[0]
            size = len(stream.queue[0][0])
            if size + MESSAGE_COST_BYTES > credit - RESERVE_BYTES and not _is_call(stream):
                return self._take_call(credit, room)
            if size + MESSAGE_COST_BYTES > credit or size + frames.HEADER_BYTES > room:
                return None
            line.popleft()
            self.count -= 1
            stream.ready = False
            return stream
        return None

    def _take_call(self, credit: int, room: int) -> StreamState | None:
        """Take out the first call in line, because only calls may use what credit is left."""
        for line in self._lines:
            for stream in line:
                if _is_call(stream):
                    size = len(stream.queue[0][0])
                    if size + MESSAGE_COST_BYTES > credit or size + frames.HEADER_BYTES > room:
                        return None
                    self.remove(stream)
                    return stream
        return None


def _is_call(stream: StreamState) -> bool:
    """Return whether the next message is a whole call, or ends a stream as an answer does."""
    return bool(stream.queue[0][1]) and (not stream.announced or stream.remote_ended)


GATHERED_MAX = 8  # so many answers to one read are sent together


class AnswerBatch:
    """True if the answers of one link are gathered now.

    The tasks that several events wake answer one after the other. Their answers wait for each
    other, eight at most, until all of these tasks have run.
    """

    def __init__(self) -> None:
        self.count = 0
        """Not 0 while answers are gathered: then call `waits` before they are sent."""

    def begin(self) -> bool:
        """Note that one read gave several events; returns whether to call `end` later."""
        if self.count:
            return False
        self.count = 1
        return True

    def end(self) -> None:
        """Note that the woken tasks have answered: send what waits."""
        self.count = 0

    def waits(self) -> bool:
        """Return whether the answer that was just queued should wait for the others."""
        self.count += 1
        return self.count % GATHERED_MAX != 0
