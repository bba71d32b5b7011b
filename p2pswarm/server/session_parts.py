"""What serves during one session, and how it ends: with all that is being carried out in it.

Errors:  NotServing for an order that is cut short by the end of its session.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

from p2pswarm.allreduce.averaging import Averaging, AveragingSettings
from p2pswarm.allreduce.base import AveragedGradient
from p2pswarm.errors import NotServing, SwarmError
from p2pswarm.flow.signal import Signal
from p2pswarm.ids import Contact
from p2pswarm.plan.capacity import CapacityMeter
from p2pswarm.server.checkpointing import Checkpointing
from p2pswarm.server.commit_log import ClosedSum, HeldWeights
from p2pswarm.server.expected import expected_tensors
from p2pswarm.server.forwarder import Forwarder
from p2pswarm.server.kept_boundaries import KeptBoundaries
from p2pswarm.server.notes import NoteQueue, SignOfLife
from p2pswarm.server.observing import ObserverPatience
from p2pswarm.server.piece_keeping import PieceKeeping
from p2pswarm.server.replica import Replica
from p2pswarm.server.scheduler import Scheduler, bitmap_of
from p2pswarm.server.session import MemberSession, ServerContext
from p2pswarm.server.work_plan import OVER
from p2pswarm.server.worker import Worker
from p2pswarm.swarm.messages.membership import LOSSES_MAX, Assigned, HeldSum, Load, Ready
from p2pswarm.swarm.messages.road import Apart
from p2pswarm.swarm.messages.step import Reduce
from p2pswarm.swarm.messages.trainers import Alive
from p2pswarm.swarm.view import MemberView, contact
from p2pswarm.swarm.watched_rpc import WatchedRpc
from p2pswarm.wire.message import Message


@dataclass(slots=True)
class SessionParts:
    """What serves during one session."""

    session: MemberSession
    worker: Worker
    averaging: Averaging
    replica: Replica
    notes: NoteQueue
    checkpointing: Checkpointing
    keeping: PieceKeeping
    roads: tuple[WatchedRpc, WatchedRpc]
    """The roads to other servers, for pushes and for averaging."""
    failed: asyncio.Future[None]
    """Ends the session with an error."""
    orders: list[asyncio.Timeout] = field(default_factory=list)
    """The orders that are being carried out; they end with the session."""
    patience: ObserverPatience = field(default_factory=ObserverPatience)
    """While this server is an observer: how long it waits for a reduction."""
    observed: dict[int, asyncio.Timeout] = field(default_factory=dict)
    """The reductions that it waits for as one, by step."""

    @asynccontextmanager
    async def carrying_out(
        self, end: Callable[[], SwarmError] = lambda: NotServing(OVER)
    ) -> AsyncIterator[None]:
        """Run a block; if the session ends first, the block ends with what `end` gives."""
        scope = asyncio.timeout(None)
        self.orders.append(scope)
        try:
            async with scope:
                yield
        except TimeoutError:
            if not scope.expired():
                raise  # a Late of the work itself
            raise end() from None
        finally:
            self.orders.remove(scope)

    def word(self, now_s: float, unheard_s: float) -> Load | Alive | None:
        """What to tell the trainer though nothing has happened, if that is due."""
        match self.notes.due(now_s):
            case SignOfLife.LOAD:
                self.session.view_changed.fire()  # a lost server may be back
                return replace(self.worker.load(now_s), unheard_s=unheard_s)
            case SignOfLife.ALIVE:
                return Alive()
            case _:
                return None

    def members_changed(self) -> None:
        """Follow a new view of the members."""
        self.session.route_anew()
        self.averaging.members_changed()
        self._watch_mates()
        self.replica.donors_changed()

    def _watch_mates(self) -> None:
        """Find out whether the others of the stage are there: all average with all."""
        members, stage = self.session.members.members, self.replica.stage
        mates = [one for one in members if one.stage == stage and one.peer != self.session.me]
        _, roads = self.roads
        roads.watch(map(contact, mates))

    async def average(self, order: Reduce) -> AveragedGradient:
        """Average once; what that takes tells how long the roads are full with it."""
        clock = asyncio.get_running_loop().time
        begun_s = clock()
        if self.session.me in order.group:
            outcome = await self.replica.reduce(order, self.averaging)
        else:
            outcome = await self._observe(order)
        self.session.meter.averaged(outcome.bytes_per_s)
        _, roads = self.roads
        roads.averaged(order.group, clock() - begun_s)
        return outcome

    async def _observe(self, order: Reduce) -> AveragedGradient:
        """Take what the members have averaged; NotServing if it does not come."""
        scope = asyncio.timeout_at(self.patience.give_up_s(order.step))
        try:
            async with scope:
                self.observed[order.step] = scope
                return await self.replica.reduce(order, self.averaging)
        except TimeoutError:
            if not scope.expired():
                raise  # a Late of the work itself
            raise NotServing(
                f"step {order.step} is decided, and its reduction does not come"
            ) from None
        finally:
            if self.observed.get(order.step) is scope:
                del self.observed[order.step]

    @asynccontextmanager
    async def receiving(self, step: int) -> AsyncIterator[None]:
        """Run a block in which a piece of a step's reduction comes."""
        self.patience.piece_began(step)
        self._wait_anew()
        came = False
        try:
            yield
            came = True
        finally:
            self.patience.piece_ended(step, asyncio.get_running_loop().time(), came=came)
            self._wait_anew()

    def decided(self, step: int) -> None:
        """The commit of a step has come."""
        self.patience.decided(step, asyncio.get_running_loop().time())
        self._wait_anew()

    def _wait_anew(self) -> None:
        for step, scope in self.observed.items():
            if not scope.expired():
                scope.reschedule(self.patience.give_up_s(step))

    async def tell_states(self) -> None:
        """Tell the trainer the digest of each version, as soon as it is known."""
        version = None
        while True:
            version, digest = await self.replica.hashed(other_than=version)
            self.session.note(Ready(version, digest))

    def fail(self, error: SwarmError) -> None:
        """End the session; the server joins again."""
        if not self.failed.done():
            self.failed.set_exception(error)

    async def closed_sum(self, *, void: bool) -> ClosedSum | None:
        """What the session, which is over, leaves in the sum; None if it is void or unknown."""
        scheduler = self.session.scheduler
        if scheduler.adding:
            await self.session.context.compute(lambda: None)  # behind what the thread does now
        return None if void else scheduler.closed_sum()

    def close(self) -> None:
        """End what is being carried out, and what waits to be computed."""
        now_s = asyncio.get_running_loop().time()
        if not self.failed.cancel() and not self.failed.cancelled():
            self.failed.exception()  # the first error has been raised already
        for scope in self.orders:
            scope.reschedule(now_s)
        self.worker.close()
        for watched in self.roads:
            watched.close()


