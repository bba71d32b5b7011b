"""The queue of events from the trainer, which must not wait, to a program that reads them.

Errors:  none; a program that does not read loses the oldest events, and `lost` counts them.
"""

from collections import deque

from p2pswarm.progress.events import Ended, Event

WAITING_MAX = 10_000  # events of some minutes of a fast run; a few MiB


class EventQueue:
    """Keeps the newest events, in order; the last one is `Ended`."""

    def __init__(self, waiting_max: int = WAITING_MAX) -> None:
        self._events: deque[Event] = deque(maxlen=waiting_max)
        self.lost = 0
        """The number of events that were dropped unread."""
        self.finished = False
        """True if `Ended` was taken; then no more events come."""

    def put(self, event: Event) -> None:
        """Add the newest event; the oldest is dropped if there are too many."""
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
