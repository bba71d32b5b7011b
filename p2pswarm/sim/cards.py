"""The cards of a simulated world, which nobody signs: with 10,000 nodes that would take minutes.

They have the form and about the size of real ones; where the key stands, there is the peer's id. So
whoever simulates a liar may name peers that nobody has a key of: that is more than a real one can.

Units:   bytes.
Errors:  BadMessage for bytes that are no card.
Source:  docs/addresses.md.
"""

from collections.abc import Iterable
from functools import lru_cache

from p2pswarm.base.errors import BadMessage
from p2pswarm.base.ids import Contact, PeerId
from p2pswarm.discovery.dht.messages import PeerList
from p2pswarm.net.cards.card import (
    Card,
    CardBody,
    CardFlags,
    SignedCard,
    can_be_said,
    direct_address,
)
from p2pswarm.net.crypto.identity import SIGNATURE_BYTES
from p2pswarm.net.wire.message import decode, encode

CARDS_READ = 16_384  # more than a large simulation has peers
NO_SIGNATURE = bytes(SIGNATURE_BYTES)


def unsigned(peer: PeerId, *places: Contact, seq: int = 0) -> bytes:
    """A card of a peer that names these places; of a client, if there are none to name."""
    direct = [direct_address(each.address) for each in places if can_be_said(each.address)]
    flags = CardFlags.NONE if direct else CardFlags.CLIENT
    return encode(
        SignedCard(encode(CardBody(peer.raw, seq, tuple(direct), (), flags)), NO_SIGNATURE)
    )


@lru_cache(maxsize=CARDS_READ)
def read_unsigned(data: bytes) -> Card:
    """The card in bytes, whoever made them."""
    signed = decode(data)
    body = decode(signed.body) if isinstance(signed, SignedCard) else signed
    if not isinstance(signed, SignedCard) or not isinstance(body, CardBody):
        raise BadMessage(f"{type(body).__name__} is no card")
    return Card.of(PeerId(body.public_key), body, signed)


def unsigned_list(named: Iterable[Contact]) -> PeerList:
    """A list of these peers, which says that each was found where its contact is."""
    found = [(each.peer, each) for each in named]
    cards = [unsigned(peer, contact) for peer, contact in found if peer is not None]
    return PeerList(tuple(cards), bytes(len(cards)))


class UnsignedCards:
    """What the peers of a world say of themselves: implements `CardSource`, for all of them."""

    def __init__(self) -> None:
        self._said: dict[PeerId, tuple[Contact, ...]] = {}
        self._cards: dict[PeerId, Card] = {}

    def say(self, peer: PeerId, *places: Contact) -> None:
        """Let a peer say that it is at these places, or that it is a client if there are none."""
        self._said[peer] = places
        self._cards.pop(peer, None)

    def of(self, peer: PeerId) -> Card | None:
        """What a peer says of itself."""
        card = self._cards.get(peer)
        if card is None and peer in self._said:
            card = self._cards[peer] = read_unsigned(unsigned(peer, *self._said[peer]))
        return card

    @staticmethod
    def read(data: bytes) -> Card:
        """The card in bytes."""
        return read_unsigned(data)

    def learn(self, card: Card, heard_at: str) -> bool:
        """Nothing: everybody's card is known already."""
        del card, heard_at
        return False
