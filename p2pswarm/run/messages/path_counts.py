"""How the links of a member lead to the others: a part of its load and of a run's status.

Errors:  BadMessage on arrival when a field breaks its limit.
"""

from dataclasses import dataclass
from typing import Annotated

from p2pswarm.net.wire.message import Message, Range
from p2pswarm.run.messages.types import MEMBERS_MAX

Links = Annotated[int, Range(0, 2 * MEMBERS_MAX**2)]  # all servers of two stages with each other


@dataclass(frozen=True, slots=True)
class PathCounts(Message):
    """How many links are carried by which kind of path."""

    direct: Links = 0
    mapped: Links = 0
    """Through a router that forwards a port."""
    punched: Links = 0
    relayed: Links = 0


NO_PATHS = PathCounts()
