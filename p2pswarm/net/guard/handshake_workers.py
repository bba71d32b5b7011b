"""HandshakeGate: runs the computations of strangers' handshakes when their turn comes."""

import asyncio
from collections.abc import Callable

from p2pswarm.base.errors import SwarmError
from p2pswarm.net.guard.fair_queue import HandshakeQueue


class HandshakeGate:
    """The handshakes that wait to be computed.

    `fair_queue.py` decides whose turn it is and how soon. One computation is run at a time, and
    the event loop has its turn between two.
    """

    def __init__(
        self,
        turns: HandshakeQueue | None = None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        """`clock`: tells what a computation takes; by default the event loop's."""
        self._loop = asyncio.get_running_loop()
        self._clock = clock or self._loop.time
        self._turns = HandshakeQueue() if turns is None else turns
        self._waiting: dict[int, tuple[Callable[[], None], asyncio.Future[None]]] = {}
        self._timer: asyncio.TimerHandle | None = None

    async def run(
        self, ticket: int, host: str, work: Callable[[], None], *, answered: bool = False
    ) -> None:
        """Call `work` when it is this handshake's turn; `answered`: this is a proof."""
        done = self._loop.create_future()
        self._waiting[ticket] = work, done
        self._turns.enter(ticket, host, answered=answered)
        try:
            if self._timer is None:
                self._on_turn()
            await done
        finally:
            self._turns.leave(ticket)
            del self._waiting[ticket]

    def close(self) -> None:
        """Give nobody a turn any more."""
        if self._timer is not None:
            self._timer.cancel()

    def _on_turn(self) -> None:
        self._timer = None
        now_s = self._loop.time()
        ticket = self._turns.next(now_s)
        if ticket is not None:
            work, done = self._waiting[ticket]
            if not done.done():  # else it was displaced a moment ago
                self._compute(work, done, now_s)
        at_s = self._turns.next_deadline_s()
        if at_s is not None:
            self._timer = self._loop.call_at(at_s, self._on_turn)

    def _compute(
        self, work: Callable[[], None], done: "asyncio.Future[None]", now_s: float
    ) -> None:
        begun_s = self._clock()
        try:
            work()
            done.set_result(None)
        except SwarmError as error:
            done.set_exception(error)
        finally:
            self._turns.charge(self._clock() - begun_s, now_s)
