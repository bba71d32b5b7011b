"""Signal: wakes the tasks that wait for it when it is fired, and remembers nothing.

Units:   none.
Errors:  none.
"""

import asyncio


class Signal:
    """Tells waiting tasks that something has changed."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def fire(self) -> None:
        """Wake the tasks that wait now; tasks that wait later wait for the next call."""
        event, self._event = self._event, asyncio.Event()
        event.set()

    async def wait(self) -> None:
        """Return when the signal is fired next."""
        await self._event.wait()
