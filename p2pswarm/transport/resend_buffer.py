"""ResendBuffer: the sealed records that the peer may not have, to be sent again on another path.

Records are kept as they were sealed: the objects that were written are referenced, nothing is
copied, and what is sent again is the same bytes under the same nonce. A record leaves the buffer
when a pong or a resumption proves that the peer has it.

A link may hold as much as `ReplyMemory` lets it: 16 KiB in any case, 4 MiB at most, and no more
than is free of what all links may hold. When it is full, nothing but control frames is sent: the
peer's pong, which empties it, may itself wait for one of ours.

Units:   bytes; records are counted from 0 in each direction of a link.
Errors:  BadHandshake for a number that cannot be; BadFrame if even control frames overflow it.
"""

from collections import deque

from p2pswarm.errors import BadFrame, BadHandshake
from p2pswarm.transport.reply_memory import LINK_BYTES_FREE, LINK_BYTES_MAX, LinkReplies

RECORD_COST_BYTES = 64  # about what Python adds to a record
CHECK_BYTES = LINK_BYTES_FREE  # looked at this often: what a link may hold in any case
ACK_BYTES = 512 * 1024  # a ping for so much: its answer costs 20 us, a hundredth of sending this
HELD_BYTES_MAX = LINK_BYTES_MAX + 1024 * 1024  # control frames alone, beyond what is full


class ResendBuffer:
    """What one side of a link has sent and cannot forget yet."""

    __slots__ = ("_asked", "_check_at", "_forgotten", "_kept", "_memory", "_records", "first")

    def __init__(self, memory: LinkReplies) -> None:
        """`memory`: this link's part of what all links may hold."""
        self._memory = memory
        self._records: deque[bytes] = deque()
        self.first = 0
        """The number of the oldest record that is held."""
        self._kept = 0  # bytes of all records, with their cost; the next three count the same
        self._forgotten = 0
        self._asked = 0  # when the peer was asked what it has
        self._check_at = CHECK_BYTES

    @property
    def held_bytes(self) -> int:
        """The memory of the records that are held."""
        return self._kept - self._forgotten

    @property
    def next(self) -> int:
        """The number of the next record."""
        return self.first + len(self._records)

    def add(self, record: bytes) -> bool:
        """Keep a record that is sent now; returns whether to call `wants_ack`."""
        self._records.append(record)
        self._kept += len(record) + RECORD_COST_BYTES
        return self._kept >= self._check_at

    def wants_ack(self) -> bool:
        """Whether to ask the peer now what it has, with a ping; BadFrame if it never answers."""
        if self.held_bytes > HELD_BYTES_MAX:
            raise BadFrame(f"{self.held_bytes} bytes were sent that the peer does not acknowledge")
        if self._kept - self._asked >= ACK_BYTES or self.full:
            return True
        self._check_at = self._kept + CHECK_BYTES
        return False

    def asked(self) -> int:
        """Note that a ping goes out; returns the number of the next record."""
        self._asked = self._kept
        self._check_at = self._kept + CHECK_BYTES
        return self.next

    @property
    def full(self) -> bool:
        """Whether nothing more may be sent but control frames."""
        return self.held_bytes > LINK_BYTES_FREE and self._memory.crowded(self.held_bytes)

    def acknowledged(self, upto: int) -> None:
        """Forget the records before number `upto`, which the peer has."""
        records = self._records
        while records and self.first < upto:
            self._forgotten += len(records.popleft()) + RECORD_COST_BYTES
            self.first += 1
        self._memory.tell(self.held_bytes)

    def again(self, start: int) -> deque[bytes]:
        """The records from number `start` on, which the peer does not have; the rest it has."""
        if not self.first <= start <= self.next:
            raise BadHandshake(f"the peer wants record {start}, kept are {self.first}..{self.next}")
        self.acknowledged(start)
        return self._records.copy()

    def close(self) -> None:
        """Forget everything: the link is over."""
        self._records.clear()
        self._forgotten = self._kept
        self._memory.leave()
