"""Paths: what carries a link at present, and the ways to another one.

A *way* leads to a peer and can be taken any number of times: an address to dial, a relay to ask, a
hole to punch. Taking it gives a raw connection that the peer's acceptor reads. A *path* is such a
connection, once it carries a link. What knows of other ways than an address gives the endpoint its
own `Paths`.

Units:   none.
Errors:  PathError, if a way leads nowhere now; NobodyThere, if nobody listens at its end.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol

from p2pswarm.ids import Address, Contact
from p2pswarm.net.base import Connection, Net


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


@dataclass(frozen=True, slots=True)
class DirectWay:
    """An address to dial, which may be one through a relay: implements `Way`."""

    net: Net
    to: Address
    kind: PathKind = PathKind.DIRECT

    async def connect(self) -> Connection:
        """Dial it."""
        return await self.net.dial(self.to)


def way_to(net: Net, address: Address) -> DirectWay:
    """The way that an address names: it may lead through a relay."""
    return DirectWay(net, address, PathKind.RELAYED if address.circuit else PathKind.DIRECT)


class DirectPaths:
    """The one address of each contact: implements `Paths`."""

    def __init__(self, net: Net) -> None:
        self._net = net

    def ways(self, to: Contact) -> Sequence[Way]:
        """Its address, unless it cannot be dialled."""
        return (way_to(self._net, to.address),) if to.address.port else ()
