"""The part of an event loop that the simulated network uses: the time, and timers.

Units:   virtual seconds.
"""

from collections.abc import Callable
from contextvars import Context
from typing import Any, Protocol


class SimClock(Protocol):
    """An event loop's timers."""

    def time(self) -> float:
        """The time now."""
        ...

    def call_at(
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> object:
        """Call back at that time; `context` says whose timer it is."""
        ...

    def call_later(
        self,
        delay: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> object:
        """Call back after that time."""
        ...

    def call_soon(self, callback: Callable[..., object], *args: Any) -> object:
        """Call back in the next turn of the loop."""
        ...
