"""Events of a run between the trainer, which must never wait, and a program that reads them.

Units:   events.
Errors:  none; a program that does not read loses the oldest events, and `lost` counts them.
"""

from collections import deque

from p2pswarm.progress.events import Ended, Event

WAITING_MAX = 10_000  # some minutes of a fast run; a few MiB


class EventQueue:
    """Keeps the newest events, in order; the last one is `Ended`."""

    def __init__(self, waiting_max: int = WAITING_MAX) -> None:
        self._events: deque[Event] = deque(maxlen=waiting_max)
        self.lost = 0
        """Events that nobody read in time."""
        self.finished = False
        """Whether `Ended` was taken: nothing comes any more."""

    def put(self, event: Event) -> None:
        """Add the newest event; the oldest goes if there are too many."""
        if len(self._events) == self._events.maxlen:
            self.lost += 1
        self._events.append(event)

    def take(self) -> Event | None:
        """The oldest event, or None if all were taken."""
        if not self._events:
            return None
        event = self._events.popleft()
        self.finished = isinstance(event, Ended)
        return event
