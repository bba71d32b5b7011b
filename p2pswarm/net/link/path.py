"""Paths: the connection that carries a link, and the candidates for another one.

Errors:  PathError, if a candidate leads nowhere now; NobodyThere, if nobody listens at its end.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol

from p2pswarm.base.ids import Address, Contact
from p2pswarm.net.cards.card_claims import CardClaims
from p2pswarm.net.os.base import Connection, Net


class PathKind(IntEnum):
    """The kinds of a path; the smaller, the better."""

    DIRECT = 0
    PUNCHED = 1
    RELAYED = 2


class PathCandidate(Protocol):
    """A means to reach a peer, which gives a connection each time."""

    @property
    def kind(self) -> PathKind:
        """The kind of the paths that it gives."""
        ...

    async def connect(self) -> Connection:
        """A new connection that the peer's acceptor reads; raises PathError."""
        ...


class CandidateSource(Protocol):
    """A source of path candidates; the endpoint asks several."""

    def candidates(self, to: Contact) -> Sequence[PathCandidate]:
        """Return the candidates that may lead to a peer, the best one first."""
        ...


@dataclass(frozen=True, slots=True)
class Path:
    """The connection that carries a link.

    A *path candidate* leads to a peer and can be taken any number of times: an address to dial, a
    relay to ask, a hole to punch. Taking it gives a raw connection that the peer's acceptor reads.
    A *path* is such a connection, once it carries a link.
    """

    kind: PathKind | None
    """None if the peer took a candidate that only it knows."""
    remote: Address
    """The address of its other end, as the network shows it."""
    candidate: PathCandidate | None
    """The candidate that we took; None if the peer did."""


def kind_of(to: Address) -> PathKind:
    """The kind of a path that is dialled at this address."""
    return PathKind.RELAYED if to.circuit else PathKind.DIRECT


@dataclass(frozen=True, slots=True)
class DialledCandidate:
    """An address to dial, which may be a place at a relay: implements `PathCandidate`."""

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
class ClaimedCandidate:
    """An address that only the peer's card names: implements `PathCandidate`."""

    net: Net
    named: Contact
    """The contact that the peer names; for a circuit, the relay."""
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

    def confirm(self) -> None:
        """Note that the peer was there."""
        self.claims.confirm(self.named, self.now_s())


def address_of(candidate: PathCandidate) -> Address | None:
    """The address that a candidate dials; None if it is of another sort, as a punched hole."""
    match candidate:
        case DialledCandidate():
            return candidate.to
        case ClaimedCandidate():
            return candidate.named.address
        case _:
            return None


def telling_candidates(candidates: Sequence[PathCandidate]) -> Sequence[PathCandidate]:
    """Those that tell whether a peer is gone; all of them, if none does.

    A peer may claim addresses that never answer. But a relay knows at once whether the peer is
    there, and a firewall that breaks connections may refuse for the peer at all others.
    """
    return [
        candidate
        for candidate in candidates
        if not isinstance(candidate, ClaimedCandidate) or candidate.kind is PathKind.RELAYED
    ] or candidates
