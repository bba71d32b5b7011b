"""Orders that take time: a stage that is prepared, and reductions that an observer waits for.

Errors:  NotServing for a block that is cut short, a reduction that is decided and does not come,
         and an order that names another stage, or comes late. A stage that cannot be prepared is
         told to the trainer, and changes nothing.
Source:  docs/rebalancing.md, "Fetching beforehand".
"""

import asyncio
import functools
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

from p2pswarm.base.errors import NotServing, SwarmError
from p2pswarm.base.signal import Signal
from p2pswarm.base.tasks import to_its_end
from p2pswarm.models.compute.base import Engine
from p2pswarm.net.rpc.base import Stream
from p2pswarm.plan.arrangement import beside_bytes
from p2pswarm.run.averaging.averaging_io import AveragingSettings
from p2pswarm.run.averaging.base import AveragedGradient
from p2pswarm.run.averaging.stage_averaging import StageAveraging
from p2pswarm.run.messages.field_limits import REASON_CHARS
from p2pswarm.run.messages.membership import CannotPrepare, PrepareStage
from p2pswarm.run.messages.step import Commit, Committed, Reduce, Reduced, Shard
from p2pswarm.server.commit_log import ObserverPatience, WeightsLost
from p2pswarm.server.member_session import MemberSession
from p2pswarm.server.replica import Replica
from p2pswarm.server.weights_download import fetch_weights, make_replica
from p2pswarm.server.work_plan import OVER
from p2pswarm.trainer.balance.move_preparation import REST_S

T = TypeVar("T")
log = logging.getLogger(__name__)


class OpenOrders:
    """The blocks that are being run for others; all can be cut short at once."""

    def __init__(self) -> None:
        self._scopes: list[asyncio.Timeout] = []
        self._ended = Signal()

    def __bool__(self) -> bool:
        """Return whether anything is being carried out."""
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


class ObservedReductions:
    """The reductions that an observer waits for, as long as `ObserverPatience` says."""

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


class Preparation:
    """One stage beside the one that is served, from `PrepareStage` to the change or its end.

    A server prepares for a stage while it serves another one. It observes that stage as a newcomer
    does: it is sent what the stage reduces, fetches the pieces of its state from the members, and
    makes each commit. It has no incarnation there, counts nothing, and nobody waits for it. When
    the session ends because the server is sent there, the replica goes over to the next session;
    in any other case it is forgotten.
    """

    def __init__(
        self,
        session: MemberSession,
        order: PrepareStage,
        stage: int,
        era: int,
        tasks: asyncio.TaskGroup,
    ) -> None:
        """`session` serves another stage, with its `tasks`; what has been fetched outlives it."""
        self.stage = stage
        context, members = session.context, session.members
        self._context, self._members, self._note = context, members, session.note
        self._order = order
        self._era = era
        self._replica: Replica | None = None
        self._made = asyncio.Event()
        self._lost = asyncio.Event()
        self._observed = ObservedReductions()
        self._last_step: int | None = None
        """The step of the last reduction that it was told of."""
        self._orders = OpenOrders()
        self._averaging = StageAveraging(
            *(context.rpc, context.tensors, context.compute, members.find, tasks),
            AveragingSettings(secret=context.secret),
        )
        self._task = tasks.create_task(self._run())

    @property
    def whole(self) -> bool:
        """True if the weights of the stage are here."""
        return self._replica is not None and self._replica.version is not None

    def close(self) -> None:
        """It is over, and its memory is free."""
        self._task.cancel()
        self._orders.cut_short()
        self._replica = None
        self._made.set()

    async def handed_over(self) -> Replica | None:
        """The replica, for the session that begins; None if the weights are not here.

        What is being reduced is decided by now, so it is waited for as long as its pieces come; and
        so is the commit, which may be here before it.
        """
        self._task.cancel()
        if self._last_step is not None:
            self._observed.decided(self._last_step)
        try:
            async with asyncio.timeout(REST_S):
                await self._orders.until_idle()
        except TimeoutError:
            log.info("the last reduction of stage %d has not come: going on without", self.stage)
        self._orders.cut_short()
        return self._replica if self.whole else None

    def gets_from(self, peer: bytes) -> bool:
        """Return whether a member sends pieces of this stage's reductions, and no others."""
        record = self._members.record(peer)
        return record is not None and record.stage == self.stage

    def members_changed(self) -> None:
        """A new view is here."""
        self._averaging.members_changed()
        if self._replica is not None:
            self._replica.donors_changed()

    async def shard(self, stream: Stream, shard: Shard) -> None:
        """Receive a piece of a reduction."""
        async with self._orders.carrying_out(), self._observed.receiving(shard.step):
            await self._averaging.shard(stream, shard)

    async def reduce(self, order: Reduce) -> Reduced:
        """Take what the stage has averaged; says the state of that step, if it is here."""
        self._last_step = order.step
        async with self._orders.carrying_out():
            replica = await self._ready()
            await replica.committed_before(order.step)
            observe = functools.partial(self._observed.observe, order, replica, self._averaging)
            outcome = await to_its_end(self._carried_out(replica, order.step, observe))
            return await replica.answer(order.step, outcome)

    async def commit(self, order: Commit) -> Committed:
        """Let what is here follow a commit."""
        async with self._orders.carrying_out():
            replica = await self._ready()
            self._observed.decided(order.step)
            commit = functools.partial(replica.commit, order)
            applied = await to_its_end(self._carried_out(replica, order.step, commit))
        return Committed(order.step + 1, applied)

    async def _carried_out(
        self, replica: Replica, step: int, work: Callable[[], Awaitable[T]]
    ) -> T:
        """Do work of a step, also when the call has ended, until the preparation ends.

        If it misses its reduction, what is here is too old, and is fetched again.
        """
        async with self._orders.carrying_out():
            try:
                return await work()
            except WeightsLost:
                await replica.begin(step + 1, keep=False)
                self._lost.set()
                raise

    async def _ready(self) -> Replica:
        """The replica, as soon as its memory is here."""
        await self._made.wait()
        if self._replica is None:
            raise NotServing(f"stage {self.stage} is not being prepared")
        return self._replica

    async def _run(self) -> None:
        """Make memory, and fetch the weights; again, if they cannot follow."""
        try:
            replica = await self._make()
            if replica is None:
                return
            while True:
                await fetch_weights(self._context, replica, self._members)
                await self._lost.wait()
                self._lost.clear()
        except SwarmError as error:
            self._cannot(0, str(error))
        finally:
            self._made.set()

    async def _make(self) -> Replica | None:
        """Memory for the stage; None if there is too little."""
        context, order = self._context, self._order
        free = context.free_bytes()
        lacks = 0 if free is None else beside_bytes(order.state_bytes, free)
        if lacks:
            self._cannot(lacks, "memory for both stages is short")
            return None
        make = context.background or context.compute  # the compute thread serves meanwhile
        engine: Engine = await make(lambda: context.make_engine(self.stage))
        replica = make_replica(context, self.stage, engine)
        await replica.enter(self._era, keep=False)
        await replica.begin(order.since, keep=False, agreed=order.state)
        self._replica = replica
        self._made.set()
        return replica

    def _cannot(self, lacks_bytes: int, reason: str) -> None:
        self._replica = None
        self._note(CannotPrepare(self.stage, lacks_bytes, reason[:REASON_CHARS]))
