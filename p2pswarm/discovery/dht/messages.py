"""The messages of the DHT.

No request says where its sender can be dialled: the card of its link does, and this is how servers
get into each other's routing tables. A list of peers has their cards, each as one string, which is
fast to decode: every hop of a lookup reads 20 of them. Nobody can name an address of a peer that
the peer has not signed.

The write tokens of BitTorrent's Mainline DHT are left out. They prove that the peer that stores
has asked before, from the address that it claims; our links prove which peer stores.

Units:   `_ms` milliseconds since 1970 on the sender's wall clock.
Source:  Maymounkov and Mazieres, "Kademlia" (2002); BEP 5 and BEP 44.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated

from p2pswarm.base.errors import BadMessage
from p2pswarm.base.ids import PEER_ID_BYTES, Address, Contact
from p2pswarm.discovery.dht.config import CONTACTS_MAX
from p2pswarm.net.cards.card import CARD_BYTES_MAX, Card
from p2pswarm.net.wire.message import Message, Range, Size, message

PEER_LIST_BYTES = 11 * 1024  # of cards in one message: 20 of 560 bytes, most have 150 to 250
SUBKEY_BYTES_MAX = 64
VALUE_BYTES_MAX = 4096
RECORDS_MAX = 128  # in one message: 38 KiB if each has 300 B; `PAGE_BYTES` limits larger ones
PAGE_BYTES = 48 * 1024  # of records in one message; cards fit into the frame of 60 KiB, too
RECORD_OVERHEAD_BYTES = 160  # key, public key, signature, two integers, msgpack's own
VERDICTS_MAX = RECORDS_MAX
HOPS_MAX = 2  # who is asked carries a get on, and so do those it asks: enough for 10,000 nodes
SEEN_CONTACTS = 16_384  # read contacts to remember: 1.5 times the largest simulation, about 5 MB

Id = Annotated[bytes, Size(PEER_ID_BYTES, PEER_ID_BYTES)]
CardBytes = Annotated[bytes, Size(1, CARD_BYTES_MAX)]
Subkey = Annotated[bytes, Size(0, SUBKEY_BYTES_MAX)]
ReadCard = Callable[[bytes], Card]
"""Reads a card that anybody passed on, and checks that its peer signed it."""


@message(28)
@dataclass(frozen=True, slots=True)
class Record(Message):
    """A value that its publisher signed; see `records.py`."""

    key: Id
    subkey: Subkey
    value: Annotated[bytes, Size(0, VALUE_BYTES_MAX)]
    seq: Annotated[int, Range(0, 2**62)]
    """Sequence number; the publisher raises it whenever the value changes."""
    expires_ms: Annotated[int, Range(0, 2**53)]
    public_key: Annotated[bytes, Size(32, 32)]
    signature: Annotated[bytes, Size(64, 64)]

    @property
    def size_bytes(self) -> int:
        """The size in a message and, roughly, in memory."""
        return len(self.value) + len(self.subkey) + RECORD_OVERHEAD_BYTES


@message(29)
@dataclass(frozen=True, slots=True)
class PeerList(Message):
    """Some servers, closest first."""

    cards: Annotated[tuple[CardBytes, ...], Size(CONTACTS_MAX)]
    found: Annotated[bytes, Size(0, CONTACTS_MAX)]
    """Number of the direct address, from 0, at which the teller found the peer of each card."""

    def __post_init__(self) -> None:
        if len(self.found) != len(self.cards):
            raise ValueError(f"{len(self.found)} places in {len(self.cards)} cards")
        if sum(map(len, self.cards)) > PEER_LIST_BYTES:
            raise ValueError(f"cards of more than {PEER_LIST_BYTES} bytes")


@message(20)
@dataclass(frozen=True, slots=True)
class Identify(Message):
    """The first call to an address whose peer is unknown: it asks for the peer's id."""

    target: Id
    """The sender's own id; the answer has the servers closest to it."""


@message(21)
@dataclass(frozen=True, slots=True)
class Identified(Message):
    """The answer to `Identify`. The id is not proven until a link to it is up."""

    peer: Id
    peer_list: PeerList


@message(22)
@dataclass(frozen=True, slots=True)
class Find(Message):
    """Asks for the servers closest to `target`."""

    target: Id


@message(23)
@dataclass(frozen=True, slots=True)
class Found(Message):
    """The answer to `Find`."""

    peer_list: PeerList


@message(24)
@dataclass(frozen=True, slots=True)
class Get(Message):
    """Asks for the records of `key`, or for the servers closest to it."""

    key: Id
    after: Subkey
    """The page starts after this subkey; empty for the first page."""
    closer: bool
    """True if contacts are wanted even if there are records."""
    hops: Annotated[int, Range(0, HOPS_MAX)]
    """The number of times that the request may still be carried on."""


@message(25)
@dataclass(frozen=True, slots=True)
class Got(Message):
    """The answer to `Get`."""

    records: Annotated[tuple[Record, ...], Size(RECORDS_MAX)]
    """The records in the order of their subkeys."""
    more: bool
    """True if there are more records after the last one."""
    peer_list: PeerList


@message(26)
@dataclass(frozen=True, slots=True)
class Store(Message):
    """Asks to keep these records."""

    records: Annotated[tuple[Record, ...], Size(1, RECORDS_MAX)]


@message(27)
@dataclass(frozen=True, slots=True)
class Stored(Message):
    """The answer to `Store`."""

    verdicts: Annotated[bytes, Size(1, VERDICTS_MAX)]
    """One `Verdict` for each record, in their order."""


@message(30)
@dataclass(frozen=True, slots=True)
class Ping(Message):
    """Asks whether the peer is there."""


@message(31)
@dataclass(frozen=True, slots=True)
class Pong(Message):
    """The answer to `Ping`."""


def peer_list(found: Iterable[tuple[Card, Address]]) -> PeerList:
    """Pack cards, each with the address at which we found its peer, as many as there is room for.

    A peer that does not name this address any more is left out.
    """
    cards: list[bytes] = []
    places: list[int] = []
    left_bytes = PEER_LIST_BYTES
    for card, address in found:
        data = card.data
        if address in card.addresses and len(data) <= left_bytes:
            left_bytes -= len(data)
            cards.append(data)
            places.append(card.addresses.index(address))
    return PeerList(tuple(cards), bytes(places))


def peers_in(packed: PeerList, read: ReadCard) -> list[tuple[Contact, Card]]:
    """Unpack a peer list: each peer where its teller found it.

    Raises BadMessage for a card that its peer did not sign, or that has no such address.
    """
    return [
        _named(read, data, place) for data, place in zip(packed.cards, packed.found, strict=True)
    ]


@lru_cache(maxsize=SEEN_CONTACTS)
def _named(read: ReadCard, data: bytes, place: int) -> tuple[Contact, Card]:
    """The contact at a place in a card; cached, because the same ones come often."""
    card = read(data)
    if place >= len(card.addresses):
        raise BadMessage(f"place {place} in a card of {len(card.addresses)} addresses")
    return Contact(card.peer, card.addresses[place]), card
