"""The members' streams at the trainer: what each is to be sent, and which incarnation it serves.

A connection begins without an assignment. It belongs to one incarnation once the coordinator has
answered its `Join`. It ends when its last message was sent. A peer has one connection at a time: a
newer one ends the older. Messages wait here until the stream takes them.

Errors:  none.
"""

from collections import deque

from p2pswarm.swarm.messages.membership import Assigned
from p2pswarm.swarm.messages.run import Finished
from p2pswarm.swarm.messages.types import REASON_CHARS
from p2pswarm.swarm.view import Incarnation
from p2pswarm.wire.message import Message

NOTES_WAITING_MAX = 4096  # messages that a member has not taken: with more it counts as gone


class MemberConnection:
    """One stream: what is still to be sent on it, and which incarnation it belongs to."""

    __slots__ = ("_ending", "_waiting", "dismissed", "incarnation", "peer")

    def __init__(self, peer: bytes) -> None:
        self.peer = peer
        self.incarnation: Incarnation | None = None
        """None until its `Join` is answered."""
        self.dismissed = False
        """Whether its last message says that the run is over; the member then ends the stream."""
        self._waiting: deque[Message] = deque()
        self._ending = False

    @property
    def ending(self) -> bool:
        """Whether nothing is added to what waits."""
        return self._ending

    @property
    def over(self) -> bool:
        """Whether everything was sent, the last message too."""
        return self._ending and not self._waiting

    def next(self) -> Message | None:
        """Take out the message to send now; None while there is none."""
        return self._waiting.popleft() if self._waiting else None

    def tell(self, message: Message, waiting_max: int) -> None:
        """Add a message, unless the connection ends; a member that takes none is cut off."""
        if self._ending:
            return
        if len(self._waiting) < waiting_max:
            self._waiting.append(message)
            self.dismissed = isinstance(message, Finished)
        else:
            self._waiting.clear()
            self._ending = True

    def end(self) -> None:
        """Add nothing after what waits."""
        self._ending = True


class Connections:
    """Every stream that is open."""

    def __init__(self, waiting_max: int = NOTES_WAITING_MAX) -> None:
        self._waiting_max = waiting_max
        self._open: dict[bytes, MemberConnection] = {}
        self._former: dict[MemberConnection, None] = {}
        """Connections whose peers have newer ones, and whose streams have not ended yet."""
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
        """A stream has ended; True if it was its peer's current one."""
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
        """End the stream of an incarnation; False if it has none."""
        connection = self._open.get(incarnation.peer)
        if connection is None or connection.incarnation != incarnation:
            return False
        self._end(connection)
        return True

    def refuse(self, reason: str) -> None:
        """The run is over: tell it to every peer that opens a stream from now on."""
        self._finished = Finished(reason[:REASON_CHARS])

    def finish(self, reason: str) -> None:
        """The trainer leaves: tell all members why, and end all streams."""
        self._finished = finished = Finished(reason[:REASON_CHARS])
        for connection in self._open.values():
            self._tell(connection, finished)
            self._end(connection)

    def changed(self) -> list[MemberConnection]:
        """The connections that have something to send or are to end; drained by reading."""
        drained, self._changed = list(self._changed), {}
        return drained

    def _tell(self, connection: MemberConnection, message: Message) -> None:
        self._changed[connection] = None
        connection.tell(message, self._waiting_max)

    def _end(self, connection: MemberConnection) -> None:
        self._changed[connection] = None
        connection.end()
