"""Requests of a node's owner: whether it does its work, to pause it, to go on, to leave for good.

They come from `p2pswarm health`, `pause`, `resume` and `drain` (`node/owner_socket.py`).
"""

from collections.abc import Awaitable, Callable
from enum import Enum

from p2pswarm.base.errors import Unusable

Answer = Callable[[], Awaitable[str]]


class OwnerRequest(Enum):
    """What an owner may ask."""

    HEALTH = "health"
    PAUSE = "pause"
    RESUME = "resume"
    DRAIN = "drain"


class OwnerRequests:
    """Hands each request to the part of the node that carries it out."""

    def __init__(self, drain: Callable[[], None], health: Callable[[], str]) -> None:
        """`drain` begins to leave in order; `health`: whether the node does its work, as JSON."""
        self._health = health
        self._drain = drain
        self._pause: Answer | None = None
        self._resume: Answer | None = None

    def pauses(self, pause: Answer | None, resume: Answer | None) -> None:
        """A server can be paused from now on; None: no longer. Each returns words for the owner."""
        self._pause, self._resume = pause, resume

    async def carry_out(self, request: OwnerRequest) -> str:
        """Do it; returns words for the owner. Unusable if this node cannot."""
        if request is OwnerRequest.HEALTH:
            return self._health()
        if request is OwnerRequest.DRAIN:
            self._drain()
            return "leaving"
        work = self._pause if request is OwnerRequest.PAUSE else self._resume
        if work is None:
            raise Unusable(
                "this node serves no run: only a server can be paused; p2pswarm drain ends a node"
            )
        return await work()
