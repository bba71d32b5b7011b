"""Partners: with whom the next exchange is.

Mostly it is somebody to whom a link is up already; sometimes a random member, so that nobody can
be surrounded and news take every way; and sometimes somebody who is missing, so that what was cut
in two becomes one again.

Units:   seconds on the caller's monotonic clock.
Errors:  none.
Source:  docs/directory.md, "How it spreads"; RFC 9000, 21.5, for requests that a peer is made to
         send to others.
"""

import random
from collections.abc import Iterable
from enum import Enum, auto

from p2pswarm.base.ids import Contact, PeerId
from p2pswarm.discovery.gossip.directory import Directory
from p2pswarm.discovery.gossip.record import PeerRecord, contact_of
from p2pswarm.net.os.addresses import Scope

PARTNERS_MAX = 8  # links that gossip keeps up
ENTRIES_MAX = 64
PICKS = 8  # tries to find a random member that may be asked
AVOIDED_S = 60.0  # a member that did not answer
REFUSED_S = 3.0  # one that is busy, as the trainer is when everybody comes at once
HOST_AVOIDED_S = 600.0  # where somebody whom we have never met was not found
AVOIDED_MAX = 4096  # hosts and members; about 1 MB


class Outcome(Enum):
    """How an exchange ended."""

    ANSWERED = auto()
    REFUSED = auto()
    """It is there, and is busy or not in the run."""
    SILENT = auto()
    """It was not found, did not answer, or broke the protocol."""


class _RoundKind(Enum):
    """Whom a round is for."""

    MISSING = auto()
    ANYBODY = auto()
    PARTNER = auto()


_ROUNDS = (
    _RoundKind.MISSING,
    _RoundKind.PARTNER,
    _RoundKind.ANYBODY,
    _RoundKind.PARTNER,
    _RoundKind.PARTNER,
    _RoundKind.ANYBODY,
    _RoundKind.PARTNER,
    _RoundKind.PARTNER,
)


class Partners:
    """Whom one member asks."""

    def __init__(self, own: Contact, least: Scope, rng: random.Random) -> None:
        """`least`: the smallest scope of addresses that are believed."""
        self._own = own
        self._least = least
        self._rng = rng
        self._round = 0
        self._latest = False
        """Whether the one that was lost last is asked next, or a random one."""
        self._partners: dict[Contact, None] = {}
        """Who has answered us; the latest last."""
        self._entries: dict[PeerId, Contact] = {}
        self._avoided_s: dict[PeerId | str, float] = {}
        """Until when a member or a host is left alone."""

    def enter_through(self, contacts: Iterable[Contact]) -> None:
        """These are in the run, as the DHT or the user says."""
        for contact in contacts:
            if contact.peer is None or contact.peer == self._own.peer:
                continue
            self._entries.pop(contact.peer, None)
            self._entries[contact.peer] = contact
            if len(self._entries) > ENTRIES_MAX:
                del self._entries[next(iter(self._entries))]

    @property
    def present(self) -> list[Contact]:
        """Who has answered us lately; the latest last."""
        return list(self._partners)

    def next(self, directory: Directory, now_s: float) -> Contact | None:
        """Whom to ask now; None if nobody is known."""
        kind = _ROUNDS[self._round % len(_ROUNDS)]
        self._round += 1
        if kind is _RoundKind.PARTNER and self._partners:
            return self._rng.choice(list(self._partners))
        anybody = self._anybody(directory, now_s)
        if anybody is None or kind is _RoundKind.MISSING:
            return self._missing(directory, now_s) or anybody or self._entry()
        return anybody

    def _entry(self) -> Contact | None:
        """An entry point, whatever came of it before: nobody else can be asked."""
        return self._rng.choice(list(self._entries.values())) if self._entries else None

    def ended(self, contact: Contact, outcome: Outcome, directory: Directory, now_s: float) -> None:
        """Note how an exchange that we began has ended."""
        assert contact.peer is not None, "whoever is asked has an id"
        self._partners.pop(contact, None)
        if outcome is not Outcome.SILENT:
            directory.met(contact.peer)
            self._avoided_s.pop(contact.address.host, None)
        match outcome:
            case Outcome.ANSWERED:
                self._avoided_s.pop(contact.peer, None)
                self._partners[contact] = None
                if len(self._partners) > PARTNERS_MAX:
                    del self._partners[next(iter(self._partners))]
            case Outcome.REFUSED:
                self._avoid(contact.peer, now_s + REFUSED_S)
            case Outcome.SILENT:
                self._avoid(contact.peer, now_s + AVOIDED_S)
                if not directory.was_met(contact.peer) and contact.peer not in self._entries:
                    self._avoid(contact.address.host, now_s + HOST_AVOIDED_S)

    def contact(self, record: PeerRecord) -> Contact | None:
        """Where a member can be dialled, as far as it is believed."""
        return contact_of(record, self._least, self._own.address)

    def _anybody(self, directory: Directory, now_s: float) -> Contact | None:
        """A random member."""
        for _ in range(PICKS):
            record = directory.pick()
            if record is None:
                return None
            contact = self._askable(record, directory, now_s)
            if contact is not None and not self._avoids(record.peer, now_s):
                return contact
        return None

    def _missing(self, directory: Directory, now_s: float) -> Contact | None:
        """A member whose record has died, or an entry point that has none."""
        entries = [c for peer, c in self._entries.items() if directory.get(peer) is None]
        lost = [
            contact
            for record in directory.lost()
            if record.peer not in self._entries
            and (contact := self._askable(record, directory, now_s)) is not None
        ]
        missing = lost + entries  # somebody told us of entry points, so they count as the latest
        if not missing:
            return None
        self._latest = not self._latest
        return missing[-1] if self._latest else self._rng.choice(missing)

    def _askable(self, record: PeerRecord, directory: Directory, now_s: float) -> Contact | None:
        """Where to ask a peer; None if it cannot be dialled, or its host is left alone."""
        if record.peer == self._own.peer or record.left:
            return None
        contact = self.contact(record)
        if contact is None or directory.was_met(record.peer):
            return contact
        return None if self._avoids(contact.address.host, now_s) else contact

    def _avoids(self, whom: PeerId | str, now_s: float) -> bool:
        return self._avoided_s.get(whom, 0.0) > now_s

    def _avoid(self, whom: PeerId | str, until_s: float) -> None:
        self._avoided_s.pop(whom, None)
        self._avoided_s[whom] = until_s
        if len(self._avoided_s) > AVOIDED_MAX:
            del self._avoided_s[next(iter(self._avoided_s))]
