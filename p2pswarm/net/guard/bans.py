"""Bans: which peers have broken the protocol so often that we do without them for a while.

Source:  docs/bans.md.
"""

import logging
import math
from dataclasses import dataclass
from enum import Enum

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
from p2pswarm.net.guard.connection_limits import GroupCounter
from p2pswarm.net.os.addresses import NAMES, address_groups, network_of
from p2pswarm.net.wire import frames

HALF_LIFE_S = 600.0  # an offence an hour adds up to nothing
BAN_POINTS = 100.0
BAN_MIN_S = 60.0
BAN_MAX_S = 86_400.0
FORGIVEN_S = 86_400.0  # after the last ban: the next one is short again
SCORED_MAX = 4_096  # 1 MB; who has more ids than that pays a handshake for each
HOST_IDS = 8  # banned at a time at one host: it makes ids
HOST_LEVEL = 3  # then the first ban lasts 8 minutes
LEVEL_MAX = 11  # 2^11 minutes are more than a day
FORGETTABLE_POINTS = 1.0


class Offence(Enum):
    """A breach, in words that follow "it"."""

    FRAME = "sent frames that break the protocol"
    MESSAGE = "sent messages that are malformed or forged"
    CHUNK = "sent chunks that nobody asked for"


POINTS = {Offence.FRAME: 40.0, Offence.MESSAGE: 40.0, Offence.CHUNK: 40.0}


@dataclass(frozen=True, slots=True)
class Ban:
    """A peer that we do without until a time.

    Only what a peer has provably sent itself counts; docs/bans.md argues what does not. Points
    halve with time. A ban ends by itself, and the next one is twice as long.
    """

    peer: bytes
    offence: Offence
    """The last one before it."""
    until_s: float

    def left_s(self, now_s: float) -> float:
        """For how much longer."""
        return max(0.0, self.until_s - now_s)


@dataclass(frozen=True, slots=True)
class PeerOrigin:
    """The host of a peer and the network of that; empty texts if they are not known."""

    host: str
    network: str


@dataclass(slots=True)
class _Score:
    origin: PeerOrigin
    points: float = 0.0
    at_s: float = 0.0
    """The time of these points."""
    level: int = 0
    """The number of its bans in a row."""
    ban: Ban | None = None
    """The newest, even if it is over."""

    def now(self, now_s: float) -> float:
        """The points that are left."""
        return float(self.points * 0.5 ** (max(0.0, now_s - self.at_s) / HALF_LIFE_S))

    def banned(self, now_s: float) -> bool:
        """Return whether the newest ban is not over."""
        return self.ban is not None and now_s < self.ban.until_s

    def forgettable(self, now_s: float) -> bool:
        """Return whether nothing would be lost without it."""
        if self.ban is not None and now_s < self.ban.until_s + FORGIVEN_S:
            return False
        return self.now(now_s) < FORGETTABLE_POINTS


class PeerScores:
    """The peers that were caught, oldest first."""

    def __init__(self, scored_max: int = SCORED_MAX) -> None:
        self._scores: dict[bytes, _Score] = {}
        self._networks: GroupCounter[str] = GroupCounter()
        self._max = scored_max

    def __len__(self) -> int:
        return len(self._scores)

    def report(self, peer: bytes, origin: PeerOrigin, offence: Offence, now_s: float) -> Ban | None:
        """Count what a peer has provably done; returns the ban that follows, if one does."""
        score = self._scores.get(peer)
        if score is None:
            self._make_room(now_s)
            score = self._scores[peer] = _Score(origin)
            self._networks.add(origin.network)
        if score.banned(now_s):
            return None  # from a link that is being closed
        crowded = self._crowded(score.origin.host, now_s)
        score.points, score.at_s = score.now(now_s) + POINTS[offence], now_s
        if score.points < BAN_POINTS and not crowded:
            return None
        if score.ban is not None and now_s >= score.ban.until_s + FORGIVEN_S:
            score.level = 0
        score.level = max(score.level, HOST_LEVEL if crowded else 0)
        lasts_s = min(BAN_MAX_S, BAN_MIN_S * 2**score.level)
        score.level = min(LEVEL_MAX, score.level + 1)
        score.points = 0.0
        score.ban = Ban(peer, offence, now_s + lasts_s)
        return score.ban

    def ban(self, peer: bytes, now_s: float) -> Ban | None:
        """The ban of a peer that is not over; None if it has none."""
        score = self._scores.get(peer)
        return score.ban if score is not None and score.banned(now_s) else None

    def bans(self, now_s: float) -> list[Ban]:
        """All bans that are not over, the longest first."""
        there = [s.ban for s in self._scores.values() if s.ban is not None and s.banned(now_s)]
        return sorted(there, key=lambda ban: (-ban.until_s, ban.peer))

    def _crowded(self, host: str, now_s: float) -> bool:
        """Return whether so many ids of a host are banned that it seems to make them."""
        if not host:
            return False
        there = (score for score in self._scores.values() if score.origin.host == host)
        return sum(score.banned(now_s) for score in there) >= HOST_IDS

    def _make_room(self, now_s: float) -> None:
        """Forget somebody if there are too many: of the largest network, who has done least."""
        if len(self._scores) < self._max:
            return
        for peer, score in list(self._scores.items()):
            if score.forgettable(now_s):
                self._forget(peer)
        if len(self._scores) < self._max:
            return
        networks = self._networks
        largest = max(networks, key=lambda network: (networks[network], network))
        least = min(
            (peer for peer, score in self._scores.items() if score.origin.network == largest),
            key=lambda peer: (self._scores[peer].banned(now_s), self._scores[peer].now(now_s)),
        )
        self._forget(least)

    def _forget(self, peer: bytes) -> None:
        self._networks.remove(self._scores.pop(peer).origin.network)


