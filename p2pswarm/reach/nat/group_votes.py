"""GroupVotes of groups of addresses: each group has one, its latest, for a while.

Ids are free, and so are further addresses in a network that one owns. So peers have no vote here:
their groups have (`net/os/addresses.py`).

Units:   seconds on the caller's monotonic clock.
Shapes:  at most `GROUPS_MAX` groups; the one that voted longest ago makes way.
Errors:  none.
"""

from collections import Counter
from collections.abc import Hashable
from typing import Generic, TypeVar

from p2pswarm.net.os.addresses import address_groups

GROUPS_MAX = 32  # a round asks three groups: those of ten rounds are remembered
VOTE_S = 7200.0  # two of the longest pauses between rounds

A = TypeVar("A", bound=Hashable)


def group_of(host: str) -> str:
    """The group whose vote a peer at `host` casts: a /16 of IPv4, a /32 of IPv6, or a name."""
    return address_groups(host)[1]


class GroupVotes(Generic[A]):
    """What groups have answered to one question."""

    def __init__(self) -> None:
        self._cast: dict[str, tuple[A, float]] = {}
        """The answer of each group and when it came; the oldest first."""

    def cast(self, group: str, answer: A, now_s: float) -> None:
        """Note a group's answer, instead of its last one."""
        self._cast.pop(group, None)
        self._cast[group] = answer, now_s
        if len(self._cast) > GROUPS_MAX:
            del self._cast[next(iter(self._cast))]

    def at_s(self, group: str) -> float | None:
        """When a group has voted last; None if it has not."""
        return self._cast[group][1] if group in self._cast else None

    def count(self, now_s: float) -> Counter[A]:
        """How many groups have given each answer; votes older than `VOTE_S` do not count."""
        return Counter(answer for answer, at_s in self._cast.values() if now_s - at_s < VOTE_S)

    def forget(self) -> None:
        """Forget every vote."""
        self._cast.clear()
