"""SendLines: which stream of a link sends its next message.

Streams that have a message and credit of their own stand in the line of their priority, and take
turns there. If the session's credit is too small for the first, nothing behind it goes, so that a
crowd of small messages does not starve a large one.

The last RESERVE_BYTES of the session's credit are for calls alone: for a message that opens a
stream and ends it, or that answers a stream which its opener has ended. Their receiver gives the
credit back at once. The other messages may wait for their reader as long as it likes, so without
a reserve sixteen exchanges that nobody reads would keep every call of the link from leaving.

Units:   bytes.
Errors:  none.
Source:  docs/wire.md, section 3.
"""

from collections import deque

from p2pswarm.net.link.stream_state import STREAM_WINDOW_BYTES, StreamState
from p2pswarm.net.wire import frames

MESSAGE_COST_BYTES = 64  # about what Python adds to a message that waits
RESERVE_BYTES = STREAM_WINDOW_BYTES  # four of the largest calls under way, or a thousand small ones


class SendLines:
    """The streams of a link that may send, by priority."""

    __slots__ = ("_lines", "count")

    def __init__(self) -> None:
        self.count = 0
        """How many streams stand in line."""
        self._lines: tuple[deque[StreamState], ...] = tuple(
            deque() for _ in range(frames.PRIORITIES)
        )

    def add(self, stream: StreamState) -> None:
        """Put the stream in line if it has a message and credit for it, and stands in none."""
        if (
            not stream.ready
            and stream.queue
            and len(stream.queue[0][0]) + MESSAGE_COST_BYTES <= stream.credit
        ):
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
        """Take out the stream that sends next; None if none can.

        `credit`: what the session may still send. `room`: what fits into the record.
        """
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
    """Whether the next message is the whole of a call, or finishes a stream as an answer does."""
    return bool(stream.queue[0][1]) and (not stream.announced or stream.remote_ended)