def time_left(seconds: float) -> str:
    """A time in the unit that people would use."""
    for unit, size_s in (("h", 3_600.0), ("min", 60.0)):
        if seconds >= size_s:
            return f"{seconds / size_s:.0f} {unit}"
    return f"{seconds:.0f} s"


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
    """The bans of one endpoint: the errors that count, and what those learn who meet one."""

    def __init__(self) -> None:
        self._scores = PeerScores()
        self.current = self._scores.bans
        self._told: dict[bytes, float] = {}
        """The peers that say that they have banned us, and when that was last logged."""
        self.banned_by: dict[bytes, str] = {}
        """Their notices, in our words; only read it."""

    def on_breach(
        self, peer: PeerId, remote: Address, error: SwarmError | None, now_s: float
    ) -> Ban | None:
        """A link with a peer ended with an error; the ban that follows, if one does."""
        offence = next((what for kind, what in OFFENCES.items() if isinstance(error, kind)), None)
        if offence is None:
            return None
        ban = self._scores.report(peer.raw, origin_of(remote), offence, now_s)
        if ban is not None:
            log.warning("%s", in_words(ban, now_s))
        return ban

    def notice(self, peer: PeerId, now_s: float) -> bytes:
        """The frame that tells a banned peer with a proven id why we hang up; or nothing."""
        ban = self._scores.ban(peer.raw, now_s)
        if ban is None:
            return b""
        minutes = math.ceil(ban.left_s(now_s) / 60)  # no seconds: it learns little of our clock
        left_s = min(int(BAN_MAX_S), 60 * minutes)
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
        """Return why a peer is banned, and for how long, in words; empty if it is not."""
        ban = self._scores.ban(peer.raw, now_s)
        return "" if ban is None else in_words(ban, now_s)


def in_words(ban: Ban, now_s: float) -> str:
    """A ban for people."""
    left = time_left(ban.left_s(now_s))
    return f"{PeerId(ban.peer).short} is banned for another {left}: it {ban.offence.value}"


def told_ban(payload: bytes) -> str:
    """A peer's notice of a ban in our words, none of its own; BadFrame if it is none."""
    if len(payload) != frames.BAN.size:
        raise BadFrame(f"a CLOSE with {len(payload)} bytes")
    number, left_s = frames.BAN.unpack(payload)
    offences = list(Offence)
    what = offences[number].value if number < len(offences) else "broke the protocol"
    left = time_left(min(left_s, BAN_MAX_S))
    return f"{BANNED_US} for another {left}: it says that this node {what}; {REMEDY}"


def origin_of(remote: Address) -> PeerOrigin:
    """A peer's host, as far as an address costs something, and its network."""
    if remote.circuit:
        return PeerOrigin("", "")  # what we see is the relay
    groups = address_groups(remote.host)
    host = remote.host if groups[0] == NAMES else groups[-1]
    return PeerOrigin(host, network_of(remote.host))
