"""What a server tells the trainer: notes in the order they were made, and its load every second.

When it has said nothing for half a second, it says that it lives: the trainer is soon told then
that it does not. A note is as good a sign.

Units:   seconds on the caller's clock.
Errors:  LinkLost when the trainer does not read.
"""

from collections import deque
from enum import Enum

from p2pswarm.errors import LinkLost
from p2pswarm.swarm.messages.trainers import ALIVE_S
from p2pswarm.wire.message import Message

NOTES_MAX = 100_000  # a trainer that has not read so many does not train any more
LOAD_EVERY_S = 1.0  # for people who watch the run


class SignOfLife(Enum):
    """What is to be said, though nothing has happened."""

    LOAD = "how busy the server is"
    ALIVE = "that it lives"


class NoteQueue:
    """Notes of one session that wait to be sent."""

    def __init__(
        self,
        now_s: float,
        notes_max: int = NOTES_MAX,
        load_every_s: float = LOAD_EVERY_S,
        alive_every_s: float = ALIVE_S,
    ) -> None:
        self._notes: deque[Message] = deque()
        self._notes_max = notes_max
        self._load_every_s = load_every_s
        self._load_due_s = now_s + load_every_s
        self._alive_every_s = alive_every_s
        self._alive_due_s = now_s + alive_every_s

    def add(self, note: Message) -> None:
        """Take a note; the caller then sends what `take` gives."""
        if len(self._notes) >= self._notes_max:
            raise LinkLost("the trainer does not read this server's notes")
        self._notes.append(note)

    def take(self, now_s: float) -> Message | None:
        """The note to send now; None if there is none."""
        if not self._notes:
            return None
        self._alive_due_s = now_s + self._alive_every_s
        return self._notes.popleft()

    def next_deadline_s(self) -> float:
        """When something is to be said in any case."""
        return min(self._load_due_s, self._alive_due_s)

    def due(self, now_s: float) -> SignOfLife | None:
        """What to say now, if there is no note; the next time is a period later."""
        if now_s < self.next_deadline_s():
            return None
        self._alive_due_s = now_s + self._alive_every_s
        if now_s < self._load_due_s:
            return SignOfLife.ALIVE
        self._load_due_s = now_s + self._load_every_s
        return SignOfLife.LOAD
