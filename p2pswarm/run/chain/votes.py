"""Which peers answer a leader, and with which file each of them votes.

A vote is lost when its peer has left several calls in a row without an answer. One that has not
answered in this term at all is lost after the first: the trainer that led before is dead then, and
most of the others have answered within a round trip. So is one whose stream has just ended. A vote
is found again by the next answer. To take a living voter for dead costs a record, so this need not
be sure.

Units:   none; calls fail after a second at most.
Errors:  none.
"""

MISSES_MAX = 3  # with a heartbeat a second: a little less than the 4 s that voters are calm


class Votes:
    """What is known of each peer that was asked."""

    def __init__(self) -> None:
        self.memories: dict[bytes, bytes] = {}
        """Which file each peer votes with, as far as it has answered."""
        self._misses: dict[bytes, int] = {}

    @property
    def lost(self) -> frozenset[bytes]:
        """The peers that do not answer."""
        return frozenset(peer for peer in self._misses if self._lost(peer))

    def answered(self, peer: bytes, memory: bytes) -> bool:
        """A peer has answered; returns whether that is news."""
        news = self._lost(peer) or self.memories.get(peer) != memory
        self._misses.pop(peer, None)
        self.memories[peer] = memory
        return news

    def unanswered(self, peer: bytes) -> bool:
        """A call has failed; returns whether the peer is lost by that."""
        before = self._lost(peer)
        self._misses[peer] = self._misses.get(peer, 0) + 1
        return self._lost(peer) and not before

    def doubted(self, peer: bytes) -> None:
        """A peer's stream has ended: one failure more, and it is lost."""
        if peer in self.memories:
            self._misses[peer] = max(self._misses.get(peer, 0), MISSES_MAX - 1)

    def _lost(self, peer: bytes) -> bool:
        misses = self._misses.get(peer, 0)
        return misses >= (MISSES_MAX if peer in self.memories else 1)
