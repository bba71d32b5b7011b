"""NodeCards: all that a node knows of cards, its own and others', and whom it tells.

Source:  docs/addresses.md; docs/wire.md.
"""

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Annotated, Generic, TypeVar

from p2pswarm.base.errors import BadMessage
from p2pswarm.base.ids import Address, Contact, PeerId
from p2pswarm.base.token_bucket import TokenBucket
from p2pswarm.net.cards.card import (
    CARD_BYTES_MAX,
    SEQ_MAX,
    Card,
    CardFlags,
    can_be_said,
    decode_card,
    is_loopback,
    newer,
)
from p2pswarm.net.cards.card_book import CardBook
from p2pswarm.net.cards.card_claims import CardClaims
from p2pswarm.net.crypto.identity import Identity
from p2pswarm.net.wire.message import Message, Size, message


@dataclass(frozen=True, slots=True)
class CardContents:
    """The statements of a card on its peer."""

    direct: tuple[Address, ...] = ()
    mapped: tuple[Address, ...] = ()
    relays: tuple[Contact, ...] = ()
    flags: CardFlags = CardFlags.NONE


def announced_by(us: Contact) -> CardContents:
    """Return what to say unless we are told more: where we listen, or that we are a client."""
    if can_be_said(us.address):
        return CardContents((us.address,))
    return CardContents(flags=CardFlags.CLIENT)


class OwnCard:
    """The card of this node.

    Its number is the time in milliseconds since 1970, and at least one more than the last. If our
    clock was set back, peers keep the card of our earlier process, which has a higher number:
    whoever has it sends it to us, and our next card goes on from there.
    """

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

    def on_own_card(self, ours: Card) -> bool:
        """Note a card of ours that a peer has kept; whether it counts more than what we say."""
        if ours.peer != self._identity.peer_id or self._card is None:
            return False
        if ours.signed == self._card.signed or newer(ours, self._card) is self._card:
            return False
        self._next_seq = max(self._next_seq, ours.seq + 2)
        return True


TELL_EVERY_S = 1.0  # a peer's address changes far more rarely; a node that starts learns several
HEAR_EVERY_S = 1.0  # as often as honest peers tell theirs
HEAR_BURST = 8  # clocks and networks bunch messages up
HEAR_ALL_EVERY_S = 0.01  # cards of all peers together: 1 % to 4 % of a processor
HEAR_ALL_BURST = 1024  # as many as there are links: all peers may move at once

L = TypeVar("L", bound=Hashable)


@dataclass(slots=True)
class _Exchanged:
    """The cards that a link has carried."""

    ours: bytes
    """Our card, as the peer has it."""
    told_s: float = float("-inf")
    heard: TokenBucket = field(default_factory=lambda: TokenBucket(HEAR_EVERY_S, HEAR_BURST))


class CardExchange(Generic[L]):
    """The cards that links have carried.

    A link begins with the cards of both sides. Whoever's card changes tells it to the peers that it
    has links to, a link at most once in `TELL_EVERY_S`: the newest card at that time. A peer that
    has kept a newer card of ours than the one we told it, from an earlier process of ours, tells us
    so.

    To look at a card costs a tenth of a millisecond, so what comes faster than an honest peer sends
    is not looked at: it gets in by a later card, or with the next link.
    """

    def __init__(self) -> None:
        self._links: dict[L, _Exchanged] = {}
        self._heard = TokenBucket(HEAR_ALL_EVERY_S, HEAR_ALL_BURST)

    def __len__(self) -> int:
        return len(self._links)

    def on_link(self, link: L, introduced: bytes) -> None:
        """Note a link, and the card with which we introduced ourselves on it."""
        self._links[link] = _Exchanged(introduced)

    def on_link_end(self, link: L) -> None:
        """Forget a link."""
        self._links.pop(link, None)

    def to_tell(self, ours: bytes, now_s: float) -> list[L]:
        """The links to tell our card on now."""
        due: list[L] = []
        for link, exchanged in self._links.items():
            # The sum is the deadline's, to the last bit: else it is due and nothing is told.
            if exchanged.ours != ours and now_s >= exchanged.told_s + TELL_EVERY_S:
                exchanged.ours, exchanged.told_s = ours, now_s
                due.append(link)
        return due

    def next_deadline_s(self, ours: bytes) -> float | None:
        """Return when to call `to_tell` again; None if every peer has our card."""
        waiting = (each.told_s for each in self._links.values() if each.ours != ours)
        return min((told_s + TELL_EVERY_S for told_s in waiting), default=None)

    def may_hear(self, link: L, now_s: float) -> bool:
        """Return whether to look at a card that came over a link."""
        exchanged = self._links.get(link)
        return exchanged is not None and exchanged.heard.take(now_s) and self._heard.take(now_s)


@dataclass(frozen=True, slots=True)
class HeardCard:
    """The outcome of a card that a peer has sent over its link."""

    answer: bytes = b""
    """The peer's card that counts, if the peer does not know it."""
    moved: bool = False
    """True if the peer has new addresses."""
    outdone: bool = False
    """True if we have to make a card that counts more than one of an earlier process of ours."""


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

    def on_link(self, link: L, theirs: Card, introduced: bytes, ours: Card) -> Card | None:
        """Note a link that came up; returns the peer's card that counts, if it is another.

        `theirs`: the card that it introduced itself with; `introduced`: what we did.
        """
        self.book.on_link(theirs.peer)
        data = ours.data
        self.exchange.on_link(link, data if introduced.endswith(data) else b"")
        kept = self.book.of(theirs.peer)
        return None if kept is None or kept.signed == theirs.signed else kept

    def on_link_end(self, link: L, peer: PeerId) -> None:
        """Note the end of a link that came up."""
        self.book.on_link_end(peer)
        self.exchange.on_link_end(link)

    def on_card(self, link: L, sender: Contact, data: bytes, now_s: float) -> HeardCard:
        """Take a card that came over a link; BadMessage unless it is ours or the `sender`'s."""
        if not self.exchange.may_hear(link, now_s):
            return HeardCard()
        card = decode_card(data)
        if card.peer == self._us:
            return HeardCard(outdone=self._own.on_own_card(card))
        if card.peer != sender.peer:
            raise BadMessage(f"a card of {card.peer.short}")
        moved = self.learn(card, sender.address)
        kept = self.book.of(card.peer)
        known = kept is None or kept.signed == card.signed
        return HeardCard(b"" if known or kept is None else kept.data, moved)


ANSWER_S = 10.0  # after which nobody waits for `CardHeard` any more


@message(11)
@dataclass(frozen=True, slots=True)
class CardUpdate(Message):
    """The sender's card; or the receiver's own, newer than the one that it introduced."""

    card: Annotated[bytes, Size(1, CARD_BYTES_MAX)]


@message(12)
@dataclass(frozen=True, slots=True)
class CardHeard(Message):
    """The answer to `CardUpdate`."""

    newer: Annotated[bytes, Size(0, CARD_BYTES_MAX)]
    """A card of the sender of the news that counts more; empty if there is none."""
