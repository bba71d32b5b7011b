"""Bucket: one k-bucket, the limited list of contacts at one distance from us.

A full bucket never drops a contact that still answers, because a node that has stayed
long is likely to stay longer. So a newcomer waits while the contact that has been silent
longest is checked. The bucket does not ping: it returns the contact to check, and its
caller reports the outcome.

Units:   seconds (`_s`) on the caller's monotonic clock, `loop.time()`.
Shapes:  `live` holds 0..capacity contacts.
Errors:  ValueError for a capacity below 1. A peer can cause none.
Source:  Maymounkov and Mazieres, "Kademlia" (2002), sections 2.2 and 4.1; the cap on
         neighbours of one network: go-libp2p-kbucket's diversity filter.
"""

from collections.abc import Collection
from dataclasses import dataclass, field

from p2pswarm.base.ids import Contact

CHECK_EVERY_S = 5.0  # one ping per bucket in this time, however many newcomers there are


@dataclass(frozen=True, slots=True)
class Neighbour:
    """A server that we have met; a handshake has proven its id."""

    contact: Contact
    raw: bytes
    """Its id."""
    number: int = field(repr=False)
    """The id as a number, to measure distances by."""
    near_net: str
    """The /24 network of its address; empty for a private network, which has no cap."""
    wide_net: str
    """The /16 network of its address, or empty."""
    heard_s: float
    """The time at which it last reached us."""


class Bucket:
    """At most `capacity` live contacts, and at most `waiting` newcomers."""

    __slots__ = ("_capacity", "_live", "_next_check_s", "_per_net", "_waiting", "_waiting_most")

    def __init__(self, capacity: int, waiting: int, per_net: int) -> None:
        if capacity < 1:
            raise ValueError(f"a bucket holds 1 contact or more, not {capacity}")
        self._capacity = capacity
        self._waiting_most = waiting
        self._per_net = per_net
        self._live: dict[bytes, Neighbour] = {}
        self._waiting: dict[bytes, Neighbour] = {}
        self._next_check_s = float("-inf")

    def __len__(self) -> int:
        return len(self._live)

    @property
    def full(self) -> bool:
        """Whether a newcomer would have to wait."""
        return len(self._live) >= self._capacity

    @property
    def live(self) -> Collection[Neighbour]:
        """The live contacts, in the order in which they came."""
        return self._live.values()

    def get(self, raw: bytes) -> Neighbour | None:
        """The live contact with this id."""
        return self._live.get(raw)

    def renew(self, neighbour: Neighbour) -> None:
        """Note that a live contact has reached us again."""
        self._live[neighbour.raw] = neighbour

    def heard_from(self, newcomer: Neighbour) -> Neighbour | None:
        """Note that `newcomer`, which is not live here, reached us at `newcomer.heard_s`.

        Returns the live contact to check if the newcomer has to wait for it. Report the
        outcome with `renew` or `lost`. A missing report does no harm: `CHECK_EVERY_S` later
        the bucket asks for another check.
        """
        if self._crowded(newcomer):
            return None
        if not self.full:
            self._live[newcomer.raw] = newcomer
            self._waiting.pop(newcomer.raw, None)
            return None

        self._waiting[newcomer.raw] = newcomer
        if len(self._waiting) > self._waiting_most:
            del self._waiting[min(self._waiting.values(), key=_silence).raw]

        if newcomer.heard_s < self._next_check_s:
            return None
        self._next_check_s = newcomer.heard_s + CHECK_EVERY_S
        return min(self._live.values(), key=_silence)

    def lost(self, raw: bytes, barred: Collection[str] = ()) -> Neighbour | None:
        """Drop a contact that did not answer; the freshest newcomer takes its place.

        Newcomers from a wide network in `barred` go on waiting. Returns the newcomer that
        came in, or None if there is none or `raw` is not here.
        """
        self._waiting.pop(raw, None)
        if self._live.pop(raw, None) is None:
            return None
        allowed = [each for each in self._waiting.values() if each.wide_net not in barred]
        if not allowed:
            return None
        newcomer = max(allowed, key=_silence)
        del self._waiting[newcomer.raw]
        self._live[newcomer.raw] = newcomer
        return newcomer

    def _crowded(self, newcomer: Neighbour) -> bool:
        """Whether the bucket has enough contacts of its network, live and waiting together."""
        if not newcomer.near_net:
            return False
        here = (*self._live.values(), *self._waiting.values())
        others = [each for each in here if each.raw != newcomer.raw]
        return sum(each.near_net == newcomer.near_net for each in others) >= self._per_net


def _silence(neighbour: Neighbour) -> tuple[float, bytes]:
    """A sort key: the longest silent first; the id decides ties, so every run agrees."""
    return neighbour.heard_s, neighbour.raw
