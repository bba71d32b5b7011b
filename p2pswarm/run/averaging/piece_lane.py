"""PieceLane: how many pieces of one averaging may be on their way to a peer."""

LANE_BYTES = 16 << 20  # 0.1 s at 1 Gbit/s, 0.6 s at 200 Mbit/s
PIECES_LEAST, PIECES_MOST = 4, 16


def parts_ahead(members: int) -> int:
    """The parts of one sender that may wait at an owner to be added.

    All senders together have 256 MiB of float32 there, or four parts each: 1 GiB of 64 members.
    """
    return max(PIECES_LEAST, min(PIECES_MOST, 64 // max(1, members - 1)))


class PieceLane:
    """The way to one peer, for pieces as they are encoded.

    A piece takes two round trips besides its bytes: its receiver grants memory, and says when all
    is there. So a line is full only if the pieces under way have as many bytes as it carries in
    that time. Four pieces of float32 have enough; of a codec that makes them small it takes more.
    """

    def __init__(self, pieces_most: int) -> None:
        self._pieces_most = pieces_most
        self._pieces = 0
        self._bytes = 0

    def fits(self, size_bytes: int) -> bool:
        """Return whether one more piece may go now."""
        few = self._pieces < min(PIECES_LEAST, self._pieces_most)
        return few or (self._pieces < self._pieces_most and self._bytes + size_bytes <= LANE_BYTES)

    def enter(self, size_bytes: int) -> None:
        """A piece goes."""
        self._pieces += 1
        self._bytes += size_bytes

    def leave(self, size_bytes: int) -> None:
        """It has arrived, or failed."""
        self._pieces -= 1
        self._bytes -= size_bytes
