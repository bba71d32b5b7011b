"""LinkPaths: the connections that carry one link, one after another.

Source:  docs/paths.md.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from p2pswarm.base.errors import LinkLost, SwarmError
from p2pswarm.net.bulk.connection_count import CountMemory
from p2pswarm.net.endpoint.dial_checks import bulk_allowed
from p2pswarm.net.endpoint.link_request import PathNumbers
from p2pswarm.net.link.channel_demand import BULK_MAX
from p2pswarm.net.link.link import LinkMachine
from p2pswarm.net.link.path import Path
from p2pswarm.net.link.path_state import CorruptCandidates
from p2pswarm.net.link.session import Session
from p2pswarm.net.os.base import ControlPipe


@dataclass(frozen=True, slots=True)
class Takeover:
    """The agreement by which a connection takes over a link."""

    number: int
    """The number of the path, larger than that of the one before."""
    announced: int
    """The record with which we told the peer to begin."""
    wanted: int
    """The record with which the peer told us to begin."""


class PathUser(Protocol):
    """The link, as its connections see it."""

    def on_data(self, data: bytes) -> None:
        """Bytes came on the present path."""
        ...

    def pause_writing(self) -> None:
        """The present path takes no more."""
        ...

    def resume_writing(self) -> None:
        """It takes more again."""
        ...

    def on_path(self, path: "ControlPath") -> None:
        """A connection is up."""
        ...

    def on_path_loss(self, path: "ControlPath", error: SwarmError) -> None:
        """A connection is gone."""
        ...


class ControlPath:
    """A connection that carries a link, or did: implements `ControlMachine`."""

    pipe: ControlPipe
    on_data: Callable[[bytes], None]
    """The link's own method, so that no call is added to the hottest path."""

    def __init__(self, user: PathUser, path: Path, takeover: Takeover | None = None) -> None:
        """`takeover`: None for a link's first path."""
        self.path = path
        self.takeover = takeover
        self._user = user
        self.on_data = user.on_data
        self.pause_writing = user.pause_writing
        self.resume_writing = user.resume_writing

    def on_open(self, pipe: ControlPipe) -> None:
        """The connection is up."""
        self.pipe = pipe
        self._user.on_path(self)

    def on_loss(self, error: SwarmError) -> None:
        """The connection ended."""
        self._user.on_path_loss(self, error)

    def retire(self) -> None:
        """End it: whatever it still brings is sent again by the path that takes its place."""
        self.on_data = _drop
        self.pause_writing = self.resume_writing = _ignore
        self.pipe.abort()


def _drop(data: bytes) -> None:
    """Bytes of a path that is not in use any more."""


def _ignore() -> None:
    """A path that is not in use has nothing to send."""


def no_pipe(record: bytes) -> None:
    """Return what sends while there is no path: the machine gives nothing then."""
    raise AssertionError(f"{len(record)} bytes to send, and no path")


_log = logging.getLogger(__name__)


class LinkPaths:
    """The connection that carries a link now, and the record of its paths."""

    def __init__(self, machine: LinkMachine, session: Session, counts: CountMemory) -> None:
        """`counts`: how many bulk connections were best, for all links of the node."""
        self._machine = machine
        self._peer = session.peer
        self._counts = counts
        self.current: ControlPath | None = None
        """The connection in use; only read it."""
        self.numbers = PathNumbers(dialled=session.dialled)
        self._lost_s = 0.0
        self.marks = CorruptCandidates()

    def on_path(self, path: ControlPath, now_s: float) -> bool:
        """Let a connection carry the link, if it may; it is the first one, or another one."""
        takeover = path.takeover
        if takeover is None:
            self._machine.start(now_s)
        else:
            try:
                self._machine.check_up()
                self.numbers.check(takeover.number)
                dials = path.path.candidate is not None
                self._machine.on_path(takeover.announced, takeover.wanted, dialled=dials)
            except SwarmError as error:
                _log.info("a new path to %s was not taken: %s", path.path.remote, error)
                path.retire()
                return False
            self.numbers.newest = takeover.number
        old, self.current = self.current, path
        if old is not None:
            old.retire()
        if takeover is not None:
            self._tell(path.path, now_s if old is not None else self._lost_s, now_s)
        self.marks.on_path(self.numbers.newest, path.path.candidate)
        best = self._counts.best(self._peer, path.path.kind)
        self._machine.bulk.on_path(bulk_allowed(BULK_MAX, 0, path.path), best)
        return True

    def on_path_loss(self, path: ControlPath, error: SwarmError, now_s: float) -> bool:
        """Note that a connection is gone; whether it was the one in use."""
        if path is not self.current:
            return False
        self.current = None
        self._lost_s = now_s
        self._machine.on_path_loss(error, now_s)
        return True

    def _tell(self, path: Path, lost_s: float, now_s: float) -> None:
        """Log that another connection carries the link."""
        kind = "a" if path.kind is None else f"a {path.kind.name.lower()}"
        without_s = now_s - lost_s
        text = "link to %s goes on by %s path at %s, after %.2f s without any"
        _log.info(text, self._peer.short, kind, path.remote, without_s)

    def leave(self, now_s: float) -> None:
        """Close the connection in use, because it brings wrong bytes."""
        path = self.current
        if path is not None:
            _log.warning("the path to %s altered bytes: it is not used any more", path.path.remote)
            self.marks.on_corruption(self.numbers.newest, now_s)
            self.on_path_loss(path, LinkLost("its path altered bytes"), now_s)
            path.retire()
