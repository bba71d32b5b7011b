"""Paths: what carries a link at present, and the ways to another one.

A *way* leads to a peer and can be taken any number of times: an address to dial, a relay to ask, a
hole to punch. Taking it gives a raw connection that the peer's acceptor reads. A *path* is such a
connection, once it carries a link. What knows of other ways than an address gives the endpoint its
own `Paths`.

Units:   none.
Errors:  PathError, if a way leads nowhere now; NobodyThere, if nobody listens at its end.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol

from p2pswarm.base.ids import Address, Contact
from p2pswarm.net.cards.card_claims import CardClaims
from p2pswarm.net.os.base import Connection, Net


class PathKind(IntEnum):
    """How a connection came about; the smaller, the better."""

    DIRECT = 0
    PUNCHED = 1
    RELAYED = 2


class Way(Protocol):
    """One way to a peer."""

    @property
    def kind(self) -> PathKind:
        """The kind of the paths that it gives."""
        ...

    async def connect(self) -> Connection:
        """A new connection that the peer's acceptor reads; raises PathError."""
        ...


class Paths(Protocol):
    """What knows the ways to peers."""

    def ways(self, to: Contact) -> Sequence[Way]:
        """The ways to a peer that may work, the best one first."""
        ...


@dataclass(frozen=True, slots=True)
class Path:
    """The connection that carries a link."""

    kind: PathKind | None
    """None if the peer took a way that only it knows."""
    remote: Address
    """The address of its other end, as the network shows it."""
    way: Way | None
    """The way that we took; None if the peer did."""


def kind_of(to: Address) -> PathKind:
    """The kind of a path that is dialled at this address."""
    return PathKind.RELAYED if to.circuit else PathKind.DIRECT


@dataclass(frozen=True, slots=True)
class DialledWay:
    """An address to dial, which may be a place at a relay: implements `Way`."""

    net: Net
    to: Address

    @property
    def kind(self) -> PathKind:
        """By the address."""
        return kind_of(self.to)

    async def connect(self) -> Connection:
        """Dial it."""
        return await self.net.dial(self.to)


@dataclass(frozen=True, slots=True)
class ClaimedWay:
    """An address that only the peer's card names: implements `Way`."""

    net: Net
    named: Contact
    """Where the peer says that it is; for a circuit, at which relay."""
    claims: CardClaims
    now_s: Callable[[], float]

    @property
    def kind(self) -> PathKind:
        """By the address."""
        return kind_of(self.named.address)

    async def connect(self) -> Connection:
        """Dial it, and remember that we did."""
        self.claims.begin(self.named, self.now_s())
        return await self.net.dial(self.named.address)

    def found(self) -> None:
        """Note that the peer was there."""
        self.claims.found(self.named, self.now_s())


def place_of(way: Way) -> Address | None:
    """The address that a way dials; None if it is of another sort, as a punched hole."""
    match way:
        case DialledWay():
            return way.to
        case ClaimedWay():
            return way.named.address
        case _:
            return None


def known_ways(ways: Sequence[Way]) -> Sequence[Way]:
    """Those that tell whether a peer is gone; all of them, if none does.

    A peer may claim addresses that never answer. But a relay knows at once whether the peer is
    there, and a firewall that breaks connections may refuse for the peer at all others.
    """
    return [
        way for way in ways if not isinstance(way, ClaimedWay) or way.kind is PathKind.RELAYED
    ] or ways


class ContactPaths:
    """The one address of each contact: implements `Paths`."""

    def __init__(self, net: Net) -> None:
        self._net = net

    def ways(self, to: Contact) -> Sequence[Way]:
        """Its address, unless it cannot be dialled."""
        return (DialledWay(self._net, to.address),) if to.address.port else ()
