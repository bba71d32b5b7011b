"""MemberCards: the cards of peers, as the messages of a run carry them.

Source:  docs/addresses.md.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Protocol

from p2pswarm.base.errors import BadMessage
from p2pswarm.base.ids import Address, PeerId
from p2pswarm.net.cards.card import CardBody, SignedCard
from p2pswarm.net.wire.message import Message, decode
from p2pswarm.run.messages.field_limits import NO_PATHS, PathCounts
from p2pswarm.run.messages.membership import MemberRecord, StandsBy, View
from p2pswarm.run.messages.trainers import AskReachable, Trainers, Whereabouts

PEERS_BYTES_MAX = 56 * 1024  # of those that one message names, with their cards: it has 60 KiB
PEER_COST_BYTES = 44  # an id, and what msgpack adds to it, an address and a card
CARDS_LOOKED_INTO = 8192  # twice the members of the largest run; 300 bytes each


class MemberCards(Protocol):
    """The newest cards that this node knows: none here, and those of links in `KnownCards`.

    Who receives a card passes it on as it is: only its peer could have made it. Links have cards
    of their own; a simulation without links has none.
    """

    def of(self, _peer: bytes) -> bytes:
        """The card of a peer, or of this node; empty if none is known."""
        return b""

    def learn(self, peer: bytes, card: bytes, teller: PeerId | None) -> None:
        """Take a peer's card that `teller` has told us; none is empty bytes.

        Raises BadMessage if it is no card, or another peer's.
        """

    def links(self, _peers: Iterable[bytes]) -> PathCounts:
        """Return how links that are up lead to these peers."""
        return NO_PATHS

    def watch(self, _on_news: Callable[[bytes], None]) -> Callable[[], None]:
        """Have `_on_news` called with each peer whose card has changed; returns what ends that."""
        return lambda: None


class NoCards(MemberCards):
    """Where peers have no cards."""

    def learn(self, peer: bytes, card: bytes, teller: PeerId | None) -> None:
        """Whatever is told, nobody dials by it."""


NO_CARDS = NoCards()


@lru_cache(maxsize=CARDS_LOOKED_INTO)
def leads_there(card: bytes, address: str) -> bool:
    """Return whether a card names this address, of its peer or of the peer at a relay of its.

    No signature is checked: who asks has done that.
    """
    try:
        signed = decode(card)
        body = decode(signed.body) if isinstance(signed, SignedCard) else None
        at = Address.parse(address)
    except (BadMessage, ValueError):
        return False
    if not isinstance(body, CardBody):
        return False
    named = [each.address for each in body.direct]
    return at in named or at.place in [each.at.address for each in body.relays]


def learn_all(cards: MemberCards, message: Message | None, teller: PeerId | None) -> None:
    """Take the cards of all peers that a message names; raises BadMessage for one that is none."""
    match message:
        case View():
            named: Iterable[MemberRecord | Whereabouts | StandsBy] = message.joined
        case Trainers():
            named = (*message.trainers, *message.voters)
        case AskReachable():
            named = message.peers
        case StandsBy() if message.peer:
            named = (message,)
        case _:
            return
    for where in named:
        cards.learn(where.peer, where.card, teller)


def as_far_as_they_fit(
    cards: MemberCards, peers: Sequence[Whereabouts], bytes_max: int = PEERS_BYTES_MAX
) -> tuple[Whereabouts, ...]:
    """The same peers, with the newest cards of the first of them: `bytes_max` with these."""
    left = bytes_max - sum(PEER_COST_BYTES + len(where.address.encode()) for where in peers)
    carded = []
    for where in peers:
        card = cards.of(where.peer)
        if len(card) > left:
            card = b""
        left -= len(card)
        carded.append(replace(where, card=card))
    return tuple(carded)


def with_cards(cards: MemberCards, told: Trainers) -> Trainers:
    """The same, with the newest card of each peer that it names."""

    def carded(where: Whereabouts) -> Whereabouts:
        return replace(where, card=cards.of(where.peer))

    return replace(
        told,
        trainers=tuple(map(carded, told.trainers)),
        voters=tuple(map(carded, told.voters)),
    )
