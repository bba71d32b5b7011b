"""Publications: our own values in the DHT, and when each is to be published again.

Units:   seconds on the caller's monotonic clock.
Errors:  ValueError for more values than a peer's quota allows.
"""

import random
from dataclasses import dataclass

from p2pswarm.discovery.dht.config import DhtConfig

REPUBLISH_SHARE = 1 / 3  # of the time to live, so that two attempts may fail


@dataclass(slots=True)
class Publication:
    """A value of ours."""

    key: bytes
    subkey: bytes
    value: bytes
    seq: int
    ttl_s: float
    due_s: float
    """The time to publish it again."""


class Publications:
    """Our values by key and subkey."""

    def __init__(self, config: DhtConfig, rng: random.Random) -> None:
        self._config = config
        self._rng = rng
        self._ours: dict[tuple[bytes, bytes], Publication] = {}

    def keep(self, publication: Publication, now_s: float) -> None:
        """Add a publication, in place of an older one with the same key and subkey."""
        place = publication.key, publication.subkey
        most = self._config.records_per_publisher
        if place not in self._ours and len(self._ours) >= most:
            raise ValueError(f"{most} values are published already: withdraw some of them")
        self._ours[place] = publication
        self._postpone(publication, now_s)

    def withdraw(self, key: bytes, subkey: bytes) -> None:
        """Let a value expire."""
        self._ours.pop((key, subkey), None)

    def due(self, now_s: float) -> list[Publication]:
        """The values to publish now; each is due again after a third of its time to live."""
        due = [each for each in self._ours.values() if each.due_s <= now_s]
        for publication in due:
            self._postpone(publication, now_s)
        return due

    def keeps(self, publication: Publication) -> bool:
        """Whether a publication was neither withdrawn nor replaced."""
        return self._ours.get((publication.key, publication.subkey)) is publication

    def next_deadline_s(self) -> float | None:
        """The time at which the first value is due; None without values."""
        return min((each.due_s for each in self._ours.values()), default=None)

    def _postpone(self, publication: Publication, now_s: float) -> None:
        jitter = self._config.jitter
        pause_s = publication.ttl_s * REPUBLISH_SHARE
        publication.due_s = now_s + pause_s * self._rng.uniform(1 - jitter, 1 + jitter)
