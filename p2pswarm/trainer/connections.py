"""The members' streams as the trainer keeps account of them: who is told what, and who is stuck.

A connection begins unassigned, speaks as one incarnation once the coordinator has answered its
`Join`, and ends when it was told the last word. A peer has one connection at a time: a newer one
ends the older. What is said waits here until the stream takes it.

Errors:  none.
"""

from collections import deque

from p2pswarm.swarm.messages.membership import Assigned
from p2pswarm.swarm.messages.run import Finished
from p2pswarm.swarm.messages.types import REASON_CHARS
from p2pswarm.swarm.view import Incarnation
from p2pswarm.wire.message import Message

NOTES_WAITING_MAX = 4096  # notes that a member has not taken: beyond, it is as good as gone


class MemberConnection:
    """One stream: what it is still to be told, and as which incarnation the member speaks."""

    __slots__ = ("_ending", "_waiting", "dismissed", "incarnation", "peer")

    def __init__(self, peer: bytes) -> None:
        self.peer = peer
        self.incarnation: Incarnation | None = None
        """None until its `Join` is answered."""
        self.dismissed = False
        """Whether it was told that the run is over: then the member ends the stream."""
        self._waiting: deque[Message] = deque()
        self._ending = False

    @property
    def ending(self) -> bool:
        """Whether nothing follows what waits."""
        return self._ending

    @property
    def over(self) -> bool:
        """Whether all was said, the last word too."""
        return self._ending and not self._waiting

    def next(self) -> Message | None:
        """What to send now, taken out; None while there is nothing."""
        return self._waiting.popleft() if self._waiting else None

    def tell(self, message: Message, waiting_max: int) -> None:
        """Say one thing, unless the last word was said; a member that takes nothing is cut off."""
        if self._ending:
            return
        if len(self._waiting) < waiting_max:
            self._waiting.append(message)
            self.dismissed = isinstance(message, Finished)
        else:
            self._waiting.clear()
            self._ending = True

    def end(self) -> None:
        """Say nothing after what waits."""
        self._ending = True


class Connections:
    """Every stream that is open."""

    def __init__(self, waiting_max: int = NOTES_WAITING_MAX) -> None:
        self._waiting_max = waiting_max
        self._open: dict[bytes, MemberConnection] = {}
        self._former: dict[MemberConnection, None] = {}
        """Their peers have newer ones; their streams have not ended yet."""
        self._changed: dict[MemberConnection, None] = {}
        self._finished: Finished | None = None

    def __len__(self) -> int:
        return len(self._open) + len(self._former)

    def open(self, peer: bytes) -> MemberConnection:
        """A peer has opened a stream; a former one of it ends."""
        former = self._open.pop(peer, None)
        if former is not None:
            self._former[former] = None
            self._end(former)
        connection = self._open[peer] = MemberConnection(peer)
        if self._finished is not None:
            self._tell(connection, self._finished)
            self._end(connection)
        return connection

    def close(self, connection: MemberConnection) -> bool:
        """A stream has ended; True if it was its peer's present one."""
        self._former.pop(connection, None)
        self._changed.pop(connection, None)
        present = self._open.get(connection.peer) is connection
        if present:
            del self._open[connection.peer]
        return present

    def assign(self, incarnation: Incarnation, message: Assigned) -> None:
        """Answer a `Join`."""
        if connection := self._open.get(incarnation.peer):
            connection.incarnation = incarnation
            self._tell(connection, message)

    def tell_all(self, message: Message) -> None:
        """Tell every member that has its assignment."""
        for connection in self._open.values():
            if connection.incarnation is not None:
                self._tell(connection, message)

    def evict(self, incarnation: Incarnation) -> bool:
        """End the stream of an incarnation; False if it has none any more."""
        connection = self._open.get(incarnation.peer)
        if connection is None or connection.incarnation != incarnation:
            return False
        self._end(connection)
        return True

    def refuse(self, reason: str) -> None:
        """The run is over: tell so whoever opens a stream from now on."""
        self._finished = Finished(reason[:REASON_CHARS])

    def finish(self, reason: str) -> None:
        """The trainer leaves: tell everybody why, and end all streams."""
        self._finished = finished = Finished(reason[:REASON_CHARS])
        for connection in self._open.values():
            self._tell(connection, finished)
            self._end(connection)

    def changed(self) -> list[MemberConnection]:
        """The connections that have something new to send or are to end; drained by reading."""
        drained, self._changed = list(self._changed), {}
        return drained

    def _tell(self, connection: MemberConnection, message: Message) -> None:
        self._changed[connection] = None
        connection.tell(message, self._waiting_max)

    def _end(self, connection: MemberConnection) -> None:
        self._changed[connection] = None
        connection.end()
