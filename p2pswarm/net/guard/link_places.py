"""LinkPlaces: who may have a link, when more would like one than there are places.

A newcomer gets in at the cost of the largest group of addresses (`fair_places.py`), where the
oldest link that nobody uses makes way. A link that only its peer uses makes way where one host
holds BUSY_SHARE of all places: else a few streams that never end would hold them for ever. A link
with a stream of ours or a tensor never does. One peer has a few links at most: two that dial each
other at once have two, and each road that is lost without a word leaves one behind for 15 s.

Units:   counts.
Errors:  DialFailed if no link can make way.
"""

from collections.abc import Callable, Hashable, Iterable, Sequence
from enum import Enum, auto
from typing import Generic, TypeVar

from p2pswarm.base.errors import DialFailed
from p2pswarm.base.ids import PeerId
from p2pswarm.net.guard.fair_places import FairPlaces
from p2pswarm.net.os.address_groups import address_groups

PEER_LINKS_MAX = 4  # of one peer: a pair that was dialled at once, and two roads that were lost
BUSY_SHARE = 0.25  # of all places: a site behind one address has fewer machines in one run

L = TypeVar("L", bound=Hashable)


class LinkUse(Enum):
    """Who uses a link."""

    NOBODY = auto()
    THEM = auto()
    """Streams are open, all opened by the peer."""
    US = auto()
    """A stream of ours is open, or a tensor is under way."""


def least_used(
    crowd: Sequence[L], use: Callable[[L], LinkUse], uses: Iterable[LinkUse]
) -> L | None:
    """The first of `crowd` with the first of `uses` that any has; None if none has one."""
    return next((link for wanted in uses for link in crowd if use(link) is wanted), None)


class LinkPlaces(Generic[L]):
    """The links that are up, by peer and by group of addresses."""

    def __init__(self, most: int, use: Callable[[L], LinkUse]) -> None:
        """`use`: tells who uses a link now."""
        self._most = most
        self._use = use
        self._places: FairPlaces[L] = FairPlaces()
        self._peers: dict[PeerId, list[L]] = {}

    def make_room(self, peer: PeerId) -> list[L]:
        """The links to close before one more of `peer` comes up; DialFailed if it must not."""
        alike = self._peers.get(peer, [])
        if len(alike) >= PEER_LINKS_MAX:
            return alike[: len(alike) - PEER_LINKS_MAX + 1]
        if len(self._places) < self._most:
            return []
        crowd = list(self._places.next_to_go())
        uses = [LinkUse.NOBODY]
        if len(crowd) > self._most * BUSY_SHARE:
            uses.append(LinkUse.THEM)
        if (least := least_used(crowd, self._use, uses)) is not None:
            return [least]
        raise DialFailed(f"{self._most} links are up already, and none can make way")

    def add(self, link: L, peer: PeerId, host: str) -> None:
        """Count a link that came up; `host`: the peer's, as the network sees it."""
        self._places.add(link, address_groups(host))
        self._peers.setdefault(peer, []).append(link)

    def remove(self, link: L, peer: PeerId) -> None:
        """Forget a link that is over, if it is counted."""
        if link not in self._places:
            return
        self._places.remove(link)
        self._peers[peer].remove(link)
        if not self._peers[peer]:
            del self._peers[peer]
