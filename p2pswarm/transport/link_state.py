"""The states of a link, and what a link has carried.

Units:   bytes.
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
