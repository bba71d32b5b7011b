"""CardPaths: the ways to a peer by its contact and by its card.

First the contact's address: whoever dials has a reason to believe it. Then where the peer's card
says that it is, IPv6 first; then ways that somebody else offers, such as a hole to punch; relays
last. An address that only the card names is tried as `card_claims.py` allows.

Units:   none.
Errors:  those of the ways.
Source:  docs/addresses.md; RFC 8305 for the order.
"""

from collections.abc import Callable, Sequence

from p2pswarm.base.ids import Address, Contact
from p2pswarm.net.cards.card_book import CardBook
from p2pswarm.net.cards.card_claims import CardClaims
from p2pswarm.net.link.path import ClaimedWay, DialledWay, Paths, Way
from p2pswarm.net.os.base import Net


class CardPaths:
    """Implements `Paths` with what is known of peers."""

    offered: Paths | None
    """What knows still other ways; they come before relays."""

    def __init__(
        self,
        net: Net,
        book: CardBook,
        claims: CardClaims,
        us: Callable[[], Sequence[Address]],
        now_s: Callable[[], float],
    ) -> None:
        """`us`: tells our own addresses, which are not dialled; `now_s`: tells the loop's time."""
        self._net = net
        self._book = book
        self._claims = claims
        self._us = us
        self._now_s = now_s
        self.offered = None

    def ways(self, to: Contact) -> Sequence[Way]:
        """The ways that may be tried now, the best kind first; see `Paths`."""
        known: dict[Address, Way] = {}
        if to.address.port:
            known[to.address] = DialledWay(self._net, to.address)
        if to.peer is not None:
            now_s, us = self._now_s(), self._us()
            for named in (*self._book.direct(to.peer, us), *self._book.relayed(to.peer, us)):
                if named.address in known:
                    continue
                if self._claims.confirmed(named):
                    known[named.address] = DialledWay(self._net, named.address)
                elif self._claims.may_dial(named, now_s):
                    known[named.address] = ClaimedWay(self._net, named, self._claims, self._now_s)
        offered = () if self.offered is None else self.offered.ways(to)
        return sorted((*known.values(), *offered), key=lambda way: way.kind)
