"""The access list: what the owner of a run has taken back or renewed since it signed the grants.

Units:   times in seconds since 1970, UTC.
Errors:  BadMessage for a list that its owner did not sign.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from p2pswarm.base.errors import BadMessage
from p2pswarm.net.crypto.identity import Identity, verify
from p2pswarm.run.access.messages import AccessList, Extension

LIST_TAG = b"p2pswarm-access-list-1:"


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
        """Whether a grant is revoked, for this peer."""
        return serial in self._serials or peer in self._peers

    def not_after(self, serial: bytes, granted: int) -> int:
        """Until when a grant holds that was `granted` until then."""
        return self._extended.get(serial, granted)
