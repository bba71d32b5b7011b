"""FairRate: groups of peers share a relay's bandwidth; each pair of peers has a limit, too.

Source:  Goyal, Vin and Cheng, "Start-time fair queuing" (1996); ITU-T I.371, GCRA, for the rates.
"""

import heapq
from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass, field
from itertools import count
from typing import Generic, TypeVar

BURST_S = 0.05  # short beside a round trip, long beside one piece of 256 KiB at 20 MB/s

F = TypeVar("F")


class _Rate:
    """A rate, and until when it is used up."""

    __slots__ = ("_bytes_per_s", "free_s")

    def __init__(self, bytes_per_s: float) -> None:
        self._bytes_per_s = bytes_per_s
        self.free_s = float("-inf")

    def use(self, nbytes: int, now_s: float) -> None:
        self.free_s = max(self.free_s, now_s - BURST_S) + nbytes / self._bytes_per_s


@dataclass(slots=True)
class _PairGroup:
    """The pairs that share."""

    pairs: int = 0
    finish: float = 0.0
    """End of its last piece, on the clock of bytes."""


@dataclass(slots=True)
class _Pair(Generic[F]):
    """The queue of the flows of one pair."""

    rate: _Rate
    group: _PairGroup
    flows: int = 0
    waiting: deque[tuple[F, int]] = field(default_factory=deque)


class FairRate(Generic[F]):
    """The order in which the flows of a relay go on.

    A flow (one direction of a circuit) tells how much it has carried, and carries no more until it
    is granted. Grants come as the relay's rate allows, to the group of pairs that has had the
    least: what a group carries next begins where its last piece ended, on a clock that counts
    bytes. So groups share by bytes, however many pairs and circuits they have, and one that
    carries little waits for one piece of another at most. A group is two networks: ids and
    addresses within one cost nothing.

    A rate is kept by one number, the time until which what was carried has been paid for. After a
    pause at most BURST_S of it is left to be used at once.
    """

    def __init__(self, total_bytes_per_s: float, pair_bytes_per_s: float) -> None:
        if not (total_bytes_per_s > 0 and pair_bytes_per_s > 0):
            raise ValueError("a rate is more than 0")
        self._total = _Rate(total_bytes_per_s)
        self._pair_bytes_per_s = pair_bytes_per_s
        self._pairs: dict[Hashable, _Pair[F]] = {}
        self._groups: dict[Hashable, _PairGroup] = {}
        self._clock = 0.0
        self._order = count()  # so that no two entries of a heap are equal
        self._ready: list[tuple[float, int, int, _Pair[F]]] = []
        """By the start of their next grant; of several that start now, the smallest goes first."""
        self._limited: list[tuple[float, int, _Pair[F]]] = []  # by when their own rate is free

    def on_open(self, pair: Hashable, group: Hashable) -> None:
        """A flow of this pair began; a pair is always of the same group."""
        known = self._pairs.get(pair)
        if known is None:
            shared = self._groups.setdefault(group, _PairGroup())
            shared.pairs += 1
            known = self._pairs[pair] = _Pair(_Rate(self._pair_bytes_per_s), shared)
        known.flows += 1

    def on_close(self, pair: Hashable, group: Hashable) -> None:
        """A flow of this pair is over; what it waited for may still be granted."""
        known = self._pairs[pair]
        known.flows -= 1
        if not known.flows:
            del self._pairs[pair]
            known.group.pairs -= 1
            if not known.group.pairs:
                del self._groups[group]

    def on_bytes(self, flow: F, pair: Hashable, nbytes: int, now_s: float) -> None:
        """`flow` has carried `nbytes` and waits now until `grants` names it."""
        known = self._pairs[pair]
        known.waiting.append((flow, nbytes))
        if len(known.waiting) == 1:
            self._line_up(known, now_s)

    def grants(self, now_s: float) -> list[F]:
        """The flows that may go on now."""
        while self._limited and self._limited[0][0] <= now_s:
            self._make_ready(heapq.heappop(self._limited)[2])
        flows = []
        while self._ready and self._total.free_s <= now_s:
            self._clock, _, _, pair = heapq.heappop(self._ready)
            flow, nbytes = pair.waiting.popleft()
            pair.rate.use(nbytes, now_s)
            self._total.use(nbytes, now_s)
            if pair.waiting:
                self._line_up(pair, now_s)
            flows.append(flow)
        return flows

    def next_deadline_s(self) -> float | None:
        """Return when to call `grants` again; None if nobody waits."""
        ends = [self._limited[0][0]] if self._limited else []
        if self._ready:
            ends.append(self._total.free_s)
        return min(ends, default=None)

    def _line_up(self, pair: _Pair[F], now_s: float) -> None:
        if pair.rate.free_s > now_s:
            heapq.heappush(self._limited, (pair.rate.free_s, next(self._order), pair))
        else:
            self._make_ready(pair)

    def _make_ready(self, pair: _Pair[F]) -> None:
        nbytes = pair.waiting[0][1]
        start = max(self._clock, pair.group.finish)
        pair.group.finish = start + nbytes
        heapq.heappush(self._ready, (start, nbytes, next(self._order), pair))
