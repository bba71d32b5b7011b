"""The messages of the DHT.

Every request carries `listen_address`, where its sender can be dialled; this is how servers get
into each other's routing tables. A client leaves it empty. A list of contacts is one string of
ids and a tuple of addresses, which is fast to decode: every hop of a lookup reads 20 contacts.

The write tokens of BitTorrent's Mainline DHT are left out. They prove that the peer that stores
has asked before, from the address that it claims; our links prove which peer stores.

Units:   `_ms` milliseconds since 1970 on the sender's wall clock.
Errors:  BadMessage on arrival when a field breaks its limit.
Source:  Maymounkov and Mazieres, "Kademlia" (2002); BEP 5 and BEP 44.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated

from p2pswarm.dht.config import CONTACTS_MAX
from p2pswarm.errors import BadMessage
from p2pswarm.ids import PEER_ID_BYTES, Address, Contact, PeerId
from p2pswarm.net.address_scope import Scope, believable
from p2pswarm.wire.message import Message, Range, Size, message

LISTEN_ADDRESS_CHARS = 262  # the longest host name, brackets, a port
SUBKEY_BYTES_MAX = 64
VALUE_BYTES_MAX = 4096
RECORDS_MAX = 128  # in one message: 38 KiB if each has 300 B; `PAGE_BYTES` limits larger ones
PAGE_BYTES = 48 * 1024  # of records in one message; contacts fit into the frame of 60 KiB, too
RECORD_OVERHEAD_BYTES = 160  # key, public key, signature, two integers, msgpack's own
VERDICTS_MAX = RECORDS_MAX
HOPS_MAX = (
    2  # the peer asked carries a get on, and so do the peers it asks: enough for 10,000 nodes
)
SEEN_CONTACTS = 16_384  # decoded contacts to remember: 1.5 times the largest simulation, about 5 MB

Id = Annotated[bytes, Size(PEER_ID_BYTES, PEER_ID_BYTES)]
ListenAddress = Annotated[str, Size(LISTEN_ADDRESS_CHARS)]
Subkey = Annotated[bytes, Size(0, SUBKEY_BYTES_MAX)]


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

    peers: Annotated[bytes, Size(0, PEER_ID_BYTES * CONTACTS_MAX)]
    """Their ids, one after another."""
    listen_addresses: Annotated[tuple[ListenAddress, ...], Size(CONTACTS_MAX)]

    def __post_init__(self) -> None:
        if len(self.peers) != PEER_ID_BYTES * len(self.listen_addresses):
            raise ValueError(
                f"{len(self.listen_addresses)} addresses for {len(self.peers)} bytes of ids"
            )


@message(20)
@dataclass(frozen=True, slots=True)
class Identify(Message):
    """The first call to an address whose peer is unknown: it asks for the peer's id."""

    listen_address: ListenAddress
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

    listen_address: ListenAddress
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

    listen_address: ListenAddress
    key: Id
    after: Subkey
    """The page starts after this subkey; empty for the first page."""
    closer: bool
    """Whether contacts are wanted even if there are records."""
    hops: Annotated[int, Range(0, HOPS_MAX)]
    """How many more times the request may be carried on."""


@message(25)
@dataclass(frozen=True, slots=True)
class Got(Message):
    """The answer to `Get`."""

    records: Annotated[tuple[Record, ...], Size(RECORDS_MAX)]
    """The records in the order of their subkeys."""
    more: bool
    """Whether there are more records after the last one."""
    peer_list: PeerList


@message(26)
@dataclass(frozen=True, slots=True)
class Store(Message):
    """Asks to keep these records."""

    listen_address: ListenAddress
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

    listen_address: ListenAddress


@message(31)
@dataclass(frozen=True, slots=True)
class Pong(Message):
    """The answer to `Ping`."""


def peer_list(contacts: Iterable[tuple[bytes, str]]) -> PeerList:
    """Pack (id, address) pairs."""
    pairs = tuple(contacts)
    return PeerList(
        b"".join([raw for raw, _ in pairs]), tuple([listen_address for _, listen_address in pairs])
    )


def contacts_in(packed: PeerList) -> list[Contact]:
    """Unpack a peer list, without addresses that no host has; BadMessage if one is invalid."""
    ids = packed.peers
    named = [
        _named(ids[i * PEER_ID_BYTES : (i + 1) * PEER_ID_BYTES], listen_address)
        for i, listen_address in enumerate(packed.listen_addresses)
    ]
    return [contact for contact in named if contact is not None]


@lru_cache(maxsize=SEEN_CONTACTS)
def _named(raw: bytes, listen_address: str) -> Contact | None:
    """The contact of an id and an address, or None; cached, because the same ones come often."""
    contact = contact_of(raw, listen_address)
    return contact if believable(contact.address, Scope.PRIVATE) else None


@lru_cache(maxsize=SEEN_CONTACTS)
def contact_of(raw: bytes, listen_address: str) -> Contact:
    """The contact of an id and an address; cached, because the same ones come often.

    Raises BadMessage if the address is invalid, or names a host that no resolver accepts.
    """
    try:
        address = Address.parse(listen_address)
        address.host.encode("idna")  # as a resolver does, which would raise UnicodeError
        contact = Contact(PeerId(raw), address)
    except ValueError as error:  # UnicodeError is one
        raise BadMessage(f"not a contact: {error}") from error
    return contact
