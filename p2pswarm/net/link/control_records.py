"""ControlRecords: the sealed records of a link, in order, over one path after another.

Source:  docs/paths.md.
"""

from collections import deque

from p2pswarm.base.errors import BadFrame, BadHandshake, BadRecord
from p2pswarm.net.crypto.handshake import Keys
from p2pswarm.net.crypto.records import PREFIX_BYTES, FrameBuffer, Opener, Sealer
from p2pswarm.net.crypto.suite import TAG_BYTES
from p2pswarm.net.link.reply_budget import LINK_BYTES_FREE, LINK_BYTES_MAX, LinkReplyBudget
from p2pswarm.net.wire.frames import RECORD_BYTES_MAX

RECORD_COST_BYTES = 64  # about what Python adds to a record
CHECK_BYTES = 5 * 1024  # looked at this often: LINK_BYTES_FREE with the cost of tiny records
ACK_BYTES = 512 * 1024  # a ping for so much: its answer costs 20 us, a hundredth of sending this
HELD_BYTES_MAX = LINK_BYTES_MAX + 1024 * 1024  # control frames alone, beyond what is full


class ResendBuffer:
    """The records that one side of a link has sent and cannot forget yet.

    Records are kept as they were sealed: the objects that were written are referenced, nothing is
    copied, and what is sent again is the same bytes under the same nonce. A record leaves the
    buffer when a pong or a resumption proves that the peer has it.

    A link may hold as much as `ReplyBudget` lets it: 16 KiB in any case, 4 MiB at most, and no more
    than is free of what all links may hold. When it is full, nothing but control frames is sent:
    the peer's pong, which empties it, may itself wait for one of ours.
    """

    def __init__(self, memory: LinkReplyBudget) -> None:
        """`memory`: this link's part of what all links may hold."""
        self._memory = memory
        self.records: deque[bytes] = deque()
        """The records that are held. Add each that is sent, and its bytes to `sent_bytes`: a method
        for it would cost a small call one part in a hundred."""
        self.sent_bytes = 0
        """The bytes of all records that were sent."""
        self.check_at = CHECK_BYTES
        """The `sent_bytes` at which to call `wants_ack`."""
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
        """Return whether to ask the peer now, by a ping; BadFrame if it never answers."""
        if self.held_bytes > HELD_BYTES_MAX:
            raise BadFrame(f"{self.held_bytes} bytes were sent that the peer does not acknowledge")
        if self._kept - self._asked >= ACK_BYTES or self.full:
            return True
        self.check_at = self.sent_bytes + CHECK_BYTES
        return False

    def on_ping(self) -> int:
        """Note that a ping goes out; returns the number of the next record."""
        self._asked = self._kept
        self.check_at = self.sent_bytes + CHECK_BYTES
        return self.next

    @property
    def full(self) -> bool:
        """Return whether nothing more may be sent but control frames."""
        return self.held_bytes > LINK_BYTES_FREE and self._memory.crowded(self.held_bytes)

    def on_ack(self, upto: int) -> None:
        """Forget the records before number `upto`, which the peer has."""
        records = self.records
        while records and self.first < upto:
            self._forgotten += len(records.popleft()) + RECORD_COST_BYTES
            self.first += 1
        self._memory.update(self.held_bytes)

    def from_record(self, start: int) -> deque[bytes]:
        """The records from number `start` on, which the peer does not have; the rest it has."""
        if not self.first <= start <= self.next:
            raise BadHandshake(f"the peer wants record {start}, kept are {self.first}..{self.next}")
        self.on_ack(start)
        return self.records.copy()

    def close(self) -> None:
        """Forget everything: the link is over."""
        self._forgotten = self._kept
        self.first += len(self.records)
        self.records.clear()
        self._memory.leave()


CIPHERTEXT_MAX = RECORD_BYTES_MAX + TAG_BYTES
LABEL = b"ctrl"  # each direction has a key of its own


class ControlRecords:
    """The records that one side of a link seals and opens.

    Records are numbered from 0 in each direction by the counters of their nonces. A new path
    begins with the record that the other side asked for: those that it does not have are sent
    again, as they are. What came already by the path before is counted and dropped, unopened.

    A record that is not authentic sets `broken`, and nothing more is opened of that path. It has
    used no number: the next path begins with it.
    """

    def __init__(self, keys: Keys, now_s: float, memory: LinkReplyBudget) -> None:
        """`memory`: this link's part of what all links may keep to send it again."""
        self._cutter = _new_cutter()
        self._opener = Opener(keys.receive_key, keys.suite, LABEL)
        self.seal = Sealer(keys.send_key, keys.suite, LABEL, now_s).seal
        """Makes a record of a plaintext: add it to `unacked`, unless it is the last."""
        self.unacked = ResendBuffer(memory)
        self.broken: BadRecord | None = None
        """Set when the present path has brought a record that is not authentic."""
        self._again: deque[bytes] = deque()
        self._skip = 0

    @property
    def expected(self) -> int:
        """The number of the next record that we want."""
        return self._opener.count

    @property
    def has_resends(self) -> bool:
        """Return whether records wait that were sent by the path before."""
        return bool(self._again)

    def on_data(self, data: bytes) -> list[bytes]:
        """The plaintexts of the records that are complete with these bytes."""
        plaintexts: list[bytes] = []
        try:
            records = self._cutter.receive(data)
            if self._skip:
                skipped = min(self._skip, len(records))
                self._skip -= skipped
                del records[:skipped]
            for prefix, ciphertext in records:
                plaintexts.append(self._opener.open(ciphertext, prefix))
        except BadRecord as error:
            self.broken = error
        return plaintexts

    def next_resend(self) -> bytes:
        """The next record that is sent again."""
        return self._again.popleft()

    def on_path_loss(self) -> None:
        """Forget what is left of the path: the rest of a record, what it was to send again."""
        self._begin(0)
        self._again.clear()

    def on_path(self, announced: int, wanted: int) -> None:
        """Go on over a new path; BadHandshake if that cannot be, and nothing has changed then.

        `announced`: the record with which we told the peer to begin. `wanted`: the record with
        which the peer told us to.
        """
        if not 0 <= announced <= self.expected:
            raise BadHandshake(f"record {announced} was asked for, {self.expected} is the next")
        self._again = self.unacked.from_record(wanted)
        self._begin(self.expected - announced)

    def _begin(self, skip: int) -> None:
        """Take a new path's bytes from now on; the first `skip` records have come before."""
        self._cutter = _new_cutter()
        self._skip = skip
        self.broken = None
        self._opener.go_on()


def _new_cutter() -> FrameBuffer:
    return FrameBuffer(PREFIX_BYTES, CIPHERTEXT_MAX, TAG_BYTES, flag_bits=1, error=BadRecord)


def only_record(keys: Keys, plaintext: bytes, now_s: float) -> bytes:
    """The first and last record of a session that does not become a link."""
    return Sealer(keys.send_key, keys.suite, LABEL, now_s).seal(plaintext, now_s)
