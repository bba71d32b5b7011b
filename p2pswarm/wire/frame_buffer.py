"""Received bytes, kept until a whole length-prefixed frame is there.

A stream may cut a frame anywhere. What is announced is judged as soon as its
prefix is there, before a byte of the body is waited for, so a peer can make us
hold one frame of the allowed size and no more.

Units:   bytes.
Errors:  BadFrame for a length outside the limits; ValueError when we are misused.
"""

from p2pswarm.errors import BadFrame


class FrameBuffer:
    """Cuts a stream into frames: a big-endian length of `prefix_bytes`, then the body."""

    __slots__ = ("_body_bytes_max", "_held", "_length_mask", "_prefix_bytes")

    def __init__(self, prefix_bytes: int, body_bytes_max: int, flag_bits: int = 0) -> None:
        """`flag_bits`: so many top bits of the prefix are flags and not length."""
        length_bits = 8 * prefix_bytes - flag_bits
        if not 1 <= body_bytes_max < 2**length_bits:
            raise ValueError(f"{length_bits} bits cannot hold a length of {body_bytes_max}")
        self._prefix_bytes = prefix_bytes
        self._body_bytes_max = body_bytes_max
        self._length_mask = 2**length_bits - 1
        self._held = bytearray()

    def receive(self, data: bytes | bytearray | memoryview) -> None:
        """Add what the stream gave; take every frame with `next_frame` before the next."""
        if len(self._held) >= self._prefix_bytes + self._body_bytes_max:
            raise ValueError("take the frames that are there before feeding more")
        self._held += data

    def next_frame(self) -> tuple[bytes, bytes] | None:
        """The next whole frame as (prefix, body), or None until more arrives."""
        held, start = self._held, self._prefix_bytes
        if len(held) < start:
            return None
        length = int.from_bytes(held[:start]) & self._length_mask
        if not 1 <= length <= self._body_bytes_max:
            raise BadFrame(f"a frame of {length} bytes, allowed are 1..{self._body_bytes_max}")
        end = start + length
        if len(held) < end:
            return None
        frame = bytes(held[:start]), bytes(held[start:end])
        del held[:end]
        return frame

    def rest(self) -> bytes:
        """Take all that is held: the bytes after the last frame, for whoever reads next."""
        held = bytes(self._held)
        self._held.clear()
        return held
