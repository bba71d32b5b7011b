"""What a server tells the trainer: notes in the order they were made, and its load every second.

Units:   seconds on the caller's clock.
Errors:  LinkLost when the trainer does not read.
"""

from collections import deque

from p2pswarm.errors import LinkLost
from p2pswarm.wire.message import Message

NOTES_MAX = 100_000  # a trainer that has not read so many does not train any more
LOAD_EVERY_S = 1.0  # for people who watch the run


class NoteQueue:
    """Notes of one session that wait to be sent."""

    def __init__(
        self, now_s: float, notes_max: int = NOTES_MAX, load_every_s: float = LOAD_EVERY_S
    ) -> None:
        self._notes: deque[Message] = deque()
        self._notes_max = notes_max
        self._load_every_s = load_every_s
        self._load_due_s = now_s + load_every_s

    def add(self, note: Message) -> None:
        """Take a note; the caller then sends what `take` gives."""
        if len(self._notes) >= self._notes_max:
            raise LinkLost("the trainer does not read this server's notes")
        self._notes.append(note)

    def take(self) -> Message | None:
        """The next note to send; None if there is none."""
        return self._notes.popleft() if self._notes else None

    def next_deadline_s(self) -> float:
        """When the load is to be told next."""
        return self._load_due_s

    def load_is_due(self, now_s: float) -> bool:
        """Whether to tell the load now; the next time is a period later."""
        if now_s < self._load_due_s:
            return False
        self._load_due_s = now_s + self._load_every_s
        return True
