"""A thread that works off a queue: whoever puts something there never waits for it."""

import contextlib
import queue
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class QueueThread(Generic[T]):
    """A thread, and what waits for it."""

    def __init__(self, name: str, work: Callable[[], None], waiting_max: int) -> None:
        """`work`: runs on the thread, and takes items until one of them is None."""
        self.items: queue.Queue[T | None] = queue.Queue(waiting_max)
        self._full = False
        self._thread = threading.Thread(target=work, daemon=True, name=name)

    def start(self) -> None:
        """Begin to work."""
        self._thread.start()

    def put(self, item: T, on_full: Callable[[], None]) -> None:
        """Have an item worked off; `on_full`: called for the first that finds no room."""
        try:
            self.items.put_nowait(item)
        except queue.Full:
            if not self._full:
                self._full = True
                on_full()

    def close(self, last_s: float) -> None:
        """Let it work off what waits, for so long at most; with a full queue it stands still."""
        with contextlib.suppress(queue.Full):
            self.items.put_nowait(None)
            self._thread.join(last_s)
