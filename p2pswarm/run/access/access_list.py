"""The access list of a closed run, and the peers that have shown which list they hold.

The list has what the owner has taken back or renewed since it signed the grants.

Units:   times in seconds since 1970, UTC; `now_s` in seconds on the caller's clock.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from p2pswarm.base.errors import BadMessage
from p2pswarm.base.ids import Contact
from p2pswarm.net.crypto.identity import Identity, verify
from p2pswarm.run.access.messages import AccessList, Extension

LIST_TAG = b"p2pswarm-access-list-1:"
ACQUAINTANCES_MAX = 4_096  # as many as have shown theirs
ASK_EVERY_S = 10.0  # a list that was missed is known so much later at most


@dataclass(frozen=True, slots=True)
class Revocations:
    """The content of a list, before it is signed."""

    serials: Iterable[bytes] = ()
    peers: Iterable[bytes] = ()
    extended: Mapping[bytes, int] | None = None
    """Until when a grant holds, by its serial number."""


def sign_list(owner: Identity, run: bytes, version: int, content: Revocations) -> AccessList:
    """The owner's list; ValueError if it holds more than a list may."""
    extended = tuple(Extension(*pair) for pair in sorted((content.extended or {}).items()))
    serials, peers = tuple(sorted(set(content.serials))), tuple(sorted(set(content.peers)))
    unsigned = AccessList(run, version, serials, peers, extended, bytes(64))
    return replace(unsigned, signature=owner.sign(LIST_TAG, list_part(unsigned)))


def list_part(access: AccessList) -> bytes:
    """The bytes that the owner's signature covers; counts keep the parts apart."""
    counts = (len(access.serials), len(access.peers), len(access.extended))
    parts = [access.run, access.version.to_bytes(8), *(count.to_bytes(4) for count in counts)]
    parts += [*access.serials, *access.peers]
    parts += [one.serial + one.not_after.to_bytes(8) for one in access.extended]
    return b"".join(parts)


def check_list(access: AccessList, run: bytes, owner: bytes) -> None:
    """Raise BadMessage unless this is the owner's list for this run."""
    if access.run != run:
        raise BadMessage("an access list of another run")
    if not verify(owner, LIST_TAG, list_part(access), access.signature):
        raise BadMessage("an access list that the run's owner did not sign")


class KnownList:
    """The newest list that is known, for looking up."""

    def __init__(self) -> None:
        self.newest: AccessList | None = None
        self._serials: frozenset[bytes] = frozenset()
        self._peers: frozenset[bytes] = frozenset()
        self._extended: dict[bytes, int] = {}

    @property
    def version(self) -> int:
        """Of the newest list; 0 before any."""
        return self.newest.version if self.newest else 0

    def replace(self, access: AccessList) -> None:
        """Go by another list from now on."""
        self.newest = access
        self._serials, self._peers = frozenset(access.serials), frozenset(access.peers)
        self._extended = {one.serial: one.not_after for one in access.extended}

    def revoked(self, serial: bytes, peer: bytes) -> bool:
        """Return whether a grant is revoked, for this peer."""
        return serial in self._serials or peer in self._peers

    def not_after(self, serial: bytes, granted: int) -> int:
        """Until when a grant holds that was `granted` until then."""
        return self._extended.get(serial, granted)


@dataclass(slots=True)
class _Acquaintance:
    contact: Contact
    version: int = 0
    """Of the list that it has, as far as we know."""
    shown: bool = False
    """True if it has taken our token, and we its."""


class Acquaintances:
    """The members that have seen our token, with their places and lists, oldest first."""

    def __init__(self) -> None:
        self._known: dict[bytes, _Acquaintance] = {}
        self._ask_s: float | None = None

    def shown(self, peer: bytes) -> bool:
        """Return whether a peer has taken our token since it was last lost."""
        known = self._known.get(peer)
        return known is not None and known.shown

    def took(self, peer: bytes, contact: Contact, version: int) -> None:
        """A member has taken our token, and has the list of this version."""
        self._known.pop(peer, None)
        if len(self._known) >= ACQUAINTANCES_MAX:
            del self._known[next(iter(self._known))]
        self._known[peer] = _Acquaintance(contact, version, shown=True)

    def has(self, peer: bytes, version: int) -> None:
        """A member says which list it has."""
        if known := self._known.get(peer):
            known.version = max(known.version, version)

    def forget(self, peer: bytes) -> None:
        """A peer may have forgotten our token: it refused us, or its process ended."""
        if known := self._known.get(peer):
            known.shown = False

    def drop(self, peer: bytes) -> None:
        """A peer is no member any more."""
        self._known.pop(peer, None)

    def behind(self, version: int) -> list[Contact]:
        """Return where those are that have an older list."""
        return [one.contact for one in self._known.values() if one.version < version]

    def to_ask(self, now_s: float, members: Iterable[bytes]) -> Contact | None:
        """Return whom to ask now for a newer list; one after the other."""
        first = self._ask_s is None  # it was shown the token just now
        if not first and now_s < (self._ask_s or 0.0):
            return None
        self._ask_s = now_s + ASK_EVERY_S
        if first:
            return None
        there = set(members)
        for peer in list(self._known):
            known = self._known.pop(peer)
            self._known[peer] = known  # the next one is next time
            if peer in there or known.shown:
                return known.contact
        return None

    def next_deadline_s(self) -> float | None:
        """Return when to ask again; None while nobody is known."""
        return self._ask_s or 0.0 if self._known else None
