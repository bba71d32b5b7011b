"""OwnCard: our own card, which is made again whenever what it says has changed.

Its number is the time in milliseconds since 1970, and at least one more than the last. If our clock
was set back, peers keep the card of our earlier process, which has a higher number: whoever has it
sends it to us, and our next card goes on from there.

Units:   milliseconds since 1970.
Errors:  ValueError for addresses that others would not take.
Source:  docs/addresses.md.
"""

from dataclasses import dataclass

from p2pswarm.base.ids import Address, Contact
from p2pswarm.net.cards.card import SEQ_MAX, Card, CardFlags, can_be_said, newer
from p2pswarm.net.crypto.identity import Identity


@dataclass(frozen=True, slots=True)
class CardContents:
    """What a card says of its peer."""

    direct: tuple[Address, ...] = ()
    mapped: tuple[Address, ...] = ()
    relays: tuple[Contact, ...] = ()
    flags: CardFlags = CardFlags.NONE


def announced_by(us: Contact) -> CardContents:
    """What to say when nobody has told us more than where we listen.

    Who listens nowhere, or is reached only through a relay or by WebSocket, is a client.
    """
    if can_be_said(us.address):
        return CardContents((us.address,))
    return CardContents(flags=CardFlags.CLIENT)


class OwnCard:
    """The card of this node."""

    def __init__(self, identity: Identity) -> None:
        self._identity = identity
        self._said: CardContents | None = None
        self._card: Card | None = None
        self._next_seq = 0

    def saying(self, said: CardContents, now_ms: int) -> Card:
        """The card that says this: the last one, if it does and no peer has a newer one."""
        if self._card is None or said != self._said or self._card.seq < self._next_seq - 1:
            seq = min(max(now_ms, self._next_seq), SEQ_MAX)
            self._card = Card.make(
                self._identity,
                seq,
                said.direct,
                mapped=said.mapped,
                relays=said.relays,
                flags=said.flags,
            )
            self._said = said
            self._next_seq = seq + 1
        return self._card

    def outdone(self, ours: Card) -> bool:
        """Note a card of ours that a peer has kept; whether it counts more than what we say."""
        if ours.peer != self._identity.peer_id or self._card is None:
            return False
        if ours.signed == self._card.signed or newer(ours, self._card) is self._card:
            return False
        self._next_seq = max(self._next_seq, ours.seq + 2)
        return True
