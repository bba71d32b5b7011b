"""BulkPlaces: how many bulk connections peers may join to our links, over all links together.

A peer joins up to 16 to each link, and nobody needs to have asked for them. If all places are
taken, a link of the largest group of addresses makes way (`fair_places.py`): the oldest that nobody
uses, then the oldest that only its peer uses. A link with a stream of ours or a tensor never does.

Units:   counts.
Errors:  BadHandshake if no link can make way.
"""

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from p2pswarm.base.errors import BadHandshake
from p2pswarm.net.guard.fair_places import FairPlaces
from p2pswarm.net.guard.link_places import LinkUse, least_used
from p2pswarm.net.os.address_groups import address_groups

L = TypeVar("L", bound=Hashable)


class BulkPlaces(Generic[L]):
    """The bulk connections that have joined, by link and by group of addresses."""

    def __init__(self, most: int, use: Callable[[L], LinkUse]) -> None:
        """`use`: tells who uses a link now."""
        self._most = most
        self._use = use
        self._places: FairPlaces[tuple[L, int]] = FairPlaces()
        self._numbers: dict[L, dict[int, None]] = {}

    def make_room(self, link: L) -> list[L]:
        """The links to close before one more connection joins `link`."""
        if len(self._places) < self._most:
            return []
        crowd = [other for other, _ in self._places.next_to_go() if other is not link]
        least = least_used(crowd, self._use, (LinkUse.NOBODY, LinkUse.THEM))
        if least is not None:
            return [least]
        raise BadHandshake(f"{self._most} bulk connections have joined, and none can make way")

    def add(self, link: L, number: int, host: str) -> None:
        """Count a connection that joins `link`, whose peer is at `host`, under `number`."""
        self._numbers.setdefault(link, {})[number] = None
        self._places.add((link, number), address_groups(host))

    def leave(self, link: L, number: int) -> None:
        """Forget a connection that has ended, if it is counted."""
        numbers = self._numbers.get(link, {})
        if number in numbers:
            del numbers[number]
            self._places.remove((link, number))

    def remove(self, link: L) -> None:
        """Forget the connections of a link that is over."""
        for number in self._numbers.pop(link, {}):
            self._places.remove((link, number))
