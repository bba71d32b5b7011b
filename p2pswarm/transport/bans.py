"""The bans of one endpoint: which errors count, and what those are told who meet a banned peer.

Units:   `now_s` seconds on the caller's clock.
Errors:  BadHandshake for a banned peer that dials us, DialFailed for one that is to be dialled.
Source:  docs/bans.md.
"""

import logging

from p2pswarm.errors import (
    BadChunk,
    BadFrame,
    BadHandshake,
    BadMessage,
    DialFailed,
    PeerError,
    SwarmError,
)
from p2pswarm.flow.peer_scores import Ban, Offence, PeerScores, time_left
from p2pswarm.ids import Address, PeerId
from p2pswarm.net.address_groups import NAMES, address_groups, network_of

log = logging.getLogger(__name__)

OFFENCES: dict[type[PeerError], Offence] = {
    BadFrame: Offence.FRAME,
    BadMessage: Offence.MESSAGE,
    BadChunk: Offence.CHUNK,
}
"""A wrong record or a failed handshake is not here: others than the peer can cause it."""


class PeerBans:
    """Who is banned here, and why."""

    def __init__(self) -> None:
        self._scores = PeerScores()

    def breached(
        self, peer: PeerId, remote: Address, error: SwarmError | None, now_s: float
    ) -> Ban | None:
        """A link with a peer ended with an error; the ban that follows, if one does."""
        offence = next((what for kind, what in OFFENCES.items() if isinstance(error, kind)), None)
        if offence is None:
            return None
        ban = self._scores.report(peer.raw, _place(remote), offence, now_s)
        if ban is not None:
            log.warning("%s", in_words(ban, now_s))
        return ban

    def check_peer(self, peer: PeerId, now_s: float) -> None:
        """Raise BadHandshake if a peer that has proven its id is banned."""
        if why := self.reason(peer, now_s):
            raise BadHandshake(why)

    def check_dial(self, peer: PeerId | None, now_s: float) -> None:
        """Raise DialFailed if a peer that is to be dialled is banned."""
        if peer is not None and (why := self.reason(peer, now_s)):
            raise DialFailed(why)

    def reason(self, peer: PeerId, now_s: float) -> str:
        """Why a peer is banned, and for how long, in words; empty if it is not."""
        ban = self._scores.ban(peer.raw, now_s)
        return "" if ban is None else in_words(ban, now_s)

    def current(self, now_s: float) -> list[Ban]:
        """All bans that are not over, the longest first."""
        return self._scores.bans(now_s)


def in_words(ban: Ban, now_s: float) -> str:
    """A ban for people."""
    left = time_left(ban.left_s(now_s))
    return f"{PeerId(ban.peer).short} is banned for another {left}: it {ban.offence.value}"


def _place(remote: Address) -> tuple[str, str]:
    """A peer's host, as far as an address costs something, and its network."""
    if remote.circuit:
        return "", ""  # what we see is the relay
    groups = address_groups(remote.host)
    return (remote.host if groups[0] == NAMES else groups[-1]), network_of(remote.host)
