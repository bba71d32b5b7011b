"""A stage server: joins a run, serves one stage of it, and leaves.

This file keeps the stream with the trainer and gives every request to the part that serves it:
`worker` computes what comes in, `forwarder` sends what goes out, `replica` holds the weights.
`lifecycle` decides when to join, to leave and to give up.

Units:   seconds.
Errors:  RunEnded, with the reason, when the trainer is gone for good or refuses this server.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from p2pswarm.allreduce.averaging import Averaging, AveragingSettings
from p2pswarm.errors import Late, NotServing, Refused, RunEnded, SwarmError, Unusable
from p2pswarm.flow.exception_group import cause_of
from p2pswarm.flow.signal import Signal
from p2pswarm.ids import Contact
from p2pswarm.rpc.base import Stream
from p2pswarm.server.expected import expected_tensors
from p2pswarm.server.forwarder import Forwarder
from p2pswarm.server.lifecycle import JOIN_S, Lifecycle, ServerState
from p2pswarm.server.notes import NoteQueue
from p2pswarm.server.replica import Replica, WeightsLost
from p2pswarm.server.scheduler import Scheduler
from p2pswarm.server.session import MemberSession, ServerContext
from p2pswarm.server.worker import Worker
from p2pswarm.state.donor import Donor
from p2pswarm.state.download import fetch
from p2pswarm.swarm.messages.averaging import Shard
from p2pswarm.swarm.messages.membership import Assigned, Join, Leaving, Ready
from p2pswarm.swarm.messages.microbatch import Push
from p2pswarm.swarm.messages.state import FetchState
from p2pswarm.swarm.messages.step import Commit, Committed, Fence, Reduce, Reduced
from p2pswarm.swarm.view import MemberView
from p2pswarm.wire.message import Message

log = logging.getLogger(__name__)


class _SessionOver(Exception):
    """The run or this server's part in it is over."""


@dataclass(slots=True)
class _SessionParts:
    """What serves during one session."""

    session: MemberSession
    worker: Worker
    averaging: Averaging
    notes: NoteQueue
    failed: asyncio.Future[None]
    """Ends the session with an error."""
    orders: list[asyncio.Timeout] = field(default_factory=list)
    """The orders that are being carried out; they end with the session."""

    @asynccontextmanager
    async def carrying_out(self) -> AsyncIterator[None]:
        """Run a block; if the session ends first, the block ends with NotServing."""
        scope = asyncio.timeout(None)
        self.orders.append(scope)
        try:
            async with scope:
                yield
        except TimeoutError:
            if not scope.expired():
                raise  # a Late of the work itself
            raise NotServing("this server's incarnation is over") from None
        finally:
            self.orders.remove(scope)

    def fail(self, error: SwarmError) -> None:
        """End the session; the server joins again."""
        if not self.failed.done():
            self.failed.set_exception(error)

    def close(self) -> None:
        """End what is being carried out, and what waits to be computed."""
        now_s = asyncio.get_running_loop().time()
        if not self.failed.cancel() and not self.failed.cancelled():
            self.failed.exception()  # the first error has been raised already
        for scope in self.orders:
            scope.reschedule(now_s)
        self.worker.close()


