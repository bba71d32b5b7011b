"""Acquaintances: to whom our token was shown, where they are, and which access list they have.

Units:   `now_s` seconds on the caller's clock.
Errors:  none.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from p2pswarm.base.ids import Contact

ACQUAINTANCES_MAX = 4_096  # as many as have shown theirs
ASK_EVERY_S = 10.0  # a list that was missed is known so much later at most


@dataclass(slots=True)
class _Acquaintance:
    contact: Contact
    version: int = 0
    """Of the list that it has, as far as we know."""
    shown: bool = False
    """Whether it has taken our token, and we its."""


class Acquaintances:
    """The members that we have called, oldest first."""

    def __init__(self) -> None:
        self._known: dict[bytes, _Acquaintance] = {}
        self._ask_s: float | None = None

    def shown(self, peer: bytes) -> bool:
        """Whether a peer has taken our token since it was last lost."""
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
        """Where those are that have an older list."""
        return [one.contact for one in self._known.values() if one.version < version]

    def to_ask(self, now_s: float, members: Iterable[bytes]) -> Contact | None:
        """Whom to ask now for a newer list; one after the other."""
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
        """When to ask again; None while nobody is known."""
        return self._ask_s or 0.0 if self._known else None
