"""The states of a link, when one that is left may be closed, and what a link has carried.

Units:   bytes, `now_s` seconds on the caller's monotonic clock.
"""

from dataclasses import dataclass
from enum import Enum, auto


class LinkState(Enum):
    """The states of a link, in the order in which it ends."""

    UP = auto()
    """Both sides open streams."""
    LEAVING = auto()
    """We open no more streams, and have told the peer."""
    LEFT = auto()
    """The peer opens no more streams."""
    DRAINING = auto()
    """Neither side opens streams: the link closes when the open ones have finished."""
    CLOSING = auto()
    """The link is over, and the last records are on their way."""
    ENDED = auto()
    """The link is over, and its sockets are to be closed now."""


WHEN_WE_LEAVE = {LinkState.UP: LinkState.LEAVING, LinkState.LEFT: LinkState.DRAINING}
WHEN_PEER_LEAVES = {LinkState.UP: LinkState.LEFT, LinkState.LEAVING: LinkState.DRAINING}


class QuietWatch:
    """How long a link that is being left has had nothing to do."""

    __slots__ = ("_since_s",)

    def __init__(self) -> None:
        self._since_s: float | None = None

    def over(self, state: LinkState, now_s: float, patience_s: float, *, busy: bool) -> bool:
        """Whether it may be closed: a peer that does not agree has as long as a silent one."""
        if busy or state not in (LinkState.LEAVING, LinkState.DRAINING):
            self._since_s = None
            return False
        if state is LinkState.DRAINING:
            return True
        if self._since_s is None:
            self._since_s = now_s
        return now_s - self._since_s >= patience_s


@dataclass(frozen=True, slots=True)
class LinkStats:
    """What one link has carried: bytes of control records and of bulk payload."""

    control_sent_bytes: int
    control_received_bytes: int
    bulk_sent_bytes: int
    bulk_received_bytes: int
    bulk_connections: int
    paths_altered: int = 0
    """How many of its paths brought a record that was not authentic."""
