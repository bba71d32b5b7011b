"""PeerScores: which peers have broken the protocol so often that we do without them for a while.

Only what a peer has provably sent itself is reported here; docs/bans.md argues what does not count.
Points halve with time. A ban ends by itself, and the next one is twice as long.

Units:   seconds on the caller's clock; points as in docs/bans.md.
"""

from collections import Counter
from dataclasses import dataclass
from enum import Enum

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
    """What a peer did, in words that follow "it"."""

    FRAME = "sent frames that break the protocol"
    MESSAGE = "sent messages that are malformed or forged"
    CHUNK = "sent chunks that nobody asked for"


POINTS = {Offence.FRAME: 40.0, Offence.MESSAGE: 40.0, Offence.CHUNK: 40.0}


@dataclass(frozen=True, slots=True)
class Ban:
    """A peer that we do without until a time."""

    peer: bytes
    offence: Offence
    """The last one before it."""
    until_s: float

    def left_s(self, now_s: float) -> float:
        """For how much longer."""
        return max(0.0, self.until_s - now_s)


@dataclass(slots=True)
class _Score:
    host: str
    network: str
    points: float = 0.0
    at_s: float = 0.0
    """When it had these points."""
    level: int = 0
    """How often it was banned in a row."""
    ban: Ban | None = None
    """The newest, even if it is over."""

    def now(self, now_s: float) -> float:
        """The points that are left."""
        return float(self.points * 0.5 ** (max(0.0, now_s - self.at_s) / HALF_LIFE_S))

    def banned(self, now_s: float) -> bool:
        """Whether the newest ban is not over."""
        return self.ban is not None and now_s < self.ban.until_s

    def forgettable(self, now_s: float) -> bool:
        """Whether nothing would be lost without it."""
        if self.ban is not None and now_s < self.ban.until_s + FORGIVEN_S:
            return False
        return self.now(now_s) < FORGETTABLE_POINTS


class PeerScores:
    """The peers that were caught, oldest first."""

    def __init__(self, scored_max: int = SCORED_MAX) -> None:
        self._scores: dict[bytes, _Score] = {}
        self._max = scored_max

    def __len__(self) -> int:
        return len(self._scores)

    def report(
        self, peer: bytes, place: tuple[str, str], offence: Offence, now_s: float
    ) -> Ban | None:
        """A peer has provably done this; the ban that follows, if one does.

        `place`: its host and the network of that, or two empty texts if they are not known.
        """
        score = self._scores.get(peer)
        if score is None:
            self._make_room(now_s)
            score = self._scores[peer] = _Score(*place)
        if score.banned(now_s):
            return None  # from a link that is being closed
        crowded = self._crowded(score.host, now_s)
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
        """Whether so many ids of a host are banned that it seems to make them."""
        if not host:
            return False
        there = (score for score in self._scores.values() if score.host == host)
        return sum(score.banned(now_s) for score in there) >= HOST_IDS

    def _make_room(self, now_s: float) -> None:
        """Forget somebody if there are too many: of the largest network, who has done least."""
        if len(self._scores) < self._max:
            return
        for peer, score in list(self._scores.items()):
            if score.forgettable(now_s):
                del self._scores[peer]
        if len(self._scores) < self._max:
            return
        counts = Counter(score.network for score in self._scores.values())
        largest = max(counts, key=lambda network: (counts[network], network))
        least = min(
            (peer for peer, score in self._scores.items() if score.network == largest),
            key=lambda peer: (self._scores[peer].banned(now_s), self._scores[peer].now(now_s)),
        )
        del self._scores[least]


def time_left(seconds: float) -> str:
    """A time in the unit that people would use."""
    for unit, size_s in (("h", 3_600.0), ("min", 60.0)):
        if seconds >= size_s:
            return f"{seconds / size_s:.0f} {unit}"
    return f"{seconds:.0f} s"
