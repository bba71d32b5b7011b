"""The parts that serve during one session, and its end, with all that is being carried out in it.

Errors:  NotServing for an order that is cut short by the end of its session.
"""

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from p2pswarm.base.errors import BadMessage, NotServing, SwarmError
from p2pswarm.base.ids import Contact
from p2pswarm.base.signal import Signal
from p2pswarm.models.compute.bundle_spec import StageCodecs
from p2pswarm.net.rpc.base import Stream
from p2pswarm.net.wire.message import Message
from p2pswarm.plan.capacity import CapacityMeter
from p2pswarm.run.averaging.averaging_io import AveragingSettings
from p2pswarm.run.averaging.base import AveragedGradient
from p2pswarm.run.averaging.stage_averaging import StageAveraging
from p2pswarm.run.member_view import MemberView, contact
from p2pswarm.run.messages.membership import (
    LOSSES_MAX,
    Apart,
    Assigned,
    CannotPrepare,
    HeldSum,
    Join,
    Load,
    PrepareStage,
    Ready,
)
from p2pswarm.run.messages.step import Reduce
from p2pswarm.run.messages.trainers import Alive
from p2pswarm.run.messages.waits import ServerWaits
from p2pswarm.run.peer_health_io import WatchedRpc
from p2pswarm.server.boundary_cache import BoundaryCache
from p2pswarm.server.commit_log import ClosedSum, HeldWeights
from p2pswarm.server.forwarder import Forwarder
from p2pswarm.server.lifecycle import Lifecycle
from p2pswarm.server.member_session import MemberSession, ServerContext
from p2pswarm.server.note_queue import NoteQueue, SignOfLife
from p2pswarm.server.orders_io import ObservedReductions, OpenOrders, Preparation
from p2pswarm.server.replica import Replica
from p2pswarm.server.scheduler import Scheduler, bitmap_of, expected_tensors
from p2pswarm.server.stage_checkpoint_io import Checkpointing
from p2pswarm.server.waits.own_waits import OwnWaits
from p2pswarm.server.weights_download import PieceKeeping
from p2pswarm.server.worker import Worker


@dataclass(slots=True)
class SessionParts:
    """The parts that serve during one session."""

    session: MemberSession
    worker: Worker
    averaging: StageAveraging
    replica: Replica
    notes: NoteQueue
    checkpointing: Checkpointing
    keeping: PieceKeeping
    pushing: WatchedRpc
    """The roads to other servers, for pushes."""
    reducing: WatchedRpc
    """The same, for averaging."""
    failed: asyncio.Future[None]
    """Ends the session with an error."""
    orders: OpenOrders = field(default_factory=OpenOrders)
    """The orders that are being carried out; they end with the session."""
    observed: ObservedReductions = field(default_factory=ObservedReductions)
    """While this server is an observer: the reductions that it waits for."""
    preparation: Preparation | None = None
    """The stage that it is to serve next, if it was told to prepare for one."""

    def word(self, now_s: float, unheard_s: Callable[[], float]) -> Load | Alive | None:
        """The news for the trainer though nothing has happened, if it is due."""
        members, silent_s = 0, 0.0
        if self.notes.looks(now_s):
            members, silent_s = self.session.members_about, unheard_s()
            self.session.view_changed.fire()  # a lost server may be back
        match self.notes.due(now_s, members, silent_s):
            case SignOfLife.LOAD:
                load = replace(
                    self.worker.load(now_s),
                    unheard_s=silent_s,
                    weights_share=self.replica.weights_share,
                )
                self.session.context.on_load(self.replica.stage, load)
                return load
            case SignOfLife.ALIVE:
                return Alive()
            case _:
                return None

    async def tell(
        self, stream: Stream, lifecycle: Lifecycle, unheard_s: Callable[[], float], to_tell: Signal
    ) -> None:
        """Send notes in the order they were made, and a word when there are none, to the end."""
        loop = asyncio.get_running_loop()
        while True:
            while note := self.notes.take(loop.time()):
                await stream.send(note)
            if lifecycle.must_say_goodbye:
                return
            if (word := self.word(loop.time(), unheard_s)) is not None:
                await stream.send(word)
                continue
            due_s = self.notes.next_deadline_s()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(due_s):
                    await to_tell.wait()
            lifecycle.woke(loop.time() - due_s)

    def members_changed(self) -> None:
        """Follow a new view of the members."""
        self.session.route_anew()
        if self.preparation is not None:
            self.preparation.members_changed()
        self.averaging.members_changed()
        self._watch_mates()
        self.replica.donors_changed()

    def prepare(self, order: PrepareStage, tasks: asyncio.TaskGroup) -> None:
        """Hold another stage's state as well, as the trainer says; or no longer."""
        if self.preparation is not None:
            self.preparation.close()
            self.preparation = None
        if order.stage is None or order.stage == self.replica.stage:
            return
        session = self.session
        if order.stage >= session.context.run.stages:
            raise BadMessage(f"stage {order.stage} of {session.context.run.stages}")
        if session.context.stage is not None:
            session.note(CannotPrepare(order.stage, 0, "it was told which stage to serve"))
            return
        self.preparation = Preparation(session, order, order.stage, self.replica.era, tasks)

    def prepares_for(self, stage: int) -> bool:
        """Return whether that is the stage that it was told to prepare for."""
        return self.preparation is not None and self.preparation.stage == stage

    async def prepared(self) -> Replica | None:
        """The weights of the stage that the next session is to serve, if they are here."""
        return None if self.preparation is None else await self.preparation.handed_over()

    def prepares(self, stage: int, incarnation: int) -> Preparation:
        """The stage that is prepared; NotServing if an order is not for it."""
        self.session.scheduler.check_incarnation(incarnation)
        if self.preparation is None or self.preparation.stage != stage:
            raise NotServing(f"stage {stage} is not being prepared")
        return self.preparation

    def _watch_mates(self) -> None:
        """Find out whether the others of the stage are there: all average with all."""
        members, stage = self.session.members.members, self.replica.stage
        mates = [
            one for one in members if one.stage == stage and one.peer != self.session.context.me
        ]
        self.reducing.watch(map(contact, mates))

    async def average(self, order: Reduce) -> AveragedGradient:
        """Average once; what that takes tells how long the roads are full with it."""
        clock = asyncio.get_running_loop().time
        begun_s = clock()
        if self.session.context.me in order.group:
            outcome = await self.replica.reduce(order, self.averaging)
        else:
            outcome = await self.observed.observe(order, self.replica, self.averaging)
        self.session.meter.on_averaging(outcome.bytes_per_s)
        self.reducing.health.averaged(order.partners, clock() - begun_s)
        return outcome

    def waits(self, state: str, unheard_s: float, now_s: float) -> ServerWaits:
        """Return what this server does and waits for; `state`: of its lifecycle."""
        scheduler, averaging = self.session.scheduler, self.averaging
        broken = [*self.pushing.health.broken_peers, *self.reducing.health.broken_peers]
        return self.session.waits.view(
            now_s,
            stage=self.replica.stage,
            version=self.replica.version,
            state=state,
            queued=scheduler.queued() - scheduler.coming(),
            coming=scheduler.coming(),
            away=self.worker.away,
            held_by=scheduler.held_by(),
            missing=averaging.lacks(),
            broken=dict.fromkeys(broken),
            unheard_s=unheard_s,
        )

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
        if not self.failed.cancel() and not self.failed.cancelled():
            self.failed.exception()  # the first error has been raised already
        self.orders.cut_short()
        self.worker.close()
        self.pushing.close()
        self.reducing.close()


