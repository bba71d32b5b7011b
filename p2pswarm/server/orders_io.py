"""Orders that a server carries out, and the reductions that an observer waits for."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from p2pswarm.base.errors import NotServing, SwarmError
from p2pswarm.base.signal import Signal
from p2pswarm.run.averaging.base import AveragedGradient
from p2pswarm.run.averaging.stage_averaging import StageAveraging
from p2pswarm.run.messages.step import Reduce
from p2pswarm.server.commit_log import ObserverPatience
from p2pswarm.server.replica import Replica
from p2pswarm.server.work_plan import OVER

# What a server is carrying out, so that all of it can be cut short at once.
#
# Errors:  NotServing, or what the caller says, for a block that is cut short.


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


# The reductions that an observer waits for; `commit_log.py` decides for how long.
#
# Errors:  NotServing for a reduction that is decided and does not come.


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
