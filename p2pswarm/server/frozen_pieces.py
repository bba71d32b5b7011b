"""Which pieces of a version are still to be saved when the next commit wants to change them.

A checkpoint is of one version, and the weights change with every step. Two copies of a state are
more than a server has memory for. So the file is written from the weights themselves. When a commit
comes before the end, it waits until what is left fits the window; that is copied in one go, and the
optimizer goes on. With steps that take longer than the writing, nothing is copied and nobody waits.

Units:   bytes.
Errors:  none.
"""

from collections.abc import Sequence


class FrozenPieces:
    """The pieces of one version, in the order in which they are written."""

    def __init__(self, sizes: Sequence[int], window_bytes: int) -> None:
        """`sizes` of the pieces; `window_bytes`: how much may be copied."""
        self._sizes = sizes
        self._window_bytes = window_bytes
        self._next = 0
        self._reading: int | None = None
        self._closed = False
        self._left_bytes = sum(sizes)
        self._copied: range | None = None

    @property
    def left(self) -> range:
        """The pieces whose reading has not begun."""
        return range(self._next, len(self._sizes))

    @property
    def over(self) -> bool:
        """Whether nobody needs the weights any more: all was read, or is copied."""
        return self._reading is None and (not self.left or self._copied is not None)

    @property
    def fits(self) -> bool:
        """Whether what is left could be copied."""
        return self._left_bytes <= self._window_bytes

    @property
    def must_wait(self) -> bool:
        """Whether the next piece is not to be read: what is left is being copied."""
        return self._closed and self._copied is None

    @property
    def reading(self) -> bool:
        """Whether a piece is being read from the weights."""
        return self._reading is not None

    def begin(self) -> int | None:
        """Begin to read the next piece; None after the last."""
        assert self._reading is None, "one piece at a time"
        assert not self.must_wait, "what is left is being copied"
        if not self.left:
            return None
        number = self._next
        self._next += 1
        self._left_bytes -= self._sizes[number]
        if self._copied is None:
            self._reading = number
        return number

    def end(self) -> None:
        """The piece that was begun is written."""
        self._reading = None

    def close(self) -> None:
        """A commit waits: begin no piece before what is left is copied."""
        assert self.fits, "else it would not fit the window"
        self._closed = True

    def copied(self) -> None:
        """What is left was copied: it is read from there."""
        assert self._closed, "it was closed"
        assert self._reading is None, "nothing is being read"
        self._copied = self.left
