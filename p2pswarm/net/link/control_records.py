"""ControlRecords: the sealed records of a link, in order, over one path after another.

Records are numbered from 0 in each direction by the counters of their nonces. A new path begins
with the record that the other side asked for: those that it does not have are sent again, as they
are. What came already by the path before is counted and dropped, unopened.

A record that is not authentic sets `broken`, and nothing more is opened of that path. It has used
no number: the next path begins with it.

Units:   bytes, `now_s` seconds on the caller's monotonic clock.
Errors:  BadHandshake from `path_up`.
Source:  docs/paths.md.
"""

from collections import deque

from p2pswarm.base.errors import BadHandshake, BadRecord
from p2pswarm.net.crypto.handshake import Keys
from p2pswarm.net.crypto.records import PREFIX_BYTES, Opener, Sealer
from p2pswarm.net.crypto.suite import TAG_BYTES
from p2pswarm.net.link.reply_memory import LinkReplies
from p2pswarm.net.link.resend_buffer import ResendBuffer
from p2pswarm.net.wire.frame_buffer import FrameBuffer
from p2pswarm.net.wire.frames import RECORD_BYTES_MAX

CIPHERTEXT_MAX = RECORD_BYTES_MAX + TAG_BYTES
LABEL = b"ctrl"  # each direction has a key of its own


class ControlRecords:
    """What one side of a link seals and opens."""

    __slots__ = ("_again", "_cutter", "_opener", "_skip", "broken", "seal", "unacked")

    def __init__(self, keys: Keys, now_s: float, memory: LinkReplies) -> None:
        """`memory`: this link's part of what all links may keep to send it again."""
        self._cutter = _new_cutter()
        self._opener = Opener(keys.receive_key, keys.suite, LABEL)
        self.seal = Sealer(keys.send_key, keys.suite, LABEL, now_s).seal
        """Makes a record of a plaintext: add it to `unacked`, unless it is the last."""
        self.unacked = ResendBuffer(memory)
        """The records that the peer may not have."""
        self.broken: BadRecord | None = None
        """Set when the present path has brought a record that is not authentic."""
        self._again: deque[bytes] = deque()
        self._skip = 0

    @property
    def expected(self) -> int:
        """The number of the next record that we want."""
        return self._opener.count

    @property
    def resends(self) -> bool:
        """Whether records wait that were sent by the path before."""
        return bool(self._again)

    def receive(self, data: bytes) -> list[bytes]:
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

    def again(self) -> bytes:
        """The next record that is sent again."""
        return self._again.popleft()

    def path_lost(self) -> None:
        """Forget what is left of the path: the rest of a record, what it was to send again."""
        self._begin(0)
        self._again.clear()

    def path_up(self, announced: int, wanted: int) -> None:
        """Go on over a new path; BadHandshake if that cannot be, and nothing has changed then.

        `announced`: the record with which we told the peer to begin. `wanted`: the record with
        which the peer told us to.
        """
        if not 0 <= announced <= self.expected:
            raise BadHandshake(f"record {announced} was asked for, {self.expected} is the next")
        self._again = self.unacked.again(wanted)
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
