"""Newcomers: joins that wait for the end of a step, and members that have caught up.

Errors:  none.
"""

from p2pswarm.swarm.messages.membership import Join
from p2pswarm.swarm.view import Incarnation


class Newcomers:
    """Peers that have joined and are not ready yet."""

    def __init__(self) -> None:
        self._parked: dict[bytes, Join] = {}
        self._caught_up: dict[Incarnation, bytes] = {}

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

    def candidates(self) -> list[tuple[Incarnation, bytes]]:
        """The newcomers that have caught up, with their weights' digests; drained by reading."""
        drained, self._caught_up = list(self._caught_up.items()), {}
        return drained

    def end(self, incarnation: Incarnation) -> None:
        """An incarnation is over."""
        self._caught_up.pop(incarnation, None)
