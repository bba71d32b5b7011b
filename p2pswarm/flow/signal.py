"""A signal: it wakes everybody who waits for it at the time it is fired, and stays unset.

Units:   none.
Errors:  none.
"""

import asyncio


class Signal:
    """Something has changed: whoever waits looks again."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def fire(self) -> None:
        """Wake those who wait now; who waits later waits for the next time."""
        event, self._event = self._event, asyncio.Event()
        event.set()

    async def wait(self) -> None:
        """Return when the signal is fired next."""
        await self._event.wait()
