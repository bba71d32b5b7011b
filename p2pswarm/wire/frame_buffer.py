"""FrameBuffer: cuts a stream of bytes into length-prefixed frames.

A stream may cut a frame anywhere. The announced length is judged as soon as the
prefix is there, before a byte of the body is waited for, so a peer can make us
hold one frame of the allowed size and no more. A frame that arrives whole is not
copied; one that drips in is copied once, when its last byte is there.

Units:   bytes.
Errors:  the PeerError that the owner chose, for a length outside the limits; ValueError
         when we are misused.
"""

from p2pswarm.errors import BadFrame, PeerError

SMALL_BYTES = 4096  # to copy so little takes less time than to make a view of it
Frame = tuple[bytes, bytes | memoryview]
"""Prefix and body. The body stays valid: nothing is written to its memory any more."""


class FrameBuffer:
    """The bytes of one stream: a big-endian length of `prefix_bytes`, a body, and so on."""

    __slots__ = (
        "_body_bytes_max",
        "_body_bytes_min",
        "_error",
        "_held",
        "_length_mask",
        "_needed",
        "_prefix_bytes",
    )

    def __init__(
        self,
        prefix_bytes: int,
        body_bytes_max: int,
        body_bytes_min: int = 1,
        flag_bits: int = 0,
        error: type[PeerError] = BadFrame,
    ) -> None:
        """`flag_bits`: how many top bits of the prefix are flags and not length.

        `error`: what a length outside the limits is.
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
        """Take what the stream gave; returns the frames that are whole now, in order."""
        held, prefix_bytes = self._held, self._prefix_bytes
        if not held and len(data) <= SMALL_BYTES:  # nearly always it is one frame, and whole
            prefix = data[:prefix_bytes]
            length = int.from_bytes(prefix) & self._length_mask
            if (
                prefix_bytes + length == len(data)
                and self._body_bytes_min <= length <= self._body_bytes_max
            ):
                return [(prefix, data[prefix_bytes:])]
        if held:
            held += data
            if len(held) < self._needed:  # a frame that drips in is not copied at every drop
                return []
            data = bytes(held)
            held.clear()
        return self._cut(data)

    def _cut(self, data: bytes) -> list[Frame]:
        """The whole frames of `data`, which is all that is there; the rest is held."""
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