class StageServer:
    """Serves one stage of one run."""

    def __init__(self, context: ServerContext) -> None:
        self._context = context
        self._replica: Replica | None = None
        self._donor: Donor | None = None
        self._session: _SessionParts | None = None
        self._changed = Signal()
        """The lifecycle has moved, or the trainer is to be told something."""
        self._lifecycle: Lifecycle | None = None
        """None before `run`."""
        rpc = context.rpc
        rpc.serve_stream(Push, self._push)
        rpc.serve_stream(Shard, self._shard)
        rpc.serve_stream(FetchState, self._fetch_state)
        rpc.serve_unary(Fence, self._fence)
        rpc.serve_unary(Reduce, self._reduce)
        rpc.serve_unary(Commit, self._commit)

    @property
    def stage(self) -> int | None:
        """The stage that it serves; None before the trainer has said."""
        return self._replica.stage if self._replica else None

    @property
    def version(self) -> int | None:
        """The version of its weights; None while they are not here."""
        return self._replica.version if self._replica else None

    async def serving(self, other_than: int | None = None) -> int:
        """Wait until it has the weights of a stage other than `other_than`; returns it."""
        while self.stage is None or self.version is None or self.stage == other_than:
            await self._changed.wait()
        return self.stage

    async def run(self) -> str:
        """Serve until the run ends or `leave` is called; returns why."""
        loop, context = asyncio.get_running_loop(), self._context
        lifecycle = Lifecycle(str(context.trainer.address), context.rejoin_s, loop.time())
        self._lifecycle = lifecycle
        while (end := lifecycle.end) is None:
            lifecycle.joining(loop.time())
            try:
                await self._join(lifecycle)
            except (RunEnded, Unusable):
                raise
            except SwarmError as error:
                log.warning("out of the run: %s", error)
                lifecycle.session_lost(str(error), loop.time())
            await self._until(lifecycle, lambda: lifecycle.may_join or lifecycle.end is not None)
        if end.failed:
            raise RunEnded(end.reason)
        return end.reason

    async def leave(self) -> None:
        """Admit nothing more, wait a while for the end of the step, and tell the trainer."""
        lifecycle, session = self._lifecycle, self._session
        if lifecycle is None:
            return
        lifecycle.leave(asyncio.get_running_loop().time())
        if session is not None:
            session.session.scheduler.closing = True
        self._changed.fire()
        await self._until(lifecycle, lambda: lifecycle.state is not ServerState.FINISHING)

    async def _until(self, lifecycle: Lifecycle, fact: Callable[[], bool]) -> None:
        """Wait for a fact about the lifecycle, and keep its deadlines."""
        while not fact():
            try:
                async with asyncio.timeout_at(lifecycle.next_deadline_s()):
                    await self._changed.wait()
            except TimeoutError:
                lifecycle.on_deadline(asyncio.get_running_loop().time())
                self._changed.fire()

    async def _join(self, lifecycle: Lifecycle) -> None:
        """Keep one stream with the trainer, from `Join` to its end."""
        context, replica = self._context, self._replica
        join = Join(
            context.run_id,
            str(context.rpc.contact.address),
            replica.stage if replica else context.stage,
            replica.version if replica else None,
            replica.digest if replica and replica.version is not None else b"",
            None,
        )
        async with context.rpc.open_stream(context.trainer, join, None) as stream:
            assigned = lifecycle.answered(await _within(JOIN_S, stream.receive()))
            if assigned is None:
                return
            log.info("stage %d, incarnation %d", assigned.stage, assigned.incarnation)
            try:
                await self._serve(stream, assigned, lifecycle)
            except BaseExceptionGroup as group:
                error = cause_of(group)
                if not isinstance(error, _SessionOver):
                    raise error from None

    async def _prepared(self, assigned: Assigned) -> Replica:
        """The replica of a stage: the one that is here, or a new one."""
        replica, context = self._replica, self._context
        if replica is None or replica.stage != assigned.stage:
            self._replica = self._donor = None  # free its memory before the new one's is allocated
            try:
                engine = await context.compute(lambda: context.make_engine(assigned.stage))
            except SwarmError as error:
                raise Unusable(f"stage {assigned.stage} cannot be served here: {error}") from error
            replica = self._replica = Replica(assigned.stage, engine, context.compute)
            self._donor = Donor(replica.snapshot)
        return replica

    async def _serve(self, stream: Stream, assigned: Assigned, lifecycle: Lifecycle) -> None:
        """Serve one session; raises a group of the errors that ended it."""
        replica = await self._prepared(assigned)
        notes = NoteQueue(asyncio.get_running_loop().time())
        async with asyncio.TaskGroup() as tasks:
            parts = self._session = self._parts(replica, assigned, notes, tasks)
            try:
                await replica.begin(assigned.since, keep=assigned.keep)
                lifecycle.prepared()
                self._changed.fire()
                tasks.create_task(self._listen(stream, parts, lifecycle))
                tasks.create_task(self._tell(stream, parts, lifecycle))
                tasks.create_task(parts.worker.work())
                await self._load(parts, replica, assigned.stage)
                lifecycle.loaded()
                self._changed.fire()
                await parts.failed  # or a task ends the session
            finally:
                self._session = None
                parts.close()

    def _parts(
        self, replica: Replica, assigned: Assigned, notes: NoteQueue, tasks: asyncio.TaskGroup
    ) -> _SessionParts:
        context, run = self._context, self._context.run

        def note(message: Message) -> None:
            notes.add(message)
            self._changed.fire()

        expected = expected_tensors(run, replica.engine)
        stage, incarnation = assigned.stage, assigned.incarnation
        scheduler = Scheduler(stage, run.stages, incarnation, run.batch.microbatches, expected)
        members, router = MemberView(), context.make_router()
        session = MemberSession(context, replica.engine, scheduler, members, router, note, Signal())
        settings = AveragingSettings(secret=context.secret)
        averaging = Averaging(
            context.rpc, context.tensors, context.compute, members.find, tasks, settings
        )
        worker = Worker(session, Forwarder(session, tasks))
        failed = asyncio.get_running_loop().create_future()
        return _SessionParts(session, worker, averaging, notes, failed)

    async def _load(self, parts: _SessionParts, replica: Replica, stage: int) -> None:
        """Get the weights, and tell the trainer."""
        context, session = self._context, parts.session
        me = context.rpc.contact.peer

        async def donors() -> tuple[Contact, ...]:
            while not (others := session.members.donors(stage, me)):
                await session.view_changed.wait()
            return others

        while replica.version is None:
            request = FetchState(context.run_id, stage, replica.needed)
            snapshot = await fetch(
                context.rpc, donors, request, replica.engine.state_bytes, context.piece_bytes
            )
            if not await replica.install(snapshot):
                log.info("version %d is too old by now", snapshot.version)
        parts.worker.moved_to(replica.version)
        session.note(Ready(replica.version, replica.digest))

    async def _listen(self, stream: Stream, parts: _SessionParts, lifecycle: Lifecycle) -> None:
        """Take views, until the trainer ends the run or the link is lost."""
        session = parts.session
        while (part := lifecycle.told(await stream.receive())) is not None:
            if session.members.receive(part):
                _route_anew(session)
                parts.averaging.members_changed()
        raise _SessionOver

    async def _tell(self, stream: Stream, parts: _SessionParts, lifecycle: Lifecycle) -> None:
        """Send notes in the order they were made, the load every second, and goodbye at the end."""
        loop = asyncio.get_running_loop()
        while True:
            while note := parts.notes.take():
                await stream.send(note)
            if lifecycle.must_say_goodbye:
                break
            if parts.notes.load_is_due(loop.time()):
                await stream.send(parts.worker.load(loop.time()))
                _route_anew(parts.session)  # a lost server may be back
                continue
            try:
                async with asyncio.timeout_at(parts.notes.next_deadline_s()):
                    await self._changed.wait()
            except TimeoutError:
                continue
        await stream.send(Leaving())
        lifecycle.said_goodbye()
        raise _SessionOver

    def _serving(self, run_id: bytes) -> _SessionParts:
        """The parts of the present session."""
        if self._session is None or run_id != self._context.run_id:
            raise NotServing("not in this run now")
        return self._session

    async def _in_order(self, run_id: bytes) -> _SessionParts:
        """As `_serving`, for a message that may come before the assignment that it follows."""
        lifecycle = self._lifecycle
        while lifecycle is not None and lifecycle.orders_wait:
            await self._changed.wait()
        return self._serving(run_id)

    async def _ordered(self, peer: object, run_id: bytes) -> _SessionParts:
        """As `_in_order`, for an order that only the trainer may give."""
        trainer = self._context.trainer.peer
        if trainer is not None and peer != trainer:
            raise Refused("only the trainer may ask this")
        return await self._in_order(run_id)

    async def _push(self, stream: Stream, push: Push) -> None:
        await self._serving(push.run).worker.push(stream, push)

    async def _shard(self, stream: Stream, shard: Shard) -> None:
        parts = await self._in_order(shard.run)
        await parts.averaging.shard(stream, shard)

    async def _fetch_state(self, stream: Stream, request: FetchState) -> None:
        parts = self._serving(request.run)
        if self._donor is None or request.stage != parts.session.scheduler.stage:
            raise NotServing(f"stage {request.stage} is not here")
        await self._donor.serve(stream, request)

    async def _fence(self, peer: object, fence: Fence) -> Message:
        parts = await self._ordered(peer, fence.run)
        async with parts.carrying_out():
            return await parts.worker.fence(fence)

    async def _reduce(self, peer: object, order: Reduce) -> Message:
        parts, replica = await self._ordered(peer, order.run), self._replica
        assert replica is not None, "a session has weights, or memory for them"
        me = self._context.rpc.contact.peer
        assert me is not None, "we know our own id"
        async with parts.carrying_out():
            if me.raw in order.group:
                await replica.reach(order.step)  # its commit may still be on the way
            await replica.committed_before(order.step)
            parts.session.scheduler.check_reduce(order, me.raw)
            outcome = await replica.reduce(order, parts.averaging)
        return Reduced(outcome.digest, outcome.squared_norm, outcome.bytes_per_s)

    async def _commit(self, peer: object, order: Commit) -> Message:
        parts, replica = await self._ordered(peer, order.run), self._replica
        assert replica is not None, "a session has weights, or memory for them"
        parts.session.scheduler.check_commit(order)
        async with parts.carrying_out():
            try:
                moved = await replica.commit(order)
            except WeightsLost as error:
                parts.fail(error)
                raise
        if not moved:
            return Committed(order.step + 1, b"")
        version, digest = replica.version, replica.digest
        assert version is not None, "it has just moved"
        if parts is self._session and self._lifecycle is not None:
            parts.worker.moved_to(version)
            record = parts.session.members.record(_raw(self._context.rpc.contact))
            if (ready := self._lifecycle.ready_after_commit(record, version, digest)) is not None:
                parts.session.note(ready)
            self._lifecycle.step_ended()
            self._changed.fire()
        return Committed(version, digest)


async def _within(limit_s: float, answer: Awaitable[Message | None]) -> Message | None:
    try:
        async with asyncio.timeout(limit_s):
            return await answer
    except TimeoutError:
        raise Late(f"the trainer did not answer in {limit_s:g} s") from None


def _route_anew(session: MemberSession) -> None:
    """Let the router know the servers of the next stage, and wake the pushes that wait for one."""
    session.router.update(session.members.ready(session.scheduler.stage + 1))
    session.view_changed.fire()


def _raw(who: Contact) -> bytes:
    assert who.peer is not None, "we know our own id"
    return who.peer.raw
