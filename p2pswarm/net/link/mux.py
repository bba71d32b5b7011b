"""Mux: many streams on one connection, ordered by credit and priority.

Errors:  BadFrame if the peer breaks the rules; Busy if we would open too many streams.
Source:  docs/wire.md; HTTP/2 (RFC 9113 5.2) for two levels of credit.
"""

from p2pswarm.base.errors import BadFrame, Busy
from p2pswarm.net.link.events import (
    RESET_REFUSED,
    CreditGained,
    LinkEvent,
    Ponged,
    StreamData,
    StreamEvent,
    StreamOpened,
    StreamReset,
    link_event,
)
from p2pswarm.net.link.reply_budget import LINK_BYTES_FREE, STREAM_BYTES, LinkReplyBudget
from p2pswarm.net.link.stream_scheduler import (
    MESSAGE_COST_BYTES,
    STREAM_NUMBERS,
    STREAM_WINDOW_BYTES,
    StreamScheduler,
    StreamState,
)
from p2pswarm.net.wire import frames

SESSION_WINDOW_BYTES = 4 * 1024 * 1024  # 300 Mbit/s at 100 ms; tensors use bulk connections
LARGEST_COST_BYTES = frames.MESSAGE_BYTES_MAX + MESSAGE_COST_BYTES
STREAMS_MAX = 1024  # opened by one side and not yet ended
QUEUE_BYTES = frames.MESSAGE_BYTES_MAX  # a stream with less queued is writable
QUEUE_BYTES_MAX = 4 * QUEUE_BYTES  # a caller that ignores `writable` gets an error here
CONTROL_BYTES_MAX = 1024 * 1024  # answers that a peer causes and does not read
CREDIT_MAX = 1 << 30  # far above any window: more is an attack or a mistake


