"""What a server is carrying out, so that all of it can be cut short at once.

Errors:  NotServing, or what the caller says, for a block that is cut short.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from p2pswarm.base.errors import NotServing, SwarmError
from p2pswarm.base.signal import Signal
from p2pswarm.server.work_plan import OVER


class OpenOrders:
    """The blocks that are being run for others."""

    def __init__(self) -> None:
        self._scopes: list[asyncio.Timeout] = []
        self._ended = Signal()

    def __bool__(self) -> bool:
        """Whether anything is being carried out."""
        return bool(self._scopes)

    @asynccontextmanager
    async def carrying_out(
        self, end: Callable[[], SwarmError] = lambda: NotServing(OVER)
    ) -> AsyncIterator[None]:
        """Run a block; if it is cut short, it ends with what `end` gives."""
        scope = asyncio.timeout(None)
        self._scopes.append(scope)
        try:
            async with scope:
                yield
        except TimeoutError:
            if not scope.expired():
                raise  # a Late of the work itself
            raise end() from None
        finally:
            self._scopes.remove(scope)
            self._ended.fire()

    async def until_idle(self) -> None:
        """Wait until nothing is being carried out."""
        while self._scopes:
            await self._ended.wait()

    def cut_short(self) -> None:
        """End all blocks that are being run."""
        now_s = asyncio.get_running_loop().time()
        for scope in self._scopes:
            scope.reschedule(now_s)
