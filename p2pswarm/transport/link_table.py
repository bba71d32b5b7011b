"""LinkTable: which of the links to a peer is the one to use; both sides agree without asking.

When two peers dial each other at once, two links come up. Both sides keep the one
that the peer with the smaller id dialled, use it for all that is new, and let the
other one drain. Of two links dialled by the same side the newer counts: nobody
dials a peer it has a link to, so the older must be dead at that end.

Units:   seconds on the caller's monotonic clock.
Errors:  none that a peer can cause.
Source:  docs/wire.md, "One link".
"""

from dataclasses import dataclass
from typing import Generic, TypeVar

from p2pswarm.ids import Contact, PeerId

SAME_TIME_S = 10.0  # two handshakes: links further apart were not dialled at once

L = TypeVar("L")


@dataclass(frozen=True, slots=True)
class LinkEntry(Generic[L]):
    """A link, and what decides about it."""

    link: L
    contact: Contact
    """Whose it is, and where that peer is dialled."""
    dialler: PeerId
    """Who dialled it: the peer or we."""
    incarnation: bytes
    """Random bytes of the peer's process."""
    since_s: float

    @property
    def peer(self) -> PeerId:
        """Who is at the other end."""
        assert self.contact.peer is not None
        return self.contact.peer


@dataclass(frozen=True, slots=True)
class Superseded(Generic[L]):
    """What a new link means for the others to its peer, and they for it."""

    drain: tuple[L, ...]
    """Use them no more, close them once they are quiet."""
    dead: tuple[L, ...]
    """The peer's process at the other end is gone."""


class LinkTable(Generic[L]):
    """Every link that is up."""

    def __init__(self) -> None:
        self._entries: dict[PeerId, list[LinkEntry[L]]] = {}

    def best(self, peer: PeerId) -> L | None:
        """The link to use."""
        entries = self._entries.get(peer)
        return entries[0].link if entries else None

    def find(self, to: Contact) -> L | None:
        """The link to use for a contact; one without a peer id is known by its address."""
        if to.peer is not None:
            return self.best(to.peer)
        for peer, entries in self._entries.items():
            if any(entry.contact.address == to.address for entry in entries):
                return self.best(peer)
        return None

    def all(self) -> tuple[L, ...]:
        """Every link, those that drain too."""
        return tuple(entry.link for entries in self._entries.values() for entry in entries)

    def add(self, new: LinkEntry[L]) -> Superseded[L]:
        """Note a link that came up."""
        entries = self._entries.setdefault(new.peer, [])
        dead = tuple(e.link for e in entries if e.incarnation != new.incarnation)
        if not entries or dead or _prefers(new, entries[0]):
            entries.insert(0, new)
        else:
            entries.append(new)
        return Superseded(tuple(e.link for e in entries[1:] if e.link not in dead), dead)

    def remove(self, peer: PeerId, link: L) -> None:
        """The link is over."""
        kept = [entry for entry in self._entries.get(peer, ()) if entry.link is not link]
        if kept:
            self._entries[peer] = kept
        else:
            self._entries.pop(peer, None)


def _prefers(new: LinkEntry[L], old: LinkEntry[L]) -> bool:
    if new.dialler == old.dialler or new.since_s - old.since_s > SAME_TIME_S:
        return True
    return new.dialler < old.dialler
