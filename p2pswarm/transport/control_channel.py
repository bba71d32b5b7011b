"""The control connection after the handshake: records around the mux, as one machine.

Units:   bytes, `now_s` seconds on the caller's monotonic clock.
Errors:  BadRecord and BadFrame for the peer's bytes; give it nothing more after one.
Source:  docs/wire.md.
"""

from p2pswarm.crypto.handshake import Keys
from p2pswarm.crypto.records import PREFIX_BYTES, Opener, Sealer, ciphertext_bytes
from p2pswarm.crypto.suite import TAG_BYTES
from p2pswarm.errors import BadRecord
from p2pswarm.transport.frames import RECORD_BYTES_MAX
from p2pswarm.transport.mux import Mux

CIPHERTEXT_MAX = RECORD_BYTES_MAX + TAG_BYTES
LABEL = b"ctrl"  # each direction has a key of its own


class ControlChannel:
    """Bytes of the wire on one side, the verbs and events of `mux` on the other."""

    __slots__ = ("_held", "_needed", "_opener", "_sealer", "mux")

    def __init__(self, keys: Keys, *, dialled: bool, now_s: float) -> None:
        self.mux = Mux(dialled=dialled)
        self._sealer = Sealer(keys.send_key, keys.suite, LABEL, now_s)
        self._opener = Opener(keys.receive_key, keys.suite, LABEL)
        self._held = bytearray()
        self._needed = PREFIX_BYTES

    def receive(self, data: bytes) -> None:
        """Take bytes from the wire, cut anywhere; drain `mux.events` after it."""
        held = self._held
        if held:
            held += data
            if len(held) < self._needed:  # a record that drips in is not copied at every drop
                return
            data = bytes(held)
            held.clear()
        view, at, end = memoryview(data), 0, len(data)
        while end - at >= PREFIX_BYTES:
            body = at + PREFIX_BYTES
            prefix = data[at:body]
            length = ciphertext_bytes(prefix)
            if length > CIPHERTEXT_MAX:
                raise BadRecord(f"a control record of {length} bytes")
            if end - body < length:
                self._needed = PREFIX_BYTES + length
                break
            at = body + length
            self.mux.receive(self._opener.open(view[body:at], prefix))
        else:
            self._needed = PREFIX_BYTES
        if at < end:
            held += view[at:]

    def data_to_send(self, now_s: float) -> bytes:
        """The next record for the wire, or nothing; call until it is nothing."""
        plaintext = self.mux.data_to_send()
        return self._sealer.seal(plaintext, now_s) if plaintext else b""
