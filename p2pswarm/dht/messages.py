"""What the nodes of the DHT say to each other.

Every request carries `listen_address`, where its sender can be dialled: that is how servers get
into each other's tables. A client leaves it empty. Contacts travel as one string of
ids and a row of addresses, because an answer of 20 is read for every hop of a lookup.

Mainline's write tokens are left out: they prove that the peer that stores has asked before,
from the address that it claims. Our links are authenticated, so the peer that stores is known.

Units:   `_ms` milliseconds since 1970 on the sender's wall clock.
Errors:  BadMessage on arrival when a field breaks its limit.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated

from p2pswarm.dht.config import CONTACTS_MAX
from p2pswarm.errors import BadMessage
from p2pswarm.ids import PEER_ID_BYTES, Address, Contact, PeerId
from p2pswarm.wire.message import Message, Range, Size, message

LISTEN_ADDRESS_CHARS = 262  # the longest host name, brackets, a port
SUBKEY_BYTES_MAX = 64
VALUE_BYTES_MAX = 4096
RECORDS_MAX = 128  # in one message; 128 of 300 B are 38 KiB, and `PAGE_BYTES` cuts larger ones
PAGE_BYTES = 48 * 1024  # of records in one message; leaves room for contacts in a frame of 60 KiB
RECORD_OVERHEAD_BYTES = 160  # key, public key, signature, two integers, msgpack's own
VERDICTS_MAX = RECORDS_MAX
HOPS_MAX = 2  # the peer asked carries a get on, and so do those it asks: that spans 10,000 nodes
SEEN_CONTACTS = 16_384  # remembered contacts: 1.5 times the largest simulation, about 5 MB

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
    """Counted up by the publisher whenever the value changes."""
    expires_ms: Annotated[int, Range(0, 2**53)]
    public_key: Annotated[bytes, Size(32, 32)]
    signature: Annotated[bytes, Size(64, 64)]

    @property
    def size_bytes(self) -> int:
        """What it takes in a message and, roughly, in memory."""
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
    """The first call to an address whose peer is unknown: who are you?"""

    listen_address: ListenAddress
    target: Id
    """The sender's own id: the answer brings the servers close to it."""


@message(21)
@dataclass(frozen=True, slots=True)
class Identified(Message):
    """Answers `Identify`. The id is a claim until a dial to it has been answered."""

    peer: Id
    peer_list: PeerList


@message(22)
@dataclass(frozen=True, slots=True)
class Find(Message):
    """Which servers close to `target` do you know?"""

    listen_address: ListenAddress
    target: Id


@message(23)
@dataclass(frozen=True, slots=True)
class Found(Message):
    """Answers `Find`."""

    peer_list: PeerList


@message(24)
@dataclass(frozen=True, slots=True)
class Get(Message):
    """The records under `key`, or the servers closer to it."""

    listen_address: ListenAddress
    key: Id
    after: Subkey
    """Continue behind this subkey; empty for the first page."""
    closer: bool
    """Contacts are wanted even if there are records."""
    hops: Annotated[int, Range(0, HOPS_MAX)]
    """How many peers further the request may be carried on."""


@message(25)
@dataclass(frozen=True, slots=True)
class Got(Message):
    """Answers `Get`."""

    records: Annotated[tuple[Record, ...], Size(RECORDS_MAX)]
    """In the order of their subkeys."""
    more: bool
    """There are further subkeys behind the last one."""
    peer_list: PeerList


@message(26)
@dataclass(frozen=True, slots=True)
class Store(Message):
    """Keep these records."""

    listen_address: ListenAddress
    records: Annotated[tuple[Record, ...], Size(1, RECORDS_MAX)]


@message(27)
@dataclass(frozen=True, slots=True)
class Stored(Message):
    """Answers `Store`."""

    verdicts: Annotated[bytes, Size(1, VERDICTS_MAX)]
    """One `Verdict` a record, in their order."""


@message(30)
@dataclass(frozen=True, slots=True)
class Ping(Message):
    """Are you there?"""

    listen_address: ListenAddress


@message(31)
@dataclass(frozen=True, slots=True)
class Pong(Message):
    """Answers `Ping`."""


def peer_list(contacts: Iterable[tuple[bytes, str]]) -> PeerList:
    """Pack (id, address) pairs."""
    pairs = tuple(contacts)
    return PeerList(
        b"".join([raw for raw, _ in pairs]), tuple([listen_address for _, listen_address in pairs])
    )


def contacts_in(packed: PeerList) -> list[Contact]:
    """Unpack a peer list; BadMessage if an address in it is none."""
    ids = packed.peers
    return [
        contact_of(ids[i * PEER_ID_BYTES : (i + 1) * PEER_ID_BYTES], listen_address)
        for i, listen_address in enumerate(packed.listen_addresses)
    ]


@lru_cache(maxsize=SEEN_CONTACTS)
def contact_of(raw: bytes, listen_address: str) -> Contact:
    """The contact of an id and an address, which come again and again.

    Raises BadMessage if the address is none, or names a host that nobody could resolve.
    """
    try:
        address = Address.parse(listen_address)
        address.host.encode("idna")  # as a resolver does, which would raise UnicodeError
        contact = Contact(PeerId(raw), address)
    except ValueError as error:  # UnicodeError is one
        raise BadMessage(f"not a contact: {error}") from error
    if not address.host.isprintable():
        raise BadMessage(f"not a contact: {address.host!r} is not a host")
    return contact
