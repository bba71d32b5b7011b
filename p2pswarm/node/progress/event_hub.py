"""EventHub: the events of one node on their way to all that show or keep them.

Each listener takes every event as it happens, on the event loop: it must neither wait nor fail.
"""

import time
from collections.abc import Callable

from p2pswarm.base.ids import PeerId
from p2pswarm.checkpoint.names import RUN_HEX
from p2pswarm.progress.event_lines import EventLine, EventNumbers
from p2pswarm.progress.events import Event
from p2pswarm.progress.view import RunView
from p2pswarm.web.run_page import RunPage

Listener = Callable[[EventLine], None]


def numbers_of(run: bytes, peer: PeerId) -> EventNumbers:
    """Return what numbers the events of this process; `run`: empty while none is known."""
    return EventNumbers(run.hex()[:RUN_HEX], peer.short, time.time)


class EventHub:
    """Numbers events, keeps the view of the run, and passes them on."""

    def __init__(self, numbers: EventNumbers) -> None:
        self.numbers = numbers
        self.view = RunView()
        """The run as told so far: for pages, metrics and questions."""
        self._listeners: list[Listener] = []

    def tell(self, event: Event) -> None:
        """Pass an event to the view, then to every listener in the order of their coming."""
        told = self.numbers.stamp(event)
        self.view.on_event(told)
        for listener in tuple(self._listeners):
            listener(told)

    def listen(self, listener: Listener) -> Callable[[], None]:
        """Give a listener the events from now on; returns what ends that."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def show_on(self, page: RunPage, clock: Callable[[], float]) -> None:
        """Have a page show this run from now on."""
        page.view = self.view
        self.listen(lambda told: page.on_line(told, clock()))