def held_sum(held: HeldWeights, microbatches: int) -> HeldSum | None:
    """What the trainer is told of the sum that the last session has left."""
    if (left := held.sum) is None:
        return None
    bitmap = bitmap_of(left.counted, left.step, microbatches)
    losses: tuple[float | None, ...] = ()
    if left.losses and len(left.counted) <= LOSSES_MAX:
        losses = tuple(left.losses.get(microbatch) for microbatch in sorted(left.counted))
    return HeldSum(left.incarnation, left.step, bitmap, losses)


def session_parts(
    context: ServerContext,
    replica: Replica,
    terms: tuple[Contact, Assigned],
    roads: tuple[WatchedRpc, WatchedRpc],
    changed: Signal,
    tasks: asyncio.TaskGroup,
) -> SessionParts:
    """The parts of a new session; `terms`: the trainer and what it assigned.

    `roads`: for pushes and for averaging; they know what was broken in the session before.
    `changed` is fired when there is something to tell the trainer.
    """
    loop, run, (trainer, assigned) = asyncio.get_running_loop(), context.run, terms
    notes, members = NoteQueue(loop.time()), MemberView()
    pushing, reducing = roads

    def note(message: Message) -> None:
        notes.add(message)
        changed.fire()

    pushing.begin(tasks)
    reducing.begin(tasks, lambda peers: note(Apart(peers)))

    kept_bytes = 0 if run.spot_check_share else context.kept_bytes  # a check is of what is computed
    scheduler = Scheduler(
        assigned.stage,
        run.stages,
        assigned.incarnation,
        run.batch.microbatches,
        expected_tensors(run, replica.engine),
        KeptBoundaries(assigned.stage, context.me, kept_bytes),
    )
    session = MemberSession(
        context,
        trainer,
        replica.engine,
        scheduler,
        members,
        context.make_router(),
        note,
        Signal(),
        CapacityMeter(),
    )
    averaging = Averaging(
        *(reducing, context.tensors, context.compute, members.find, tasks),
        AveragingSettings(secret=context.secret),
    )
    forwarder = Forwarder(session, pushing, tasks, pushing.is_broken)
    worker = Worker(session, forwarder, pushing.is_broken)
    checkpointing = Checkpointing(context, replica, note, tasks)
    failed = loop.create_future()
    parts = session, worker, averaging, replica, notes
    keeping = PieceKeeping(context, replica, tasks)
    return SessionParts(*parts, checkpointing, keeping, roads, failed)
