"""LineFormat: a run as lines for a log file, with a line for a step only every few seconds."""

from p2pswarm.progress.events import Event, Peers, Stepped

STEP_EVERY_S = 5.0  # one line in this time is enough for a run of minutes or days


class LineFormat:
    """Chooses the events to print, and formats them."""

    def __init__(self) -> None:
        self._next_s = 0.0

    def line(self, event: Event) -> str | None:
        """The line for an event, or None if it is to be left out."""
        if isinstance(event, Peers):
            return None
        if isinstance(event, Stepped):
            if event.seconds < self._next_s:
                return None
            self._next_s = event.seconds + STEP_EVERY_S
        return f"{event.seconds:8.1f} s  {event.text}"
