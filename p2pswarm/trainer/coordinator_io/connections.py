"""The members' streams at the trainer: what each is to be sent, and which incarnation it serves."""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from p2pswarm.net.wire.message import Message
from p2pswarm.run.member_view import Incarnation
from p2pswarm.run.messages.cost import NO_PRICE, MachinePrice
from p2pswarm.run.messages.field_limits import REASON_CHARS
from p2pswarm.run.messages.membership import Assigned, StandsBy
from p2pswarm.run.messages.run import Finished
from p2pswarm.run.messages.trainers import ALIVE_S, Alive, Trainers
from p2pswarm.trainer.coordinator_io.views import Views
from p2pswarm.trainer.reports.actions import MemberChange


@dataclass(slots=True, eq=False)
class MemberConnection:
    """One stream: what is still to be sent on it, and which incarnation it belongs to."""

    peer: bytes
    incarnation: Incarnation | None = None
    """None until its `Join` is answered."""
    stage: int = 0
    """Of its incarnation."""
    said: bool = False
    """It was told something since the last look."""
    silent: bool = False
    """It is to be told that the coordinator lives, if there is nothing else."""
    trainers: Trainers | None = None
    """The last that it was told of the run's trainers."""
    view: int = 0
    """The number of the view that it was told last."""
    dismissed: bool = False
    """Its last message says that the run is over; the member then ends the stream."""
    leaves: bool = False
    """The member has said that it leaves."""
    price: MachinePrice = NO_PRICE
    """Of the member's machine, as it has told."""
    declined: str | None = None
    """The reason why there is no place for it."""
    ending: bool = False
    """Nothing is added to what waits."""
    _waiting: deque[Message] = field(default_factory=deque)

    @property
    def over(self) -> bool:
        """True if everything was sent, the last message too."""
        return self.ending and not self._waiting

    @property
    def follows_views(self) -> bool:
        """True if it is to be told of the other members."""
        return self.incarnation is not None and not self.ending

    def next(self) -> Message | None:
        """Take out the message to send now; None while there is none."""
        return self._waiting.popleft() if self._waiting else None

    def tell(self, message: Message) -> None:
        """Add a message, unless the connection ends."""
        if not self.ending:
            self._waiting.append(message)
            self.dismissed = isinstance(message, Finished)


