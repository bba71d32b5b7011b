"""BulkTurns: one chunk after another leaves a simulated link, the most urgent first."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from heapq import heappop, heappush
from itertools import count


class BulkTurns:
    """The transfers of one end of a link.

    So it is on a real one (`net/bulk/send_queue.py`): a gradient goes before a newcomer's state,
    and of two pieces of state the first is whole before the second begins.
    """

    def __init__(self) -> None:
        self._numbers = count()
        self._taken = False
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []

    @asynccontextmanager
    async def transfer(self, priority: int) -> AsyncIterator["BulkTransfer"]:
        """Run a block that sends a transfer; the turn is its own in it."""
        transfer = BulkTransfer(self, priority, next(self._numbers))
        await self.take(transfer.priority, transfer.number)
        try:
            yield transfer
        finally:
            if transfer.has_turn:
                self.leave()

    def is_before(self, priority: int, number: int) -> bool:
        """Return whether somebody waits that goes before this one."""
        return bool(self._waiting) and self._waiting[0][:2] < (priority, number)

    async def take(self, priority: int, number: int) -> None:
        """Wait until nobody sends, and nobody waits that goes before."""
        if not self._taken:
            self._taken = True
            return
        mine = asyncio.get_running_loop().create_future()
        heappush(self._waiting, (priority, number, mine))
        try:
            await mine
        except asyncio.CancelledError:
            if mine.done() and not mine.cancelled():  # cancelled when its turn had come
                self.leave()
            raise

    def leave(self) -> None:
        """Let the next one go that still waits."""
        self._taken = False
        while self._waiting and not self._taken:
            _, _, other = heappop(self._waiting)
            if not other.done():
                other.set_result(None)
                self._taken = True


class BulkTransfer:
    """One transfer whose turn it is."""

    def __init__(self, turns: BulkTurns, priority: int, number: int) -> None:
        self._turns = turns
        self.priority = priority
        self.number = number
        self.has_turn = True

    async def chunk_sent(self) -> None:
        """Let those go first that are more urgent."""
        if self._turns.is_before(self.priority, self.number):
            self._turns.leave()
            self.has_turn = False
            await self._turns.take(self.priority, self.number)
            self.has_turn = True
