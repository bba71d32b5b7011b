"""Card: where a peer says that it can be dialled, signed by the peer itself.

Source:  docs/addresses.md; RFC 9000, 8.1 and 21.5, for claims and what they may lead to; libp2p's
         signed peer records (RFC 0003 of libp2p/specs) for the sequence number and the signature.
"""

import ipaddress
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum, IntFlag
from functools import lru_cache
from typing import Annotated

from p2pswarm.base.errors import BadMessage
from p2pswarm.base.ids import PEER_ID_BYTES, PORT_MAX, Address, Contact, PeerId
from p2pswarm.net.crypto.identity import SIGNATURE_BYTES, Identity, verify
from p2pswarm.net.os.addresses import Scope, believable, expected_of, scope_of
from p2pswarm.net.wire.message import Message, Range, Size, decode, encode, message

TAG = b"p2pswarm-card-1:"  # separates these signatures from every other use of the key
DIRECT_MAX = 8  # two families, mapped and not, of two network cards
RELAYS_MAX = 2  # one may fail
RELAY_ADDRESSES_MAX = 2 * RELAYS_MAX  # IPv4 and IPv6: who dials may have one of them only
BODY_BYTES_MAX = 1024  # 20 cards fit a message of 60 KiB thrice; numbers take 40 bytes each
CARD_BYTES_MAX = BODY_BYTES_MAX + SIGNATURE_BYTES + 8  # with msgpack's own bytes
CARDS_READ = 4096  # cards whose signatures need not be checked again: as many as a book keeps
HOST_CHARS_MAX = 253
SEQ_MAX = 2**53
FLAGS_MAX = 255


class AddressKind(IntEnum):
    """The kinds of an address, by how a peer has it."""

    IPV4 = 1
    IPV6 = 2
    MAPPED = 3
    """A gateway forwards it: asked to by the peer, or seen to do so by others."""
    NAME = 4
    """Its user gave it a name, which may lead to addresses of both families."""


class CardFlags(IntFlag):
    """Further statements of a peer on itself. Unknown bits are kept and mean nothing."""

    NONE = 0
    CLIENT = 1
    """It cannot be dialled: it is in no routing table, and keeps nothing for others."""
    RELAY = 2
    """It passes on bytes between peers that cannot dial each other."""


@message(16)
@dataclass(frozen=True, slots=True)
class DirectAddress(Message):
    """An address at which a peer itself answers."""

    kind: Annotated[int, Range(1, 4)]
    host: Annotated[str, Size(1, HOST_CHARS_MAX)]
    port: Annotated[int, Range(1, PORT_MAX)]

    def __post_init__(self) -> None:
        if "%" in self.host:
            raise ValueError("a zone means nothing on another machine")
        written = _canonical(Address(self.host, self.port).host)
        if written != self.host:
            raise ValueError(f"{self.host} is written {written}")
        if scope_of(self.host) is Scope.NOWHERE:
            raise ValueError(f"no single host has the address {self.host}")
        if self.kind not in _kinds_of(self.host):
            raise ValueError(f"{self.host} is no address of kind {self.kind}")

    @property
    def address(self) -> Address:
        """The host and port."""
        return Address(self.host, self.port)


@message(17)
@dataclass(frozen=True, slots=True)
class RelayAddress(Message):
    """A relay that passes connections on to a peer, and where the relay can be dialled."""

    relay: Annotated[bytes, Size(PEER_ID_BYTES, PEER_ID_BYTES)]
    at: DirectAddress

    @property
    def contact(self) -> Contact:
        """The relay."""
        return Contact(PeerId(self.relay), self.at.address)


@message(18)
@dataclass(frozen=True, slots=True)
class CardBody(Message):
    """The part of a card that its peer signs."""

    public_key: Annotated[bytes, Size(32, 32)]
    seq: Annotated[int, Range(0, SEQ_MAX)]
    direct: Annotated[tuple[DirectAddress, ...], Size(DIRECT_MAX)]
    relays: Annotated[tuple[RelayAddress, ...], Size(RELAY_ADDRESSES_MAX)]
    flags: Annotated[int, Range(0, FLAGS_MAX)]

    def __post_init__(self) -> None:
        if len({(each.host, each.port) for each in self.direct}) < len(self.direct):
            raise ValueError("an address is there twice")
        relays = {each.relay for each in self.relays}
        if len({(each.relay, ":" in each.at.host) for each in self.relays}) < len(self.relays):
            raise ValueError("a relay is there twice in one family")
        if len(relays) > RELAYS_MAX or PeerId.of_key(self.public_key).raw in relays:
            raise ValueError(f"more than {RELAYS_MAX} relays, or the peer itself")
        if self.flags & CardFlags.CLIENT and self.direct:
            raise ValueError("who cannot be dialled has no address of its own")


@message(19)
@dataclass(frozen=True, slots=True)
class SignedCard(Message):
    """A card as it is passed on."""

    body: Annotated[bytes, Size(1, BODY_BYTES_MAX)]
    """An encoded `CardBody`, as it was signed."""
    signature: Annotated[bytes, Size(SIGNATURE_BYTES, SIGNATURE_BYTES)]


