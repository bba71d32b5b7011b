"""Expiries: when a store's records expire, by the second.

Records of one second are kept together, so that keeping, replacing and forgetting one cost
the same however many there are, and `due` can be asked for a portion. A record leaves up to
a second late; who reads checks the time itself.

Units:   `_ms` milliseconds since 1970 on the wall clock.
Errors:  none.
Source:  Varghese and Lauck, "Hashed and hierarchical timing wheels" (1987), scheme 4.
"""

import heapq

from p2pswarm.discovery.dht.store_shares import StoredRecord

TICK_MS = 1000


class Expiries:
    """The kept records by the time at which they may be forgotten."""

    def __init__(self) -> None:
        self._by_tick: dict[int, dict[StoredRecord, None]] = {}
        self._ticks: list[int] = []
        """A heap of the keys of `_by_tick`, each once: 3,606 if no record lasts over an hour."""

    def add(self, stored: StoredRecord) -> None:
        """Note when a record expires."""
        tick = _tick_of(stored)
        records = self._by_tick.get(tick)
        if records is None:
            records = self._by_tick[tick] = {}
            heapq.heappush(self._ticks, tick)
        records[stored] = None

    def remove(self, stored: StoredRecord) -> None:
        """Note that a record is no longer kept."""
        del self._by_tick[_tick_of(stored)][stored]

    def next_ms(self) -> int | None:
        """The time at which the first record may expire; None if nothing is noted."""
        return self._ticks[0] * TICK_MS if self._ticks else None

    def due(self, now_ms: int, most: int) -> list[StoredRecord]:
        """Some records that have expired, at most so many, of one second; `remove` each."""
        while self._ticks and self._ticks[0] * TICK_MS <= now_ms:
            records = self._by_tick[self._ticks[0]]
            if records:
                return [*records][-most:]
            del self._by_tick[heapq.heappop(self._ticks)]
        return []


def _tick_of(stored: StoredRecord) -> int:
    """The first tick at which a record has expired."""
    return -(-stored.record.expires_ms // TICK_MS)
