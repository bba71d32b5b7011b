"""KnownCards: the cards of an endpoint's book, for the messages of a run. Implements `MemberCards`.

Source:  docs/addresses.md; docs/paths.md; docs/relays.md, "Which path a link has".
"""

from collections import Counter
from collections.abc import Callable, Iterable

from p2pswarm.base.errors import BadMessage
from p2pswarm.base.ids import PeerId
from p2pswarm.net.cards.card import AddressKind, Card, decode_card
from p2pswarm.net.endpoint.endpoint import Endpoint
from p2pswarm.net.link.path import Path, PathKind
from p2pswarm.net.os.addresses import Scope, scope_of
from p2pswarm.run.messages.field_limits import PathCounts

DIRECT, MAPPED, PUNCHED, RELAYED = "direct", "mapped", "punched", "relayed"


def kind_of_link(path: Path, ours: Card, theirs: Card | None) -> str:
    """One of the four kinds of path, as people are told; `ours`, `theirs`: the cards of the ends.

    A side that has dialled knows what it has dialled. The other one sees an address only: it was
    dialled at one that it has announced, or else through a hole that it has punched.
    """
    if path.remote.circuit or path.kind is PathKind.RELAYED:
        return RELAYED
    if path.kind is PathKind.PUNCHED:
        return PUNCHED
    if path.kind is PathKind.DIRECT:
        mapped = theirs is not None and any(
            each.kind == AddressKind.MAPPED and each.address == path.remote
            for each in theirs.direct
        )
        return MAPPED if mapped else DIRECT
    if scope_of(path.remote.host) is not Scope.PUBLIC:
        return DIRECT  # a neighbour
    kinds = [each.kind for each in ours.direct if scope_of(each.host) is Scope.PUBLIC]
    if not kinds:
        return PUNCHED  # a stranger who was let in, where nobody is
    return MAPPED if all(kind == AddressKind.MAPPED for kind in kinds) else DIRECT


class KnownCards:
    """The addresses of peers that one node knows: implements `MemberCards`.

    A card that is known already costs a comparison, and no signature is checked.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._book = endpoint.cards
        self._watchers: dict[int, Callable[[bytes], None]] = {}
        self._numbered = 0
        self._book.on_card = lambda card: self._tell(card.peer)

    def of(self, peer: bytes) -> bytes:
        """The card of a peer, or of this node; empty if none is known."""
        known = PeerId(peer)
        own = known == self._endpoint.peer_id
        card = self._endpoint.card if own else self._book.of(known)
        return b"" if card is None else card.data

    def learn(self, peer: bytes, card: bytes, teller: PeerId | None) -> None:
        """Take a peer's card that `teller` has told us, or that was found in the DHT."""
        if not card or PeerId(peer) == self._endpoint.peer_id or card == self.of(peer):
            return
        told = decode_card(card)
        if told.peer.raw != peer:
            raise BadMessage(f"a card of {told.peer.short} for another peer's")
        self._book.learn(told, self._heard_at(teller))

    def links(self, peers: Iterable[bytes]) -> PathCounts:
        """Count the links that are up to these peers by the kind of their path."""
        wanted, ours = set(peers), self._endpoint.card
        count = Counter(
            kind_of_link(link.path, ours, self._book.of(link.peer))
            for link in self._endpoint.links()
            if link.path is not None and link.peer.raw in wanted
        )
        return PathCounts(count[DIRECT], count[MAPPED], count[PUNCHED], count[RELAYED])

    def watch(self, on_news: Callable[[bytes], None]) -> Callable[[], None]:
        """Have `on_news` called with each peer whose card has changed; returns what ends that."""
        self._numbered += 1
        number = self._numbered
        self._watchers[number] = on_news
        return lambda: self._watchers.pop(number, None) and None

    def ours_has_changed(self) -> None:
        """Tell those who watch that this node's own card is another."""
        self._tell(self._endpoint.peer_id)

    def _tell(self, peer: PeerId) -> None:
        for on_news in list(self._watchers.values()):
            on_news(peer.raw)

    def _heard_at(self, teller: PeerId | None) -> str:
        """The host of a link to who told it; our own address decides for whom no link shows."""
        at = None if teller is None else self._endpoint.seen_at(teller)
        return (at or self._endpoint.contact.address).host
