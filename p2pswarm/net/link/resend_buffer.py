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

from p2pswarm.base.errors import BadFrame, BadHandshake
from p2pswarm.net.link.reply_memory import LINK_BYTES_FREE, LINK_BYTES_MAX, LinkReplies

RECORD_COST_BYTES = 64  # about what Python adds to a record
CHECK_BYTES = 5 * 1024  # looked at this often: LINK_BYTES_FREE with the cost of tiny records
ACK_BYTES = 512 * 1024  # a ping for so much: its answer costs 20 us, a hundredth of sending this
HELD_BYTES_MAX = LINK_BYTES_MAX + 1024 * 1024  # control frames alone, beyond what is full


class ResendBuffer:
    """What one side of a link has sent and cannot forget yet."""

    __slots__ = ("_asked", "_forgotten", "_memory", "check_at", "first", "records", "sent_bytes")

    def __init__(self, memory: LinkReplies) -> None:
        """`memory`: this link's part of what all links may hold."""
        self._memory = memory
        self.records: deque[bytes] = deque()
        """What is held. Add each record that is sent here, and its bytes to `sent_bytes`: a method
        for it would cost a small call one part in a hundred."""
        self.sent_bytes = 0
        """The bytes of all records that were sent."""
        self.check_at = CHECK_BYTES
        """When `sent_bytes` reaches this, call `wants_ack`."""
        self.first = 0
        """The number of the oldest record that is held."""
        self._forgotten = 0  # bytes of records with their cost, as `_kept`
        self._asked = 0  # when the peer was asked what it has

    @property
    def _kept(self) -> int:
        """The bytes of all records that were ever held, with their cost."""
        return self.sent_bytes + RECORD_COST_BYTES * self.next

    @property
    def held_bytes(self) -> int:
        """The memory of the records that are held."""
        return self._kept - self._forgotten

    @property
    def next(self) -> int:
        """The number of the next record."""
        return self.first + len(self.records)

    def keep(self, record: bytes) -> bool:
        """Keep a record where a call more does not matter; returns whether to call `wants_ack`."""
        self.records.append(record)
        self.sent_bytes += len(record)
        return self.sent_bytes >= self.check_at

    def wants_ack(self) -> bool:
        """Whether to ask the peer now what it has, with a ping; BadFrame if it never answers."""
        if self.held_bytes > HELD_BYTES_MAX:
            raise BadFrame(f"{self.held_bytes} bytes were sent that the peer does not acknowledge")
        if self._kept - self._asked >= ACK_BYTES or self.full:
            return True
        self.check_at = self.sent_bytes + CHECK_BYTES
        return False

    def asked(self) -> int:
        """Note that a ping goes out; returns the number of the next record."""
        self._asked = self._kept
        self.check_at = self.sent_bytes + CHECK_BYTES
        return self.next

    @property
    def full(self) -> bool:
        """Whether nothing more may be sent but control frames."""
        return self.held_bytes > LINK_BYTES_FREE and self._memory.crowded(self.held_bytes)

    def acknowledged(self, upto: int) -> None:
        """Forget the records before number `upto`, which the peer has."""
        records = self.records
        while records and self.first < upto:
            self._forgotten += len(records.popleft()) + RECORD_COST_BYTES
            self.first += 1
        self._memory.tell(self.held_bytes)

    def again(self, start: int) -> deque[bytes]:
        """The records from number `start` on, which the peer does not have; the rest it has."""
        if not self.first <= start <= self.next:
            raise BadHandshake(f"the peer wants record {start}, kept are {self.first}..{self.next}")
        self.acknowledged(start)
        return self.records.copy()

    def close(self) -> None:
        """Forget everything: the link is over."""
        self._forgotten = self._kept
        self.first += len(self.records)
        self.records.clear()
        self._memory.leave()
