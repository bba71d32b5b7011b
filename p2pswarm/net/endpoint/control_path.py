"""ControlPath: one control connection of a link, which may be exchanged for another.

Units:   bytes; records are counted from 0.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from p2pswarm.base.errors import SwarmError
from p2pswarm.net.link.path import Path
from p2pswarm.net.os.base import ControlPipe


@dataclass(frozen=True, slots=True)
class Takeover:
    """What both sides said when a connection was to take over a link."""

    number: int
    """The number of the path, larger than that of the one before."""
    announced: int
    """The record with which we told the peer to begin."""
    wanted: int
    """The record with which the peer told us to begin."""


class PathUser(Protocol):
    """The link, as its connections see it."""

    def received(self, data: bytes) -> None:
        """Bytes came on the present path."""
        ...

    def pause_writing(self) -> None:
        """The present path takes no more."""
        ...

    def resume_writing(self) -> None:
        """It takes more again."""
        ...

    def path_opened(self, path: "ControlPath") -> None:
        """A connection is up."""
        ...

    def path_lost(self, path: "ControlPath", error: SwarmError) -> None:
        """A connection is gone."""
        ...


class ControlPath:
    """A connection that carries a link, or did: implements `ControlMachine`."""

    pipe: ControlPipe
    received: Callable[[bytes], None]
    """The link's own method, so that no call is added to the hottest path."""

    def __init__(self, user: PathUser, path: Path, takeover: Takeover | None = None) -> None:
        """`takeover`: None for a link's first path."""
        self.path = path
        self.takeover = takeover
        self._user = user
        self.received = user.received
        self.pause_writing = user.pause_writing
        self.resume_writing = user.resume_writing

    def opened(self, pipe: ControlPipe) -> None:
        """The connection is up."""
        self.pipe = pipe
        self._user.path_opened(self)

    def lost(self, error: SwarmError) -> None:
        """The connection ended."""
        self._user.path_lost(self, error)

    def retire(self) -> None:
        """End it: whatever it still brings is sent again by the path that takes its place."""
        self.received = _drop
        self.pause_writing = self.resume_writing = _ignore
        self.pipe.abort()


def _drop(data: bytes) -> None:
    """Bytes of a path that is not in use any more."""


def _ignore() -> None:
    """A path that is not in use has nothing to send."""


def no_pipe(record: bytes) -> None:
    """What sends while there is no path: the machine gives nothing then."""
    raise AssertionError(f"{len(record)} bytes to send, and no path")