async def join_of(context: ServerContext, replica: Replica | None, records: int) -> Join:
    """The question of a server to a trainer; `records`: how many its voter knows."""
    wanted = context.planned_stage if context.stage is None else context.stage
    held = await replica.held() if replica else None
    named = held.named if held else None
    return Join(
        context.run_id,
        str(context.rpc.contact.address),
        replica.stage if replica else wanted,
        named.version if named else None,
        named.digest if named else b"",
        named.reductions if named else (),
        replica.era if replica else 0,
        context.stage is not None,
        records,
        _held_sum(held, context.run.batch.microbatches) if held else None,
        context.cards.of(context.me),
        context.price.told,
    )


def _held_sum(held: HeldWeights, microbatches: int) -> HeldSum | None:
    """The trainer's news of the sum that the last session has left."""
    if (left := held.sum) is None:
        return None
    following = (left.step + 1) * microbatches
    now = sorted(m for m in left.counted if m < following)
    ahead = sorted(m for m in left.counted if m >= following)
    bitmaps = bitmap_of(now, left.step, microbatches), bitmap_of(ahead, left.step + 1, microbatches)
    losses: list[tuple[float | None, ...]] = [(), ()]
    if left.losses and len(left.counted) <= LOSSES_MAX:
        losses = [tuple(map(left.losses.get, counted)) for counted in (now, ahead)]
    first = HeldSum(left.incarnation, left.step, bitmaps[0], losses[0])
    return replace(first, ahead=bitmaps[1], ahead_losses=losses[1]) if ahead else first


def session_parts(
    context: ServerContext,
    replica: Replica,
    trainer: Contact,
    assigned: Assigned,
    roads: tuple[WatchedRpc, WatchedRpc],
    to_tell: Signal,
    tasks: asyncio.TaskGroup,
) -> SessionParts:
    """The parts of a new session; `to_tell` is fired when there is news for the trainer.

    `roads`: for pushes and for averaging; they know what was broken in the session before.
    """
    loop, run = asyncio.get_running_loop(), context.run
    notes, members = NoteQueue(loop.time()), MemberView()
    pushing, reducing = roads

    def note(message: Message) -> None:
        notes.add(message)
        to_tell.fire()

    pushing.begin(tasks)
    reducing.begin(tasks, lambda peers: note(Apart(peers)))

    kept_bytes = 0 if run.spot_check_share else context.kept_bytes  # a check is of what is computed
    engine = replica.engine
    codecs = StageCodecs(run, assigned.stage, engine.takes, engine.gives)
    codecs.on_codecs(assigned.since, assigned.codecs)
    scheduler = Scheduler(
        assigned.stage,
        run.stages,
        assigned.incarnation,
        run.batch.microbatches,
        expected_tensors(run, codecs),
        BoundaryCache(assigned.stage, context.me, kept_bytes),
        run.delay,
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
        codecs,
        OwnWaits(loop.time()),
    )
    averaging = StageAveraging(
        *(reducing, context.tensors, context.compute, members.find, tasks),
        AveragingSettings(secret=context.secret),
    )
    forwarder = Forwarder(session, pushing, tasks, pushing.health.is_broken)
    worker = Worker(session, forwarder, tasks, pushing.health.is_broken)
    checkpointing = Checkpointing(context, replica, note, tasks)
    failed = loop.create_future()
    parts = session, worker, averaging, replica, notes
    keeping = PieceKeeping(context, replica, tasks)
    return SessionParts(*parts, checkpointing, keeping, *roads, failed)