@dataclass(frozen=True, slots=True, eq=False)
class Card:
    """A peer's statement on itself. Only `read` and `make` give one that is checked.

    A card may be passed on by anybody, because nobody but the peer can make or change it. What it
    says is still a claim: an address is used for others only after the peer was found there. Two
    cards are equal if they are of one peer; of these the one with the higher sequence number
    counts.

    A card is signed as bytes, and the same bytes are passed on, so there is nothing to agree on
    about how its fields are written.
    """

    peer: PeerId
    seq: int
    direct: tuple[DirectAddress, ...]
    relays: tuple[RelayAddress, ...]
    flags: CardFlags
    signed: SignedCard
    addresses: tuple[Address, ...]
    """The direct addresses, as the peer ordered them."""
    data: bytes
    """The card as bytes with its signature, to pass on."""

    @classmethod
    def make(
        cls,
        identity: Identity,
        seq: int,
        direct: Iterable[Address],
        *,
        mapped: Iterable[Address] = (),
        relays: Iterable[Contact] = (),
        flags: CardFlags = CardFlags.NONE,
    ) -> "Card":
        """Our own card; ValueError if others would not take it."""
        addresses = (
            *(direct_address(each) for each in direct),
            *(replace(direct_address(each), kind=AddressKind.MAPPED) for each in mapped),
        )
        relay_addresses = tuple(_relay(each) for each in relays)
        body = encode(CardBody(identity.public_key, seq, addresses, relay_addresses, flags))
        if len(body) > BODY_BYTES_MAX:
            raise ValueError(f"the addresses take {len(body)} bytes, over {BODY_BYTES_MAX}")
        return read(SignedCard(body, identity.sign(TAG, body)))

    @classmethod
    def of(cls, peer: PeerId, body: CardBody, signed: SignedCard) -> "Card":
        """The card of a peer, when it is known that the peer has signed this body."""
        direct, relays, flags = body.direct, body.relays, CardFlags(body.flags)
        addresses = tuple(each.address for each in direct)
        return cls(peer, body.seq, direct, relays, flags, signed, addresses, encode(signed))

    def __eq__(self, other: object) -> bool:
        return self.peer == other.peer if isinstance(other, Card) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.peer)


def read(signed: SignedCard) -> Card:
    """The card in signed bytes; BadMessage if it breaks a rule, or its peer did not sign it."""
    body = decode(signed.body)
    if not isinstance(body, CardBody):
        raise BadMessage(f"a card with a {type(body).__name__} in it")
    if not verify(body.public_key, TAG, signed.body, signed.signature):
        raise BadMessage("a card that its peer did not sign")
    return Card.of(PeerId.of_key(body.public_key), body, signed)


@lru_cache(maxsize=CARDS_READ)
def decode_card(data: bytes) -> Card:
    """The card in bytes of unknown origin, with every rule checked; BadMessage if it is none."""
    signed = decode(data)
    if not isinstance(signed, SignedCard):
        raise BadMessage(f"{type(signed).__name__} is no card")
    return read(signed)


def can_be_said(address: Address) -> bool:
    """Return whether an address means the same to others, and leads to the peer itself."""
    if address.circuit or address.web or not address.port or "%" in address.host:
        return False
    return scope_of(address.host) is not Scope.NOWHERE


def newer(a: Card, b: Card) -> Card:
    """The card of one peer that counts; its bytes decide ties, so that all nodes agree."""
    if a.peer != b.peer:
        raise ValueError("cards of two peers: neither is newer")
    return max(a, b, key=lambda card: (card.seq, card.signed.body, card.signed.signature))


def believed(
    named: Iterable[Contact], us: Sequence[Address], heard_at: str, least: Scope
) -> list[Contact]:
    """The contacts of a card that may be dialled at all, as the peer ordered them.

    `us`: our own addresses; `heard_at`: the host from which the card came; `least`: the smallest
    scope that we believe. Whoever has a public address names no private ones, and loopback is
    named only by this machine itself. That the peer is there is still to be found out.
    """
    least = max(least, expected_of(heard_at))
    here = is_loopback(heard_at)
    return [
        each
        for each in named
        if each.address not in us
        and believable(each.address, least)
        and (here or not is_loopback(each.address.host))
    ]


def _kinds_of(host: str) -> tuple[AddressKind, ...]:
    """The kinds that an address at a host may have."""
    try:
        version = ipaddress.ip_address(host).version
    except ValueError:
        return (AddressKind.NAME,)
    number = AddressKind.IPV4 if version == 4 else AddressKind.IPV6  # noqa: PLR2004
    return number, AddressKind.MAPPED


def _canonical(host: str) -> str:
    """The one way to write a host: else one address would be there twice."""
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        return host.lower().rstrip(".")


def direct_address(address: Address) -> DirectAddress:
    """An address as a card has it; ValueError if no card may."""
    host = _canonical(address.host)
    return DirectAddress(_kinds_of(host)[0], host, address.port)


def _relay(contact: Contact) -> RelayAddress:
    if contact.peer is None:
        raise ValueError(f"the relay at {contact.address} has no id yet: greet it first")
    return RelayAddress(contact.peer.raw, direct_address(contact.address))


def is_loopback(host: str) -> bool:
    """Return whether a host is the reader's own machine, by number or name."""
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        name = host.lower().rstrip(".")
        return name == "localhost" or name.endswith(".localhost")
