"""Signal: wakes the tasks that wait for it when it is fired, and remembers nothing."""

import asyncio


class Signal:
    """Tells waiting tasks that something has changed."""

    def __init__(self) -> None:
        self._event: asyncio.Event | None = None
        """Made by the first task that waits: most signals are fired while none does."""

    def fire(self) -> None:
        """Wake the tasks that wait now; tasks that wait later wait for the next call."""
        if self._event is not None:
            self._event.set()
            self._event = None

    async def wait(self) -> None:
        """Return when the signal is fired next."""
        if self._event is None:
            self._event = asyncio.Event()
        await self._event.wait()
