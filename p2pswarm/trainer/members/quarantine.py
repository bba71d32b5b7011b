"""Quarantines: servers that computed with another state than their stage, and get no work for long.

Units:   seconds on the clock of the trainer that keeps them; on the wire what is left of them.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from p2pswarm.base.recent_items import RecentItems
from p2pswarm.run.messages.trainers import (
    QUARANTINE_MAX_S,
    QUARANTINE_TIMES_MAX,
    QUARANTINES_MAX,
    QuarantinedPeer,
)

QUARANTINE_S = 600.0  # each time costs all a step


@dataclass(frozen=True, slots=True)
class PeerQuarantine:
    """How often a peer was found with another state, and when it may work again."""

    times: int
    ends_s: float


class Quarantines(RecentItems[bytes, PeerQuarantine]):
    """The quarantined peers that one trainer knows, whoever led when they were found.

    A coordinator that does not know them would give each liar a fresh start. So it tells its
    standbys, and each trainer keeps what it has found or was told. Whoever leads could have said
    that it found these itself; standbys and voters cannot say it. Nobody can take one back.
    """

    def __init__(self) -> None:
        super().__init__(QUARANTINES_MAX)
        self.begun = 0
        """How many have begun at this trainer: standbys are told when it grows."""

    def begin(self, peer: bytes, now_s: float) -> float:
        """Begin a quarantine, and return how long it lasts: twice as long each time."""
        known = self.get(peer)
        before = known.times if known is not None else 0
        pause_s = min(QUARANTINE_MAX_S, QUARANTINE_S * 2.0**before)
        self[peer] = PeerQuarantine(min(before + 1, QUARANTINE_TIMES_MAX), now_s + pause_s)
        self.begun += 1
        return pause_s

    def ends_s(self, peer: bytes) -> float:
        """Return when a peer may work again."""
        known = self.get(peer)
        return known.ends_s if known is not None else float("-inf")

    def peers(self, now_s: float) -> tuple[QuarantinedPeer, ...]:
        """Return what a standby is to know; those that are over count when the next one begins."""
        return tuple(
            QuarantinedPeer(peer, one.times, min(QUARANTINE_MAX_S, max(0.0, one.ends_s - now_s)))
            for peer, one in self.items()
        )

    def on_coordinator(self, quarantined: Iterable[QuarantinedPeer], now_s: float) -> None:
        """The coordinator tells which it knows; the longer of two stands."""
        for one in quarantined:
            known, ends_s = self.get(one.peer), now_s + one.left_s
            if known is not None:
                ends_s = max(known.ends_s, ends_s)
            times = max(one.times, known.times if known is not None else 0)
            self[one.peer] = PeerQuarantine(times, ends_s)
