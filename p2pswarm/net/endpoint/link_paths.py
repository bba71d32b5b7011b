"""LinkPaths: the connections that carry one link, one after another.

Units:   `now_s` seconds on the caller's monotonic clock.
Errors:  none: a connection that may not take over is closed.
Source:  docs/paths.md.
"""

import logging

from p2pswarm.base.errors import LinkLost, SwarmError
from p2pswarm.net.bulk.count_memory import CountMemory
from p2pswarm.net.endpoint.admission import bulk_allowed
from p2pswarm.net.endpoint.control_path import ControlPath
from p2pswarm.net.endpoint.resumption import PathNumbers
from p2pswarm.net.link.altered_bytes import WayMarks
from p2pswarm.net.link.bulk_wishes import BULK_MAX
from p2pswarm.net.link.link import LinkMachine
from p2pswarm.net.link.path import Path
from p2pswarm.net.link.session import Session

_log = logging.getLogger(__name__)


class LinkPaths:
    """Which connection carries a link now, and what its paths were like."""

    __slots__ = ("_counts", "_lost_s", "_machine", "_peer", "current", "marks", "numbers")

    def __init__(self, machine: LinkMachine, session: Session, counts: CountMemory) -> None:
        """`counts`: how many bulk connections were best, for all links of the node."""
        self._machine = machine
        self._peer = session.peer
        self._counts = counts
        self.current: ControlPath | None = None
        """What carries the link now; only read it."""
        self.numbers = PathNumbers(dialled=session.dialled)
        """The numbers of the connections that carry the link, or want to."""
        self._lost_s = 0.0
        self.marks = WayMarks()
        """Which ways altered bytes."""

    def opened(self, path: ControlPath, now_s: float) -> bool:
        """Let a connection carry the link, if it may; it is the first one, or another one."""
        takeover = path.takeover
        if takeover is None:
            self._machine.start(now_s)
        else:
            try:
                self._machine.check_up()
                self.numbers.check(takeover.number)
                dials = path.path.way is not None
                self._machine.path_up(takeover.announced, takeover.wanted, dialled=dials)
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
        self.marks.taken(self.numbers.newest, path.path.way)
        best = self._counts.best(self._peer, path.path.kind)
        self._machine.bulk.path_opened(bulk_allowed(BULK_MAX, 0, path.path), best)
        return True

    def lost(self, path: ControlPath, error: SwarmError, now_s: float) -> bool:
        """Note that a connection is gone; whether it was the one in use."""
        if path is not self.current:
            return False
        self.current = None
        self._lost_s = now_s
        self._machine.path_lost(error, now_s)
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
            self.marks.altered(self.numbers.newest, now_s)
            self.lost(path, LinkLost("its path altered bytes"), now_s)
            path.retire()
