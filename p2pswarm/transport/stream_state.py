"""StreamState: what one side of a link keeps of a stream.

Units:   bytes.
"""

from collections import deque

STREAM_WINDOW_BYTES = 256 * 1024  # four messages under way: 20 Mbit/s at 100 ms for one stream
STREAM_NUMBERS = 1 << 32  # of 32 bits on the wire


class StreamState:
    """One side's account of a stream."""

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
        "unconsumed",
        "wanted",
    )

    def __init__(self, handle: int, priority: int, *, announced: bool) -> None:
        self.handle = handle  # what our user calls the stream
        self.number = handle % STREAM_NUMBERS  # what it is called on the wire
        self.priority = priority
        self.announced = announced  # its OPEN has been sent or received
        self.queue: deque[tuple[bytes, int]] = deque()  # message, flags
        self.queued_bytes = 0
        self.credit = STREAM_WINDOW_BYTES  # what we may send
        self.allowance = STREAM_WINDOW_BYTES  # what the peer may send
        self.unconsumed = 0  # received and not yet taken by our user
        self.owed = 0  # taken, and not yet told the peer
        self.ready = False  # stands in line to send
        self.wanted = False  # our user waits for CreditGained
        self.local_ended = False  # our END is sent
        self.remote_ended = False
