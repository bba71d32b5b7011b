"""Members of one stage between whom nothing passes: who leaves an averaging, whose word counts.

Each member of a stage averages with all others, so no averaging succeeds that has two members with
a cut between them. One of them has to leave, and what it counted is done again: so it is the one
that has counted less. A newcomer that has counted nothing costs nothing.

A member that lies could have others thrown out in this way. So the word of one member alone counts
once; after that it has to average with others many times before it counts again, and until then it
is the speaker that leaves. What both members say of each other counts always.

Units:   seconds on the caller's clock; peers by their 32-byte id.
Errors:  none.
"""

from collections.abc import Iterable

from p2pswarm.run.messages.types import MEMBERS_MAX

MUTUAL_S = 60.0  # both find a cut within seconds, but perhaps not in the same averaging
AVERAGINGS = 32  # as many as make a server's failures forgotten, see `failing_servers.py`


class BrokenPairs:
    """Who said of whom that nothing passes."""

    def __init__(self, pairs_max: int = MEMBERS_MAX) -> None:
        self._max = pairs_max
        self._said_s: dict[tuple[bytes, bytes], float] = {}
        """When a peer said it last of another; the newest stands last."""
        self._spent: dict[bytes, int] = {}
        """Whose word does not count, and for how many averagings."""

    def said(self, by: bytes, of: bytes, now_s: float) -> None:
        """A member says that nothing passes between it and another."""
        self._said_s.pop((by, of), None)
        self._said_s[by, of] = now_s
        if len(self._said_s) > self._max:
            del self._said_s[next(iter(self._said_s))]

    def averaged(self, peers: Iterable[bytes]) -> None:
        """These have averaged with each other."""
        for peer in peers:
            left = self._spent.pop(peer, 1) - 1
            if left:
                self._spent[peer] = left

    def leaves(self, by: bytes, of: bytes, counts: tuple[int, int], now_s: float) -> bytes:
        """Which of two leaves; `by` says so, `counts`: how much `by` and the other have counted."""
        ours, theirs = counts
        if ours <= theirs:
            return by
        mutual = now_s < self._said_s.get((of, by), float("-inf")) + MUTUAL_S
        if not mutual:
            if by in self._spent:
                return by
            self._spent[by] = AVERAGINGS
            if len(self._spent) > self._max:
                del self._spent[next(iter(self._spent))]
        return of