class Mux:
    """One side's view of all streams of a link.

    Each side sends only what the other has given credit for, per stream and for the session. So a
    peer can fill no more of our memory than the windows allow, however many streams it opens.
    Streams that have credit send in the order of priority, and streams of one priority take turns.
    Each record is made when the last has left, so an urgent message waits for at most one record
    of less urgent ones.

    A message costs its length and `MESSAGE_COST_BYTES`, because many tiny messages take memory
    too. A message is never split, so it waits for credit for all of its bytes.
    """

    def __init__(self, *, dialled: bool, replies: LinkReplyBudget | None = None) -> None:
        self.replies = replies or LinkReplyBudget()
        self.held_bytes = 0
        """The bytes of the peer's streams and their unread replies; only read it elsewhere."""
        self._ours = 1 if dialled else 0
        self._next = 1 if dialled else 2
        self._streams: dict[int, StreamState] = {}  # by handle, nearly always the number
        self._handles: dict[int, int] = {}  # by number, if it was used before
        self._newest = 0  # the largest number that the peer has opened
        self._reopened = 0
        self._count = [0, 0]  # live streams: the peer's, ours
        self.control: list[bytes] = []  # frames that wait; only read it and `lines` elsewhere
        self._control_bytes = 0
        self.lines = StreamScheduler()
        self._credit = SESSION_WINDOW_BYTES
        self._allowance = SESSION_WINDOW_BYTES
        self._owed = 0
        self.stream_events: list[StreamEvent] = []
        """The events that `events` will return; only read it here."""
        self.notices: list[LinkEvent] = []
        """The events that `link_events` will return; only read it elsewhere."""

    # called by our user

    @property
    def live(self) -> int:
        """The number of streams that have not finished."""
        return len(self._streams)

    @property
    def live_ours(self) -> int:
        """The number of those that we have opened."""
        return self._count[1]

    @property
    def crowded(self) -> bool:
        """Return whether the peer should get nothing more to read: it leaves too much unread."""
        return self.held_bytes > LINK_BYTES_FREE and self.replies.crowded(self.held_bytes)

    def takes(self, reply_bytes: int = 0) -> bool:
        """Return whether the peer may get so much more to read: not if it leaves much unread."""
        return self.replies.takes(self.held_bytes, reply_bytes)

    def open(self, data: bytes, *, ended: bool, priority: int) -> int:
        """Open a stream with its first message; Busy if STREAMS_MAX of ours are open."""
        if self._count[1] >= STREAMS_MAX:
            raise Busy(f"{STREAMS_MAX} streams are open on this link")
        if not 0 <= priority < frames.PRIORITIES:
            raise ValueError(f"a priority is 0..{frames.PRIORITIES - 1}, not {priority}")
        frames.check_message(data)
        number = self._next
        while number in self._streams:  # after 2^31 streams, an old one may still be open
            number = (number + 2) % STREAM_NUMBERS or 2
        self._next = (number + 2) % STREAM_NUMBERS or 2
        stream = StreamState(number, number, priority, theirs=False, announced=False)
        self._streams[number] = stream
        self._count[1] += 1
        self._enqueue(stream, data, frames.END if ended else 0)
        return number

    def send(self, number: int, data: bytes, *, ended: bool) -> None:
        """Queue one more message; it is dropped if the stream is gone."""
        stream = self._streams.get(number)
        if stream is None:
            return
        frames.check_message(data)
        if stream.local_ended or (stream.queue and stream.queue[-1][1]):
            raise ValueError(f"stream {number} has been ended by us")
        if stream.queued_bytes >= QUEUE_BYTES_MAX:
            raise ValueError(
                f"stream {number} has {stream.queued_bytes} bytes queued: call writable first"
            )
        if not data and not ended:
            return
        self._enqueue(stream, data, frames.END if ended else 0)

    def writable(self, number: int) -> bool:
        """Return whether a message would go out soon; if not, CreditGained follows."""
        if (stream := self._streams.get(number)) is None or not stream.queued_bytes:
            return True
        if stream.queued_bytes < QUEUE_BYTES and not (stream.theirs and self.crowded):
            return True
        stream.wanted = True
        return False

    def reset(self, number: int, code: int) -> None:
        """Give a stream up."""
        stream = self._streams.get(number)
        if stream is None:
            return
        if stream.announced:
            self.say(frames.RESET, frames.NUMBER.pack(code), stream.number)
        self._forget(stream)

    def consume(self, number: int, n: int) -> None:
        """Note that our user has taken a message of `n` bytes; a stream that is gone is ignored."""
        stream = self._streams.get(number)
        if stream is None:
            return
        cost = n + MESSAGE_COST_BYTES
        if cost > stream.unconsumed:
            raise ValueError(f"stream {number}: {n} bytes consumed that were not received")
        stream.unconsumed -= cost
        self._repay(cost)
        stream.owed += cost
        if stream.owed >= STREAM_WINDOW_BYTES // 2 and not stream.remote_ended:
            self.say(frames.CREDIT, frames.NUMBER.pack(stream.owed), stream.number)
            stream.allowance += stream.owed
            stream.owed = 0

    def ping(self, payload: bytes) -> None:
        """Ask for a Ponged with the same 8 bytes."""
        self.replies.update(self.held_bytes)
        self.say(frames.PING, payload)

    def say(self, kind: int, payload: bytes = b"", stream: int = 0) -> None:
        """Queue a control frame, of the link itself unless a stream is named."""
        frame = frames.encode(kind, stream, payload)
        self.control.append(frame)
        self._control_bytes += len(frame)

    def say_bulk_count(self, number: int, chunks: int, *, over: bool) -> None:
        """Tell the peer how many chunks came on a bulk connection; `over`: it has ended."""
        kind = frames.BULK_OVER if over else frames.BULK_CAME
        self.say(kind, frames.CHANNEL.pack(number, chunks))

    # called for the wire

    def on_record(self, record: bytes) -> None:
        """Take the plaintext of one record."""
        for kind, flags, priority, number, payload in frames.decode(record):
            if kind == frames.DATA:
                self._on_data(number, flags, payload)
            elif kind == frames.OPEN:
                self._on_open(number, flags, priority, payload)
            else:
                self._on_other(kind, number, payload)
        self.check_read()

    def check_read(self) -> None:
        """Raise BadFrame if the peer causes answers and does not read them."""
        if self._control_bytes > CONTROL_BYTES_MAX:
            raise BadFrame(f"{self._control_bytes} bytes of answers wait: the peer does not read")

    def events(self) -> list[StreamEvent]:
        """The events of streams since the last call."""
        events, self.stream_events = self.stream_events, []
        return events

    def link_events(self) -> list[LinkEvent]:
        """The events of the whole link since the last call."""
        events, self.notices = self.notices, []
        return events

    def data_to_send(self) -> bytes:
        """The plaintext of the next record, or empty bytes."""
        lines = self.lines
        if not (lines.count or self.control):
            return b""
        parts: list[bytes] = []
        size = 0
        if self.control:
            parts, size = self._take_control()
        while lines.count and (stream := lines.take(self._credit, frames.RECORD_BYTES_MAX - size)):
            parts.append(self._take(stream))
            size += len(parts[-1])
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def control_to_send(self) -> bytes:
        """As `data_to_send`, without messages of streams: what a peer needs that waits for us."""
        return b"".join(self._take_control()[0])

    def _take_control(self) -> tuple[list[bytes], int]:
        """The control frames that fit into one record, and their bytes."""
        parts, self.control = self.control, []
        size, self._control_bytes = self._control_bytes, 0
        if size > frames.RECORD_BYTES_MAX:
            count, size = frames.fitting(parts)
            self.control = parts[count:]
            self._control_bytes = sum(map(len, self.control))
            del parts[count:]
        return parts, size

    def _enqueue(self, stream: StreamState, data: bytes, flags: int) -> None:
        stream.queue.append((data, flags))
        stream.queued_bytes += len(data)
        if stream.theirs:
            self.held_bytes += len(data)
        self.lines.add(stream)

    def _take(self, stream: StreamState) -> bytes:
        """Take a message of the stream, and put it into line again if it has another."""
        data, flags = stream.queue.popleft()
        cost = len(data) + MESSAGE_COST_BYTES
        stream.queued_bytes -= len(data)
        if stream.theirs:
            self.held_bytes -= len(data)
        stream.credit -= cost
        self._credit -= cost
        kind = frames.DATA if stream.announced else frames.OPEN
        stream.announced = True
        if flags:
            stream.local_ended = True
            if stream.remote_ended:
                self._forget(stream)
        elif stream.queue:
            self.lines.add(stream)
        if stream.wanted and stream.queued_bytes < QUEUE_BYTES:
            stream.wanted = False
            self.stream_events.append(CreditGained(stream.handle))
        return frames.encode(kind, stream.number, data, flags, stream.priority)

    def _on_open(self, number: int, flags: int, priority: int, data: bytes) -> None:
        if number % 2 == self._ours:
            raise BadFrame(f"the peer opened stream {number}, a number of ours")
        if self._live(number) is not None:
            raise BadFrame(f"stream {number} was opened twice")
        cost = self._spend(data)
        if self._count[0] >= STREAMS_MAX:
            self._repay(cost)
            self.say(frames.RESET, frames.NUMBER.pack(RESET_REFUSED), number)
            return
        handle = self._handle(number)
        stream = StreamState(handle, number, priority, theirs=True, announced=True)
        stream.remote_ended = bool(flags)
        stream.allowance -= cost
        stream.unconsumed = cost
        self._streams[handle] = stream
        self._count[0] += 1
        self.held_bytes += STREAM_BYTES
        self.stream_events.append(StreamOpened(handle, data, bool(flags)))

    def _handle(self, number: int) -> int:
        """A handle that was never used: our user may hold the one of an older stream."""
        if number > self._newest:
            self._newest = number
            return number
        self._reopened += 1
        handle = self._handles[number] = number + self._reopened * STREAM_NUMBERS
        return handle

    def _live(self, number: int) -> StreamState | None:
        """The stream that the peer means by this number, if the peer can know it."""
        if self._handles:
            number = self._handles.get(number, number)
        stream = self._streams.get(number)
        return stream if stream is not None and stream.announced else None

    def _on_data(self, number: int, flags: int, data: bytes) -> None:
        cost = self._spend(data)
        stream = self._live(number)
        if stream is None:  # we have reset it, and the peer did not know yet
            self._repay(cost)
            return
        if stream.remote_ended:
            raise BadFrame(f"data on stream {number} after its end")
        if not data and not flags:
            raise BadFrame(f"an empty message on stream {number}")
        stream.allowance -= cost
        if stream.allowance < 0:
            raise BadFrame(f"stream {number} exceeds its credit")
        stream.unconsumed += cost
        self.stream_events.append(StreamData(stream.handle, data, bool(flags)))
        if flags:
            stream.remote_ended = True
            if stream.local_ended:
                self._forget(stream)

    def _on_other(self, kind: int, number: int, payload: bytes) -> None:
        if kind == frames.CREDIT:
            self._on_credit(number, frames.NUMBER.unpack(payload)[0])
        elif kind == frames.RESET:
            stream = self._live(number)
            if stream is not None:
                self._forget(stream)
                code = frames.NUMBER.unpack(payload)[0]
                self.stream_events.append(StreamReset(stream.handle, code))
        elif kind == frames.PING:
            self.say(frames.PONG, payload)
        elif kind == frames.PONG:
            self.notices.append(Ponged(payload))
            if self.replies.unbearable(self.held_bytes):  # here it costs calls nothing
                raise BadFrame(f"{self.held_bytes} bytes wait: the peer does not read")
        else:
            self.notices.append(link_event(kind, payload))

    def _on_credit(self, number: int, gained: int) -> None:
        if number == 0:
            self._credit += gained
            credit = self._credit
        else:
            stream = self._live(number)
            if stream is None:
                return
            stream.credit += gained
            credit = stream.credit
            self.lines.add(stream)
        if credit > CREDIT_MAX:
            raise BadFrame(f"credit of {credit} bytes on stream {number}")

    def _spend(self, data: bytes) -> int:
        """Charge a received message to the session; returns its cost."""
        cost = len(data) + MESSAGE_COST_BYTES
        self._allowance -= cost
        if self._allowance < 0:
            raise BadFrame("the session exceeds its credit")
        return cost

    def _repay(self, cost: int) -> None:
        """Give session credit back, half a window at a time.

        When slow streams hold the rest, it goes back sooner: before the peer has too little left
        for a message. Each time it gets about as much again as it has, so frames stay few.
        """
        self._owed += cost
        if self._owed >= min(SESSION_WINDOW_BYTES // 2, self._allowance - LARGEST_COST_BYTES):
            self.say(frames.CREDIT, frames.NUMBER.pack(self._owed))
            self._allowance += self._owed
            self._owed = 0

    def _forget(self, stream: StreamState) -> None:
        """Remove a stream, and give its session credit back."""
        del self._streams[stream.handle]
        if stream.handle != stream.number:
            del self._handles[stream.number]
        if stream.theirs:
            self._count[0] -= 1
            self.held_bytes -= STREAM_BYTES + stream.queued_bytes
        else:
            self._count[1] -= 1
        self.lines.remove(stream)
        stream.queue.clear()
        if stream.unconsumed:
            self._repay(stream.unconsumed)