class Connections:
    """Every stream that is open.

    A connection begins without an assignment. It belongs to one incarnation once the coordinator
    has answered its `Join`; from then on it is told of the other members (`views`). It ends when
    its last message was sent. A peer has one connection at a time: a newer one ends the older.
    What is to be sent waits here until the stream takes it: the assignment, the parts of one view,
    the last word.
    """

    def __init__(self, views: Views) -> None:
        self._views = views
        self._open: dict[bytes, MemberConnection] = {}
        self._former: dict[MemberConnection, None] = {}
        """Connections whose peers have newer ones, and whose streams have not ended yet."""
        self._of_stage: dict[int, dict[MemberConnection, None]] = {}
        """Those that are told the views of a stage."""
        self._changed: dict[MemberConnection, None] = {}
        self._published = False
        self._closed = False
        """True if each stream that is opened is told the last word, and ends."""
        self._last_word: Finished | StandsBy | None = None
        self._trainers: Trainers | None = None
        self.quiet = False
        """True if nobody is told that the coordinator lives."""
        self._alive_s: float | None = None
        """Time to look for those that were told nothing; None while nobody is assigned."""

    def __len__(self) -> int:
        return len(self._open) + len(self._former)

    def open(self, peer: bytes) -> MemberConnection:
        """A peer has opened a stream; a former one of it ends."""
        former = self._open.pop(peer, None)
        if former is not None:
            self._former[former] = None
            self._end(former)
        connection = self._open[peer] = MemberConnection(peer)
        if self._closed:
            self._dismiss(connection)
        return connection

    def close(self, connection: MemberConnection) -> bool:
        """A stream has ended; True if it was its peer's current one."""
        self._former.pop(connection, None)
        self._changed.pop(connection, None)
        self._of_stage.get(connection.stage, {}).pop(connection, None)
        present = self._open.get(connection.peer) is connection
        if present:
            del self._open[connection.peer]
        return present

    def assign(self, incarnation: Incarnation, message: Assigned) -> None:
        """Answer a `Join`; the view of all others follows."""
        if connection := self._open.get(incarnation.peer):
            connection.incarnation, connection.stage = incarnation, message.stage
            self._of_stage.setdefault(message.stage, {})[connection] = None
            self._alive_s = 0.0 if self._alive_s is None else self._alive_s
            self._tell(connection, message)

    def price_of(self, incarnation: Incarnation) -> MachinePrice:
        """The price that a member has told of its machine."""
        connection = self._open.get(incarnation.peer)
        return NO_PRICE if connection is None else connection.price

    def say(self, incarnation: Incarnation, message: Message) -> None:
        """Send a message on the stream of an incarnation, if it is still there."""
        connection = self._open.get(incarnation.peer)
        if connection is not None and connection.incarnation == incarnation:
            self._tell(connection, message)

    def announce(self, trainers: Trainers) -> None:
        """Tell all members, and those that come, who may lead and who votes."""
        self._trainers = trainers
        for connection in self._open.values():
            if connection.follows_views:
                self._changed[connection] = None

    def decline(self, peer: bytes, reason: str) -> None:
        """Answer a `Join` for which there is no place."""
        if connection := self._open.get(peer):
            connection.declined = reason
            self._end(connection)

    def publish(self, changes: Iterable[MemberChange], now_s: float) -> None:
        """Tell the members what has changed: now, or with what changes in the next moment."""
        self._views.change(changes)
        self.on_deadline(now_s)

    def beside(self, pairs: Iterable[tuple[int, int]], now_s: float) -> None:
        """Pairs of stages whose members have to know each other, though they are no neighbours."""
        self._views.beside(pairs)
        self.on_deadline(now_s)

    def publish_now(self, now_s: float) -> None:
        """Tell the members all that has changed, because an order follows that names members."""
        if self._views.next_deadline_s() is not None:
            self._publish(now_s)

    def published(self) -> bool:
        """Return whether views went out since the last look."""
        published, self._published = self._published, False
        return published

    def next_deadline_s(self) -> float | None:
        """Return when to call `on_deadline`."""
        times = (self._views.next_deadline_s(), self._alive_s)
        return min((due_s for due_s in times if due_s is not None), default=None)

    def on_deadline(self, now_s: float) -> None:
        """Send the views that are due, and a sign of life to those that were told nothing."""
        if self._views.due(now_s):
            self._publish(now_s)
        if self._alive_s is not None and now_s >= self._alive_s:
            self._alive_s = None
            for connection in self._open.values():
                if connection.follows_views:
                    self._alive_s = now_s + ALIVE_S
                    if not connection.said:
                        connection.silent = True
                        self._changed[connection] = None
                    connection.said = False

    def next(self, connection: MemberConnection) -> Message | None:
        """Take out the message to send now; None while there is none.

        A view is made only here, so a member whose stream is slow is told what is true now.
        """
        message = connection.next()
        if message is None and connection.follows_views:
            if connection.trainers is not self._trainers and self._trainers is not None:
                connection.trainers = self._trainers
                connection.tell(self._trainers)
            connection.view, parts = self._views.since(connection.stage, connection.view)
            for part in parts:
                connection.tell(part)
            alive = connection.silent and not self.quiet
            message = connection.next() or (Alive() if alive else None)
        if message is not None:
            connection.said, connection.silent = not isinstance(message, Alive), False
        return message

    def evict(self, incarnation: Incarnation) -> bool:
        """End the stream of an incarnation; False if it has none."""
        connection = self._open.get(incarnation.peer)
        if connection is None or connection.incarnation != incarnation:
            return False
        self._end(connection)
        return True

    def refuse(self, failure: str | None) -> None:
        """No step follows: end every stream that is opened from now on, and say if it has failed.

        Until the weights are written a run that has come to its end is not over for its servers:
        a member that was cut off comes again, and hears of it then.
        """
        self._closed = True
        self._last_word = None if failure is None else Finished(failure[:REASON_CHARS])

    def abandon(self, then: StandsBy | None = None) -> None:
        """Another trainer leads, and may take the members' sums: say so, and end all streams.

        A member that is back before all have ended is told the same. None: the run goes back.
        """
        self._closed, self._last_word = True, then
        for connection in self._open.values():
            self._dismiss(connection)

    def finish(self, last_word: Finished) -> None:
        """The trainer leaves: tell all members why and how many steps are done; end all streams."""
        self._closed, self._last_word = True, last_word
        for connection in self._open.values():
            self._dismiss(connection)

    def drain(self) -> list[MemberConnection]:
        """The connections that have something to send or are to end; drained by reading."""
        drained, self._changed = list(self._changed), {}
        return drained

    def _dismiss(self, connection: MemberConnection) -> None:
        if self._last_word is not None:
            self._tell(connection, self._last_word)
        self._end(connection)

    def _tell(self, connection: MemberConnection, message: Message) -> None:
        self._changed[connection] = None
        connection.tell(message)

    def _publish(self, now_s: float) -> None:
        self._published = True
        for stage in self._views.publish(len(self._open), now_s):
            for connection in self._of_stage.get(stage, ()):
                self._changed[connection] = None

    def _end(self, connection: MemberConnection) -> None:
        self._changed[connection] = None
        connection.ending = True
