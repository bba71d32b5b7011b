"""CardBook: the newest card of every peer that we have heard of, as far as there is room.

Shapes:  at most `most` cards of peers without a link; one a link beside them.
Source:  docs/addresses.md.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from p2pswarm.base.ids import Address, Contact, PeerId
from p2pswarm.net.cards.card import Card, believed, decode_card, newer
from p2pswarm.net.guard.connection_limits import FairSlots
from p2pswarm.net.os.addresses import Scope, address_groups, expected_of

CARDS_MAX = 4096  # about 8 MB: four times as many peers as a node has links


@dataclass(slots=True)
class _KeptCard:
    """A card, and the host that we have it from."""

    card: Card
    heard_at: str


class CardBook:
    """The cards of other peers.

    Of two cards of one peer the newer one is kept. Cards of peers that we have links to stay. Of
    the others the oldest of the largest group of networks makes way, by where each was heard: so
    who tells of many invented peers pushes out what it told itself.

    Of a card nothing is known to be true but who signed it: `card_claims.py` says what is dialled.
    """

    on_card: Callable[[Card], None]
    """Called with each card that says anything new."""

    def __init__(self, own: PeerId, most: int = CARDS_MAX) -> None:
        """`own`: our own id; no card of ours is kept here."""
        self._own = own
        self._most = most
        self._kept: dict[PeerId, _KeptCard] = {}
        self._links: dict[PeerId, int] = {}
        self._slots: FairSlots[PeerId] = FairSlots()
        """The peers without a link whose cards are kept."""
        self.on_card = _ignore

    def __len__(self) -> int:
        return len(self._kept)

    def learn(self, card: Card, heard_at: str) -> bool:
        """Keep a card that came from the host `heard_at`, if it is newer; whether it is."""
        if card.peer == self._own:
            return False
        kept = self._kept.get(card.peer)
        if kept is None:
            self._kept[card.peer] = _KeptCard(card, heard_at)
            if card.peer not in self._links:
                self._slots.add(card.peer, address_groups(heard_at))
                self._make_room()
            if card.peer not in self._kept:
                return False
        elif newer(kept.card, card).signed != kept.card.signed:
            kept.card, kept.heard_at = card, heard_at
        else:
            is_nearer = expected_of(heard_at) < expected_of(kept.heard_at)  # more is believed then
            if card.signed == kept.card.signed and is_nearer:
                kept.heard_at = heard_at
            return False
        self.on_card(card)
        return True

    def of(self, peer: PeerId) -> Card | None:
        """The newest card that we have of a peer."""
        kept = self._kept.get(peer)
        return None if kept is None else kept.card

    @staticmethod
    def read(data: bytes) -> Card:
        """The card in bytes of unknown origin; BadMessage if it is none, or is not signed."""
        return decode_card(data)

    def on_link(self, peer: PeerId) -> None:
        """Note a link to a peer: its card stays while there is one."""
        self._links[peer] = self._links.get(peer, 0) + 1
        self._slots.remove(peer)

    def on_link_end(self, peer: PeerId) -> None:
        """Note the end of a link."""
        self._links[peer] -= 1
        if self._links[peer]:
            return
        del self._links[peer]
        kept = self._kept.get(peer)
        if kept is not None:
            self._slots.add(peer, address_groups(kept.heard_at))
            self._make_room()

    def direct(
        self, peer: PeerId, us: Sequence[Address], least: Scope = Scope.PRIVATE
    ) -> list[Contact]:
        """Return where a peer says that it can be dialled itself, IPv6 first; see `believed`."""
        kept = self._kept.get(peer)
        if kept is None:
            return []
        named = [Contact(peer, address) for address in kept.card.addresses]
        found = believed(named, us, kept.heard_at, least)
        return sorted(found, key=lambda each: ":" not in each.address.host)

    def relayed(
        self, peer: PeerId, us: Sequence[Address], least: Scope = Scope.PRIVATE
    ) -> list[Contact]:
        """The peer at the relays where it says that it is reached."""
        kept = self._kept.get(peer)
        if kept is None:
            return []
        relays = [each.contact for each in kept.card.relays]
        found = believed(relays, us, kept.heard_at, least)
        return [Contact(peer, relay.address.through(peer)) for relay in found]

    def _make_room(self) -> None:
        while len(self._slots) > self._most:
            oldest = next(self._slots.next_to_go())
            self._slots.remove(oldest)
            del self._kept[oldest]


def _ignore(_card: Card) -> None:
    """Until somebody sets `on_card`, nobody waits for cards."""
