"""InvitationBook: what the owner of a run has signed, under which names, and what was taken back.

Units:   `now_s` and times in seconds since 1970, UTC.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, get_type_hints

from p2pswarm.base.errors import Unusable
from p2pswarm.base.ids import PeerId
from p2pswarm.run.access.access_list import Revocations
from p2pswarm.run.access.grant import ROLES, serial_of
from p2pswarm.run.access.messages import (
    CLOCK_TOLERANCE_S,
    EXTENDED_MAX,
    GRANT_MAX_S,
    REVOKED_PEERS_MAX,
    REVOKED_SERIALS_MAX,
    SERIAL_BYTES,
    AccessGrant,
)

BOOK_MAX = 10_000  # invitations that are good, of one run
FULL = "as many as one run's list holds: begin another run (--new) and invite to that"


@dataclass(slots=True)
class InvitationEntry:
    """One invitation."""

    serial: str
    """In hexadecimal."""
    name: str
    role: str
    uses: int
    not_before: int
    not_after: int
    """With renewals."""
    peer: str = ""
    """The peer that it is for; empty: whoever has its text."""
    revoked: bool = False
    renewed: bool = False


@dataclass(slots=True)
class InvitationBook:
    """All invitations of one run that are good, or would be if they were not revoked."""

    version: int = 0
    """Of the newest access list that was signed."""
    entries: list[InvitationEntry] = field(default_factory=list)
    peers: list[str] = field(default_factory=list)
    """Peer ids that are revoked, whatever they hold."""

    def free_name(self, wanted: str) -> str:
        """The name for a new invitation. Raises Unusable if it is taken."""
        taken = {entry.name for entry in self.entries}
        if wanted:
            if wanted in taken:
                raise Unusable(f"there is an invitation named {wanted!r}: choose another --name")
            return wanted
        return next(f"guest-{n}" for n in range(1, len(taken) + 2) if f"guest-{n}" not in taken)

    def add(self, name: str, grant: AccessGrant) -> InvitationEntry:
        """Note an invitation that was signed."""
        if len(self.entries) >= BOOK_MAX:
            raise Unusable(f"{BOOK_MAX} invitations are good at once, as many as a run may have")
        role = next(name for name, roles in ROLES.items() if roles == grant.roles)
        peer = "" if grant.bearer else str(PeerId(grant.subject))
        times = grant.not_before, grant.not_after
        entry = InvitationEntry(serial_of(grant).hex(), name, role, grant.uses, *times, peer)
        self.entries.append(entry)
        return entry

    def revoke(self, whom: str) -> str:
        """Revoke what has this name or serial number, or a peer; returns what it was."""
        found = self._find(whom)
        if found:
            for entry in found:
                entry.revoked = True
            return f"invitation {found[0].name!r}"
        try:
            peer = PeerId.parse(whom)
        except ValueError:
            names = ", ".join(repr(entry.name) for entry in self.entries[:8]) or "none yet"
            raise Unusable(
                f"{whom!r} is no name, serial number or peer id; the invitations are {names}"
            ) from None
        if str(peer) not in self.peers:
            self.peers.append(str(peer))
        return f"peer {peer.short}"

    def renew(self, whom: str, not_after: int) -> InvitationEntry:
        """Let an invitation hold until another time; Unusable if it is revoked or unknown."""
        found = self._find(whom)
        if not found:
            raise Unusable(f"there is no invitation {whom!r}: see p2pswarm invitations")
        entry = found[0]
        if entry.revoked:
            raise Unusable(f"invitation {entry.name!r} is revoked: invite anew")
        if not_after - entry.not_before > GRANT_MAX_S:
            raise Unusable(f"an invitation lasts {GRANT_MAX_S // 86_400} days at most: invite anew")
        entry.not_after, entry.renewed = not_after, True
        return entry

    def drop_expired(self, now_s: float) -> None:
        """Forget what is good nowhere any more: nobody need be told of it."""
        limit_s = now_s - 2 * CLOCK_TOLERANCE_S
        self.entries = [entry for entry in self.entries if entry.not_after >= limit_s]

    def next_list(self, now_s: float) -> tuple[int, Revocations]:
        """The version and content of the next list; versions rise, even if the book was lost."""
        self.drop_expired(now_s)
        serials = [bytes.fromhex(entry.serial) for entry in self.entries if entry.revoked]
        extended = {
            bytes.fromhex(entry.serial): entry.not_after
            for entry in self.entries
            if entry.renewed and not entry.revoked
        }
        peers = [PeerId.parse(peer).raw for peer in self.peers]
        for count, most, what in (
            (len(serials), REVOKED_SERIALS_MAX, "invitations are revoked"),
            (len(peers), REVOKED_PEERS_MAX, "peers are revoked"),
            (len(extended), EXTENDED_MAX, "invitations are renewed"),
        ):
            if count > most:
                raise Unusable(f"{count} {what}, {most} are {FULL}")
        self.version = max(self.version + 1, int(now_s))
        return self.version, Revocations(serials, peers, extended)

    def _find(self, whom: str) -> list[InvitationEntry]:
        return [entry for entry in self.entries if whom in (entry.name, entry.serial)]


def book_from(fields: Mapping[str, Any]) -> InvitationBook:
    """Read what `asdict` gave; ValueError, KeyError or TypeError for anything else."""
    entries = [InvitationEntry(**entry) for entry in fields["entries"]]
    for entry in entries:
        for name, kind in get_type_hints(InvitationEntry).items():
            if type(getattr(entry, name)) is not kind:
                raise TypeError(f"{name} is no {kind.__name__}")
        if len(bytes.fromhex(entry.serial)) != SERIAL_BYTES:
            raise ValueError("a serial number of another length")
    peers = [str(PeerId.parse(peer)) for peer in fields["peers"]]
    return InvitationBook(int(fields["version"]), entries, peers)
