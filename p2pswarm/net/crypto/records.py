"""The record layer: sealed records in order, each with a nonce of its own.

    record = u32 big-endian: bit 31 "the next record is under the next key",
             bits 0..30 length of the ciphertext | ciphertext and tag

The prefix is authenticated with the record. Nonces are never sent, because both
sides count. So a record that is replayed, dropped, moved or changed fails like
any garbage, and the error text is the same for all. After a failure an Opener
opens nothing more, until `go_on` says that the record which failed comes again by another way.

The Sealer decides by bytes or by time when a key has been used enough, and sets
bit 31. Both sides then derive the next key by a one-way function, so a key that
leaks later opens nothing that was sent before.

Source:  NIST SP 800-38D; Perrin, "The Noise Protocol Framework", revision 34, 11.3 (rekey);
         RFC 5869.
"""

from cryptography.exceptions import InvalidTag

from p2pswarm.base.errors import BadFrame, BadRecord, PeerError
from p2pswarm.net.crypto.suite import TAG_BYTES, Suite, hkdf

SMALL_BYTES = 4096  # copying less than this is faster than making a view
Frame = tuple[bytes, bytes | memoryview]
"""Prefix and body. The body stays valid: its memory is never written again."""


class FrameBuffer:
    """Cuts a stream in which each frame is a big-endian length of `prefix_bytes` and a body.

    A stream may cut a frame anywhere. The announced length is checked as soon as the prefix is
    there, so a peer can make us hold one frame of the allowed size and no more. A frame that
    arrives whole is not copied. A frame that arrives in pieces is copied once, when its last byte
    is there.
    """

    def __init__(
        self,
        prefix_bytes: int,
        body_bytes_max: int,
        body_bytes_min: int = 1,
        flag_bits: int = 0,
        error: type[PeerError] = BadFrame,
    ) -> None:
        """`flag_bits`: how many top bits of the prefix are flags and not length.

        `error`: the class to raise for a length outside the limits.
        """
        length_bits = 8 * prefix_bytes - flag_bits
        if not 1 <= body_bytes_min <= body_bytes_max < 2**length_bits:
            raise ValueError(
                f"{length_bits} bits cannot hold lengths of {body_bytes_min}..{body_bytes_max}"
            )
        self._prefix_bytes = prefix_bytes
        self._body_bytes_min = body_bytes_min
        self._body_bytes_max = body_bytes_max
        self._length_mask = 2**length_bits - 1
        self._error = error
        self._held = bytearray()
        self._needed = prefix_bytes

    def receive(self, data: bytes) -> list[Frame]:
        """Take bytes of the stream; returns the frames that are complete now, in order."""
        held, prefix_bytes = self._held, self._prefix_bytes
        if not held and len(data) <= SMALL_BYTES:  # nearly always it is one complete frame
            prefix = data[:prefix_bytes]
            length = int.from_bytes(prefix) & self._length_mask
            if (
                prefix_bytes + length == len(data)
                and self._body_bytes_min <= length <= self._body_bytes_max
            ):
                return [(prefix, data[prefix_bytes:])]
        if held:
            held += data
            if len(held) < self._needed:  # copy once, not for every piece
                return []
            data = bytes(held)
            held.clear()
        return self._cut(data)

    def _cut(self, data: bytes) -> list[Frame]:
        """The complete frames of `data`; what is left of it is held for the next call."""
        prefix_bytes = self._prefix_bytes
        frames: list[Frame] = []
        view, at, end = memoryview(data), 0, len(data)
        self._needed = prefix_bytes
        while end - at >= prefix_bytes:
            body = at + prefix_bytes
            prefix = data[at:body]
            length = int.from_bytes(prefix) & self._length_mask
            if not self._body_bytes_min <= length <= self._body_bytes_max:
                limits = f"{self._body_bytes_min}..{self._body_bytes_max}"
                raise self._error(f"a frame of {length} bytes, allowed are {limits}")
            after = body + length
            if after > end:
                self._needed = prefix_bytes + length
                break
            frames.append((prefix, view[body:after]))
            at = after
        if at < end:
            self._held += view[at:]
        return frames


PREFIX_BYTES = 4
OVERHEAD_BYTES = PREFIX_BYTES + TAG_BYTES
LABEL_BYTES = 4
PLAINTEXT_BYTES_MAX = 1024 * 1024  # larger gains nothing: AES is at full speed from 256 KiB
CIPHERTEXT_BYTES_MAX = PLAINTEXT_BYTES_MAX + TAG_BYTES
REKEY_AFTER_BYTES = 64 * 1024**3  # 2^32 AES blocks: an attacker's advantage stays below 2^-64
REKEY_AFTER_S = 3600.0
REKEY_FLAG = 1 << 31
REKEY_TAG = b"p2pswarm-rekey:"
DERIVE_TAG = b"p2pswarm-derive:"
REFUSED = "the record is not authentic"  # one text for all, so that an attacker learns nothing

Buffer = bytes | bytearray | memoryview


