"""StreamState: what one side of a link knows about a stream.

Units:   bytes.
"""

from collections import deque

STREAM_WINDOW_BYTES = 256 * 1024  # four messages under way, or 20 Mbit/s at 100 ms
STREAM_NUMBERS = 1 << 32  # numbers have 32 bits on the wire


class StreamState:
    """The queue, the credit and the state of one stream."""

    __slots__ = (
        "allowance",
        "announced",
        "credit",
        "handle",
        "local_ended",
        "number",
        "owed",
        "priority",
        "queue",
        "queued_bytes",
        "ready",
        "remote_ended",
        "theirs",
        "unconsumed",
        "wanted",
    )

    def __init__(self, handle: int, priority: int, *, announced: bool) -> None:
        self.handle = handle  # the name that our user knows
        self.number = handle % STREAM_NUMBERS  # the name on the wire
        self.priority = priority
        self.announced = announced  # its OPEN has been sent or received
        self.theirs = announced  # the peer opened it
        self.queue: deque[tuple[bytes, int]] = deque()  # message, flags
        self.queued_bytes = 0
        self.credit = STREAM_WINDOW_BYTES  # bytes that we may still send
        self.allowance = STREAM_WINDOW_BYTES  # bytes that the peer may still send
        self.unconsumed = 0  # bytes received that our user has not taken yet
        self.owed = 0  # bytes taken for which the peer has no credit yet
        self.ready = False  # queued for sending
        self.wanted = False  # our user waits for CreditGained
        self.local_ended = False  # our END is sent
        self.remote_ended = False
