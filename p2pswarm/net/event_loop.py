"""The event loop of a node: asyncio's own, with a poller that is eager while answers come at once.

A processor that has gone idle takes tens of microseconds to wake, on virtual machines more than all
the rest of a small call. So while waits keep ending soon, the poller looks again and again for a
moment before it sleeps; as soon as it has looked in vain, it sleeps at once until waits are short
again. A node that waits for long never looks twice.

Units:   seconds.
Errors:  none.
"""

import asyncio
import selectors
import time
from collections.abc import Coroutine
from typing import Any, TypeVar

LOOK_S = 100e-6  # twice what the other end of a small call takes, its wake-up left out
SHORT_S = 250e-6  # a wait that ends so soon would have ended within LOOK_S, had nobody slept
SHORT_WAITS = 3  # in a row, before it is worth looking

T = TypeVar("T")


class Eagerness:
    """Whether to look before sleeping, from how long the last waits were."""

    def __init__(self, short_s: float = SHORT_S) -> None:
        """`short_s`: the longest wait that counts as short."""
        self._short_s = short_s
        self._short = 0

    @property
    def looks(self) -> bool:
        """Whether the next wait is likely to be short."""
        return self._short >= SHORT_WAITS

    def slept(self, wait_s: float) -> None:
        """A wait was slept through."""
        self._short = self._short + 1 if wait_s <= self._short_s else 0

    def looked_in_vain(self) -> None:
        """Nothing came while we looked."""
        self._short = 0


class EagerSelector(selectors.DefaultSelector):
    """The system's selector, which looks before it sleeps while that pays."""

    def __init__(self, short_s: float = SHORT_S) -> None:
        super().__init__()
        self._eagerness = Eagerness(short_s)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """As the base class."""
        if timeout is not None and timeout <= LOOK_S:
            return super().select(timeout)
        begin_s = time.perf_counter()
        if self._eagerness.looks:
            while time.perf_counter() - begin_s < LOOK_S:
                if ready := super().select(0):
                    return ready
            self._eagerness.looked_in_vain()
            return super().select(timeout)
        ready = super().select(timeout)
        self._eagerness.slept(time.perf_counter() - begin_s)
        return ready


def run(main: Coroutine[Any, Any, T]) -> T:
    """As `asyncio.run`, on a loop with the eager poller."""
    with asyncio.Runner(loop_factory=new_loop) as runner:
        return runner.run(main)


def new_loop() -> asyncio.AbstractEventLoop:
    """A loop with the eager poller."""
    return asyncio.SelectorEventLoop(EagerSelector())