class Sealer:
    """Seals what one side sends, in order. Two threads must not use it at once."""

    def __init__(
        self,
        key: bytes,
        suite: Suite,
        label: bytes,
        now_s: float = 0.0,
        rekey_after_bytes: int = REKEY_AFTER_BYTES,
    ) -> None:
        """`label`: 4 bytes that begin every nonce. `key`: 32 bytes, for one direction only."""
        self._rekey_after_bytes = rekey_after_bytes
        self._suite = suite
        self._key = key
        self._aead = suite.aead(key)
        self._label = _checked_label(label)
        self._count = 0
        self._bytes = 0
        self._key_since_s = now_s

    def seal(self, plaintext: Buffer, now_s: float = 0.0) -> bytes:
        """The record of `plaintext`, with its prefix."""
        prefix, nonce = self._next(len(plaintext), now_s)
        record = prefix + self._aead.encrypt(nonce, plaintext, prefix)
        if prefix[0] & 0x80:
            self._rekey(now_s)
        return record

    def seal_into(self, plaintext: Buffer, out: memoryview, now_s: float = 0.0) -> int:
        """Write the record of `plaintext` to the start of a flat view; returns its length."""
        length = len(plaintext) + OVERHEAD_BYTES
        if len(out) < length:
            raise ValueError(f"a record of {length} bytes does not fit in {len(out)}")
        prefix, nonce = self._next(len(plaintext), now_s)
        out[:PREFIX_BYTES] = prefix
        self._aead.encrypt_into(nonce, plaintext, prefix, out[PREFIX_BYTES:length])
        if prefix[0] & 0x80:
            self._rekey(now_s)
        return length

    def _next(self, length: int, now_s: float) -> tuple[bytes, bytes]:
        if length > PLAINTEXT_BYTES_MAX:
            raise ValueError(f"{length} bytes in a record, allowed are {PLAINTEXT_BYTES_MAX}")
        nonce = self._label + self._count.to_bytes(8)
        self._count += 1
        self._bytes += length
        header = length + TAG_BYTES
        if self._bytes >= self._rekey_after_bytes or now_s - self._key_since_s >= REKEY_AFTER_S:
            header |= REKEY_FLAG
        return header.to_bytes(PREFIX_BYTES), nonce

    def _rekey(self, now_s: float) -> None:
        self._key = _next_key(self._key)
        self._aead = self._suite.aead(self._key)
        self._bytes = 0
        self._key_since_s = now_s


class Opener:
    """Opens what the other side's Sealer sealed, in the same order."""

    def __init__(self, key: bytes, suite: Suite, label: bytes) -> None:
        """Take the same key, suite and label as the sealer."""
        self._suite = suite
        self._key = key
        self._aead = suite.aead(key)
        self._label = _checked_label(label)
        self.count = 0
        """The number of the next record; only read it."""
        self._failed = False

    def go_on(self) -> None:
        """Try the record again that was not authentic: its real bytes may come another way.

        Each call gives a forger one try more, so its caller bounds them (RFC 9001, 6.6).
        """
        self._failed = False

    def open(self, ciphertext: Buffer, prefix: Buffer) -> bytes:
        """The plaintext of one record; BadRecord if it is not authentic."""
        if self._failed or int.from_bytes(prefix) & ~REKEY_FLAG != len(ciphertext):
            raise self._refusal()
        nonce = self._label + self.count.to_bytes(8)
        try:
            plaintext = self._aead.decrypt(nonce, ciphertext, prefix)
        except InvalidTag:
            raise self._refusal() from None
        self.count += 1
        if prefix[0] & 0x80:
            self._rekey()
        return plaintext

    def open_into(self, ciphertext: Buffer, prefix: Buffer, out: memoryview) -> int:
        """Write the plaintext of one record to the start of `out`; returns its length.

        All are flat views of bytes. For a record that is not authentic, that part of `out` is
        set to zero and BadRecord is raised.
        """
        length = len(ciphertext) - TAG_BYTES
        if len(out) < length:
            raise ValueError(f"a record of {length} bytes does not fit in {len(out)}")
        if self._failed or int.from_bytes(prefix) & ~REKEY_FLAG != len(ciphertext):
            raise self._refusal()
        nonce = self._label + self.count.to_bytes(8)
        plaintext = out[:length]
        try:
            self._aead.decrypt_into(nonce, ciphertext, prefix, plaintext)
        except InvalidTag:
            plaintext[:] = bytes(length)  # the cipher writes before it checks the tag
            raise self._refusal() from None
        self.count += 1
        if prefix[0] & 0x80:
            self._rekey()
        return length

    def _refusal(self) -> BadRecord:
        self._failed = True
        return BadRecord(REFUSED)

    def _rekey(self) -> None:
        self._key = _next_key(self._key)
        self._aead = self._suite.aead(self._key)


def ciphertext_bytes(prefix: Buffer) -> int:
    """Return how many bytes follow this prefix of a record; BadRecord if that cannot be."""
    length = int.from_bytes(prefix) & ~REKEY_FLAG
    if len(prefix) != PREFIX_BYTES or not TAG_BYTES <= length <= CIPHERTEXT_BYTES_MAX:
        raise BadRecord(REFUSED)
    return length


def derive(
    exporter: bytes, label: bytes, nonce_i: bytes, nonce_r: bytes, number: int
) -> tuple[bytes, bytes]:
    """The keys of another connection of a session: (initiator to responder, the other way).

    Each side gives a nonce of the same fixed length, new for every connection, and both
    know the connection's number. `label` names the purpose.
    """
    if len(nonce_i) != len(nonce_r):
        raise ValueError(f"nonces of {len(nonce_i)} and {len(nonce_r)} bytes")
    info = DERIVE_TAG + bytes([len(label)]) + label + number.to_bytes(8)
    key_i2r, key_r2i = hkdf(exporter, nonce_i + nonce_r, info, 2)
    return key_i2r, key_r2i


def _next_key(key: bytes) -> bytes:
    return hkdf(key, b"", REKEY_TAG, 1)[0]


def _checked_label(label: bytes) -> bytes:
    if len(label) != LABEL_BYTES:
        raise ValueError(f"a label has {LABEL_BYTES} bytes, not {len(label)}")
    return label
