"""The bans of one endpoint: which errors count, and what those are told who meet a banned peer.

Units:   `now_s` seconds on the caller's clock.
Errors:  BadHandshake for a banned peer that dials us, DialFailed for one that is to be dialled.
Source:  docs/bans.md.
"""

import logging
import math

from p2pswarm.base.errors import (
    BadChunk,
    BadFrame,
    BadHandshake,
    BadMessage,
    DialFailed,
    LinkLost,
    PeerError,
    SwarmError,
)
from p2pswarm.base.ids import Address, PeerId
from p2pswarm.base.peer_scores import BAN_MAX_S, Ban, Offence, PeerScores, time_left
from p2pswarm.net.os.addresses import NAMES, address_groups, network_of
from p2pswarm.net.wire import frames

log = logging.getLogger(__name__)

SAID_AGAIN_S = 600.0  # a node that dials again and again says once why it is turned away
TOLD_MAX = 256  # anybody can say that it has banned us
BANNED_US = "it has banned this node"
REMEDY = "wait, and run the same version as the others"

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
        self._told: dict[bytes, float] = {}
        """The peers that say that they have banned us, and when that was last logged."""
        self.banned_by: dict[bytes, str] = {}
        """What they say, in our words; only read it."""

    def on_breach(
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

    def notice(self, peer: PeerId, now_s: float) -> bytes:
        """The frame that tells a banned peer, which has proven its id, why we hang up; or nothing.

        Its seconds are rounded up to minutes, so that it learns little of our clock.
        """
        ban = self._scores.ban(peer.raw, now_s)
        if ban is None:
            return b""
        left_s = min(int(BAN_MAX_S), 60 * math.ceil(ban.left_s(now_s) / 60))
        number = list(Offence).index(ban.offence)
        return frames.encode(frames.CLOSE, 0, frames.BAN.pack(number, left_s))

    def on_link_end(self, peer: PeerId, error: SwarmError, now_s: float) -> None:
        """A link has ended: if its peer says that it has banned us, our user is told, once."""
        if not isinstance(error, LinkLost) or BANNED_US not in str(error):
            return
        self.banned_by[peer.raw] = str(error)
        known_s = self._told.pop(peer.raw, None)
        if known_s is None or now_s >= known_s + SAID_AGAIN_S:
            log.warning("%s", error)
            known_s = now_s
        self._told[peer.raw] = known_s
        if len(self._told) > TOLD_MAX:
            forgotten = next(iter(self._told))
            del self._told[forgotten], self.banned_by[forgotten]

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


def told_ban(payload: bytes) -> str:
    """What a peer says with its last frame, in our words: none of its own are shown.

    Raises BadFrame for a payload that is none.
    """
    if len(payload) != frames.BAN.size:
        raise BadFrame(f"a CLOSE with {len(payload)} bytes")
    number, left_s = frames.BAN.unpack(payload)
    offences = list(Offence)
    what = offences[number].value if number < len(offences) else "broke the protocol"
    left = time_left(min(left_s, BAN_MAX_S))
    return f"{BANNED_US} for another {left}: it says that this node {what}; {REMEDY}"


def _place(remote: Address) -> tuple[str, str]:
    """A peer's host, as far as an address costs something, and its network."""
    if remote.circuit:
        return "", ""  # what we see is the relay
    groups = address_groups(remote.host)
    return (remote.host if groups[0] == NAMES else groups[-1]), network_of(remote.host)
