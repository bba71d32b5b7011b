"""What the nodes of the DHT say to each other.

Every request carries `home`, where the asker can be dialled: that is how servers get
into each other's tables. A client leaves it empty. Contacts travel as one string of
ids and a row of addresses, because an answer of 20 is read for every hop of a lookup.

Mainline's write tokens are left out: they prove that who stores is who asked, from the
address it claims. Our links are authenticated, so the peer that stores is known.

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
from p2pswarm.wire.codec import Message, Range, Size, message

HOME_CHARS = 262  # the longest host name, brackets, a port
SUBKEY_BYTES_MAX = 64
VALUE_BYTES_MAX = 4096
RECORDS_MAX = 128  # in one message; 128 of 300 B are 38 KiB, and `PAGE_BYTES` cuts larger ones
PAGE_BYTES = 48 * 1024  # of records in one message; leaves room for contacts in a frame of 60 KiB
RECORD_OVERHEAD_BYTES = 160  # key, public key, signature, two integers, msgpack's own
VERDICTS_MAX = RECORDS_MAX
HOPS_MAX = 2  # who is asked carries a get on, and so does whom it asks: that spans 10,000 nodes
SEEN_CONTACTS = 16_384  # remembered contacts: 1.5 times the largest simulation, about 5 MB

Id = Annotated[bytes, Size(PEER_ID_BYTES, PEER_ID_BYTES)]
Home = Annotated[str, Size(HOME_CHARS)]
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
class Circle(Message):
    """Some servers, closest first."""

    peers: Annotated[bytes, Size(0, PEER_ID_BYTES * CONTACTS_MAX)]
    """Their ids, one after another."""
    homes: Annotated[tuple[Home, ...], Size(CONTACTS_MAX)]

    def __post_init__(self) -> None:
        if len(self.peers) != PEER_ID_BYTES * len(self.homes):
            raise ValueError(f"{len(self.homes)} addresses for {len(self.peers)} bytes of ids")


@message(20)
@dataclass(frozen=True, slots=True)
class Hello(Message):
    """The first call to an address whose peer is unknown: who are you?"""

    home: Home
    target: Id
    """The asker's own id: the answer brings the servers close to it."""


@message(21)
@dataclass(frozen=True, slots=True)
class Welcome(Message):
    """Answers `Hello`. The id is a claim until a dial to it has been answered."""

    peer: Id
    circle: Circle


@message(22)
@dataclass(frozen=True, slots=True)
class Find(Message):
    """Whom do you know close to `target`?"""

    home: Home
    target: Id


@message(23)
@dataclass(frozen=True, slots=True)
class Found(Message):
    """Answers `Find`."""

    circle: Circle


@message(24)
@dataclass(frozen=True, slots=True)
class Get(Message):
    """The records under `key`, or who is closer to it."""

    home: Home
    key: Id
    after: Subkey
    """Continue behind this subkey; empty for the first page."""
    closer: bool
    """Contacts are wanted even if there are records."""
    hops: Annotated[int, Range(0, HOPS_MAX)]
    """How far the asked may carry the request on over links it holds."""


@message(25)
@dataclass(frozen=True, slots=True)
class Got(Message):
    """Answers `Get`."""

    records: Annotated[tuple[Record, ...], Size(RECORDS_MAX)]
    """In the order of their subkeys."""
    more: bool
    """There are further subkeys behind the last one."""
    circle: Circle


@message(26)
@dataclass(frozen=True, slots=True)
class Store(Message):
    """Keep these, please."""

    home: Home
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

    home: Home


@message(31)
@dataclass(frozen=True, slots=True)
class Pong(Message):
    """Answers `Ping`."""


def circle(contacts: Iterable[tuple[bytes, str]]) -> Circle:
    """Pack (id, address) pairs."""
    pairs = tuple(contacts)
    return Circle(b"".join([raw for raw, _ in pairs]), tuple([home for _, home in pairs]))


def contacts_in(packed: Circle) -> list[Contact]:
    """Unpack a circle; BadMessage if an address in it is none."""
    ids = packed.peers
    return [
        contact_of(ids[i * PEER_ID_BYTES : (i + 1) * PEER_ID_BYTES], home)
        for i, home in enumerate(packed.homes)
    ]


@lru_cache(maxsize=SEEN_CONTACTS)
def contact_of(raw: bytes, home: str) -> Contact:
    """The contact of an id and an address; the same ones come again and again."""
    try:
        return Contact(PeerId(raw), Address.parse(home))
    except ValueError as error:
        raise BadMessage(f"not a contact: {error}") from error
