"""The reductions that an observer waits for; `observing.py` decides for how long.

Units:   seconds.
Errors:  NotServing for a reduction that is decided and does not come.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from p2pswarm.base.errors import NotServing
from p2pswarm.run.averaging.base import AveragedGradient
from p2pswarm.run.averaging.stage_averaging import StageAveraging
from p2pswarm.run.messages.step import Reduce
from p2pswarm.server.observing import ObserverPatience
from p2pswarm.server.replica import Replica


class ObservedReductions:
    """Waits as an observer, and for as long as there is reason to."""

    def __init__(self) -> None:
        self._patience = ObserverPatience()
        self._waited: dict[int, asyncio.Timeout] = {}
        """The reductions that are waited for, by step."""

    async def observe(
        self, order: Reduce, replica: Replica, averaging: StageAveraging
    ) -> AveragedGradient:
        """Take what the members have averaged; NotServing if it does not come."""
        scope = asyncio.timeout_at(self._patience.give_up_s(order.step))
        try:
            async with scope:
                self._waited[order.step] = scope
                return await replica.reduce(order, averaging)
        except TimeoutError:
            if not scope.expired():
                raise  # a Late of the work itself
            raise NotServing(
                f"step {order.step} is decided, and its reduction does not come"
            ) from None
        finally:
            if self._waited.get(order.step) is scope:
                del self._waited[order.step]

    @asynccontextmanager
    async def receiving(self, step: int) -> AsyncIterator[None]:
        """Run a block in which a piece of a step's reduction comes."""
        self._patience.piece_began(step)
        self._wait_anew()
        came = False
        try:
            yield
            came = True
        finally:
            self._patience.piece_ended(step, asyncio.get_running_loop().time(), came=came)
            self._wait_anew()

    def decided(self, step: int) -> None:
        """The commit of a step has come."""
        self._patience.decided(step, asyncio.get_running_loop().time())
        self._wait_anew()

    def _wait_anew(self) -> None:
        for step, scope in self._waited.items():
            if not scope.expired():
                scope.reschedule(self._patience.give_up_s(step))
