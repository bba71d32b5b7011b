"""FrameBuffer: cuts a stream of bytes into length-prefixed frames.

A stream may cut a frame anywhere. The announced length is checked as soon as the
prefix is there, so a peer can make us hold one frame of the allowed size and no
more. A frame that arrives whole is not copied. A frame that arrives in pieces is
copied once, when its last byte is there.

Units:   bytes.
Errors:  the PeerError that the caller chose, for a length outside the limits; ValueError
         for limits that the prefix cannot hold.
"""

from p2pswarm.base.errors import BadFrame, PeerError

SMALL_BYTES = 4096  # copying less than this is faster than making a view
Frame = tuple[bytes, bytes | memoryview]
"""Prefix and body. The body stays valid: its memory is never written again."""


class FrameBuffer:
    """Cuts a stream in which each frame is a big-endian length of `prefix_bytes` and a body."""

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
