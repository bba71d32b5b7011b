"""LinkTable: chooses the link to use for each peer, so that both sides agree without asking.

Source:  docs/wire.md, "One link".
"""

from dataclasses import dataclass
from enum import IntEnum, auto
from typing import Generic, TypeVar

from p2pswarm.base.ids import Address, Contact, PeerId

SAME_TIME_S = 10.0  # the time of two handshakes: links further apart were not dialled at once

L = TypeVar("L")


class ProvenAddress(IntEnum):
    """The evidence of the links that are up for an address where a peer is said to be."""

    CLAIMED = auto()
    """Nothing: no link leads there."""
    HOST = auto()
    """The peer's own link comes from that host, and it named this port: it is there, and may be
    dialled there or not."""
    DIALLED = auto()
    """We dialled the peer there."""


@dataclass(frozen=True, slots=True)
class LinkEntry(Generic[L]):
    """A link, and what decides whether it is preferred."""

    link: L
    peer: PeerId
    address: Address
    """The address at which to dial the peer."""
    dialler: PeerId
    """The id of the side that dialled: the peer's or our own."""
    incarnation: bytes
    """Random bytes of the peer's process."""
    since_s: float


@dataclass(frozen=True, slots=True)
class Superseded(Generic[L]):
    """The links that a new link to the same peer replaces; it may be among `drain` itself."""

    drain: tuple[L, ...]
    """Links to use no more, and to close when nothing is under way on them."""
    dead: tuple[L, ...]
    """Links to a process of the peer that has ended."""


class LinkTable(Generic[L]):
    """Every link that is up.

    When two peers dial each other at once, two links come up. Both sides prefer the one that the
    peer with the smaller id dialled. They use it for new streams and let the other one drain. Of
    two links that the same side dialled, the newer one is preferred: no peer dials while it has a
    link, so the older link must be dead at that end.
    """

    def __init__(self) -> None:
        self._entries: dict[PeerId, list[LinkEntry[L]]] = {}

    def best(self, peer: PeerId) -> L | None:
        """The preferred link to a peer, if any."""
        entries = self._entries.get(peer)
        return entries[0].link if entries else None

    def find(self, to: Contact) -> L | None:
        """The preferred link to a contact, found by its address if it has no peer id.

        The address of a link that the peer dialled is the peer's claim, so who asks for the peer
        at an address gets no such link: it is dialled.
        """
        if to.peer is not None:
            return self.best(to.peer)
        for peer, entries in self._entries.items():
            if any(_dialled_at(entry, to.address) for entry in entries):
                return self.best(peer)
        return None

    def reach(self, to: Contact) -> ProvenAddress:
        """Return what our links show of a contact, by peer and address."""
        entries = () if to.peer is None else self._entries.get(to.peer, ())
        if any(_dialled_at(entry, to.address) for entry in entries):
            return ProvenAddress.DIALLED
        named = any(entry.address == to.address for entry in entries)
        return ProvenAddress.HOST if named else ProvenAddress.CLAIMED

    def all(self) -> tuple[L, ...]:
        """Every link, also those that drain."""
        return tuple(entry.link for entries in self._entries.values() for entry in entries)

    def add(self, new: LinkEntry[L]) -> Superseded[L]:
        """Add a link that came up; returns the links that it replaces."""
        entries = self._entries.setdefault(new.peer, [])
        dead = tuple(e.link for e in entries if e.incarnation != new.incarnation)
        if not entries or dead or _prefers(new, entries[0]):
            entries.insert(0, new)
        else:
            entries.append(new)
        return Superseded(tuple(e.link for e in entries[1:] if e.link not in dead), dead)

    def remove(self, peer: PeerId, link: L) -> None:
        """Remove a link that is over."""
        kept = [entry for entry in self._entries.get(peer, ()) if entry.link is not link]
        if kept:
            self._entries[peer] = kept
        else:
            self._entries.pop(peer, None)


def _dialled_at(entry: LinkEntry[L], address: Address) -> bool:
    return entry.dialler != entry.peer and entry.address == address


def _prefers(new: LinkEntry[L], old: LinkEntry[L]) -> bool:
    if new.dialler == old.dialler or new.since_s - old.since_s > SAME_TIME_S:
        return True
    return new.dialler < old.dialler
