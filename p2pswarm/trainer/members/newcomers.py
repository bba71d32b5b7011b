"""Newcomers: joins that wait for the end of a step, and members that have caught up.

A newcomer has a place among the members of its stage, and they send it all that they reduce. One
that never becomes ready must not keep it for ever. A large state over a slow link takes hours, so
its time is long; who was too slow has twice as long the next time, and keeps what it has fetched.

Units:   seconds on the caller's clock.
Errors:  none.
"""

from heapq import heappop, heappush

from p2pswarm.run.messages.membership import Join
from p2pswarm.run.view import Incarnation
from p2pswarm.trainer.members.answer_limits import AnswerLimits

READY_S = 3600.0  # 10 GB at 22 Mbit/s
READY_MAX_S = 86_400.0
LOOK_AGAIN_S = 60.0  # at one that waits for others: the weights of its stage, or a fence


class Newcomers:
    """Peers that have joined and are not ready yet."""

    def __init__(self) -> None:
        self._parked: dict[bytes, Join] = {}
        self._caught_up: dict[Incarnation, bytes] = {}
        self._limits = AnswerLimits(READY_S, READY_MAX_S)
        self._on_their_way: set[Incarnation] = set()
        self._looks: list[tuple[float, Incarnation]] = []
        """A heap: when to look whether a newcomer has taken too long."""

    def began(self, incarnation: Incarnation, now_s: float) -> None:
        """A newcomer has a place now, and is on its way to the weights."""
        self._on_their_way.add(incarnation)
        heappush(self._looks, (now_s + self._limits.limit_s(incarnation.peer), incarnation))

    def overdue(self, now_s: float) -> list[Incarnation]:
        """The newcomers that have taken too long; they are looked at again."""
        late = []
        while self._looks and self._looks[0][0] <= now_s:
            _, incarnation = heappop(self._looks)
            if incarnation in self._on_their_way:
                heappush(self._looks, (now_s + LOOK_AGAIN_S, incarnation))
                if incarnation not in self._caught_up:
                    late.append(incarnation)
        return late

    def too_slow(self, incarnation: Incarnation) -> None:
        """A newcomer loses its place; its peer has longer the next time."""
        self._limits.too_slow(incarnation.peer)

    def next_deadline_s(self) -> float | None:
        """When to ask who is overdue."""
        return self._looks[0][0] if self._looks else None

    def park(self, peer: bytes, join: Join) -> None:
        """Keep a `Join` until the step has closed; a newer one of the same peer replaces it."""
        self._parked[peer] = join

    def withdraw(self, peer: bytes) -> None:
        """A peer left before it was answered."""
        self._parked.pop(peer, None)

    def parked(self) -> list[tuple[bytes, Join]]:
        """The joins that have waited; drained by reading."""
        drained, self._parked = list(self._parked.items()), {}
        return drained

    def caught_up(self, incarnation: Incarnation, digest: bytes) -> None:
        """A newcomer holds the weights of the current version."""
        self._caught_up[incarnation] = digest

    @property
    def holding(self) -> dict[Incarnation, bytes]:
        """The newcomers that have caught up, with their weights' digests."""
        return dict(self._caught_up)

    def candidates(self) -> list[tuple[Incarnation, bytes]]:
        """The newcomers that have caught up, with their weights' digests; drained by reading."""
        drained, self._caught_up = list(self._caught_up.items()), {}
        return drained

    def end(self, incarnation: Incarnation) -> None:
        """A newcomer is ready, or its incarnation is over."""
        self._on_their_way.discard(incarnation)
        self._caught_up.pop(incarnation, None)
