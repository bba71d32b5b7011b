"""NodeCards: all that a node knows of cards, its own and others'.

Units:   `now_s` seconds on the caller's monotonic clock; `now_ms` milliseconds since 1970.
Errors:  BadMessage for what a peer sends; ValueError for addresses of ours that others refuse.
Source:  docs/addresses.md.
"""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

from p2pswarm.base.errors import BadMessage
from p2pswarm.base.ids import Address, Contact, PeerId
from p2pswarm.net.cards.card import Card, decode_card, is_loopback
from p2pswarm.net.cards.card_book import CardBook
from p2pswarm.net.cards.card_claims import CardClaims
from p2pswarm.net.cards.card_exchange import CardExchange
from p2pswarm.net.cards.own_card import CardContents, OwnCard, announced_by
from p2pswarm.net.crypto.identity import Identity

L = TypeVar("L", bound=Hashable)


@dataclass(frozen=True, slots=True)
class HeardCard:
    """What came of a card that a peer has sent over its link."""

    answer: bytes = b""
    """The peer's card that counts, if the peer does not know it."""
    moved: bool = False
    """Whether the peer has new addresses."""
    outdone: bool = False
    """Whether we have to make a card that counts more than one of an earlier process of ours."""


class NodeCards(Generic[L]):
    """The cards of one node, whose links are of the type L."""

    def __init__(self, identity: Identity) -> None:
        self.book = CardBook(identity.peer_id)
        self.claims = CardClaims()
        self.exchange: CardExchange[L] = CardExchange()
        self._us = identity.peer_id
        self._own = OwnCard(identity)
        self._said: CardContents | None = None
        self._host = ""

    def ours(self, us: Contact, now_ms: int) -> Card:
        """Our card: it says what was announced, or else where our contact is."""
        self._host = us.address.host
        return self._own.saying(self._said or announced_by(us), now_ms)

    def announce(self, said: CardContents, now_ms: int) -> None:
        """Say this from now on; ValueError if others would not take it."""
        self._own.saying(said, now_ms)
        self._said = said

    def learn(self, card: Card, remote: Address) -> bool:
        """Keep a card that came over a connection; whether it says anything new.

        A peer behind a relay of our own machine may be anywhere: what it names is believed as if
        it were at our own address, so nobody outside makes us dial our own machine.
        """
        behind_us = remote.circuit and is_loopback(remote.host)
        return self.book.learn(card, self._host if behind_us else remote.host)

    def met(self, link: L, theirs: Card, introduced: bytes, ours: Card) -> Card | None:
        """Note a link that came up; returns the peer's card that counts, if it is another.

        `theirs`: the card that it introduced itself with; `introduced`: what we did.
        """
        self.book.linked(theirs.peer)
        data = ours.encode()
        self.exchange.up(link, data if introduced.endswith(data) else b"")
        kept = self.book.of(theirs.peer)
        return None if kept is None or kept.signed == theirs.signed else kept

    def left(self, link: L, peer: PeerId) -> None:
        """Note the end of a link that came up."""
        self.book.unlinked(peer)
        self.exchange.ended(link)

    def hear(self, link: L, sender: Contact, data: bytes, now_s: float) -> HeardCard:
        """Take a card that came over a link; BadMessage if it is neither ours nor the sender's.

        `sender`: the peer, and where the network shows it.
        """
        if not self.exchange.may_hear(link, now_s):
            return HeardCard()
        card = decode_card(data)
        if card.peer == self._us:
            return HeardCard(outdone=self._own.outdone(card))
        if card.peer != sender.peer:
            raise BadMessage(f"a card of {card.peer.short}")
        moved = self.learn(card, sender.address)
        kept = self.book.of(card.peer)
        known = kept is None or kept.signed == card.signed
        return HeardCard(b"" if known or kept is None else kept.encode(), moved)
