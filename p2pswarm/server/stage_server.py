"""A stage server: joins a run, serves one stage of it, and leaves.

This file keeps the stream with the trainer: it joins, says what the parts have to say, hears
views, and answers what must be acknowledged. Microbatches come in through `worker`, go out through
`forwarder`; `replica` has the weights. A session lasts as long as the stream; the server outlives
it and joins again.

Units:   seconds.
Errors:  RunEnded, with the reason, when the trainer is gone for good or will not have us.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from p2pswarm.allreduce.averaging import Averaging
from p2pswarm.errors import (
    BadMessage,
    Late,
    LinkLost,
    NotServing,
    Refused,
    RunEnded,
    SwarmError,
    Unusable,
)
from p2pswarm.flow.exception_group import cause_of
from p2pswarm.ids import Contact
from p2pswarm.rpc.base import Stream
from p2pswarm.server.forwarder import Forwarder
from p2pswarm.server.replica import ReducedGradient, Replica
from p2pswarm.server.scheduler import Scheduler
from p2pswarm.server.session import MemberSession, ServerContext
from p2pswarm.server.worker import Worker
from p2pswarm.state.donor import Donor
from p2pswarm.state.download import fetch
from p2pswarm.swarm.messages.averaging import Shard
from p2pswarm.swarm.messages.membership import Assigned, Join, Leaving, Ready, View
from p2pswarm.swarm.messages.microbatch import Push
from p2pswarm.swarm.messages.run import Finished
from p2pswarm.swarm.messages.state import FetchState
from p2pswarm.swarm.messages.step import Commit, Committed, Fence, Reduce, Reduced
from p2pswarm.swarm.view import MemberView, contact
from p2pswarm.wire.message import Message

log = logging.getLogger(__name__)

LOAD_EVERY_S = 1.0
JOIN_S = 300.0  # for the first word of the trainer: it may park us until a step has closed
REJOIN_FIRST_S, REJOIN_MAX_S = 0.25, 5.0
STEADY_S = 10.0  # a session this long was a good one: the next is tried for at once
NOTES_MAX = 100_000  # a trainer that reads nothing for so long does not train
LEAVE_S = 3.0  # Ctrl-C has 5 s; the step's end saves the others a replay
DONOR_WAIT_S = 0.1  # between two looks for somebody who has the weights


class _SessionOver(Exception):
    """The run or our part in it is over."""


@dataclass(slots=True)
class _SessionParts:
    """What serves during one session."""

    session: MemberSession
    worker: Worker
    averaging: Averaging
    outbox: deque[Message]
    told: asyncio.Event


class StageServer:
    """Serves one stage of one run."""

    def __init__(self, context: ServerContext) -> None:
        self._context = context
        self._replica: Replica | None = None
        self._donor: Donor | None = None
        self._parts: _SessionParts | None = None
        self._laid_out = asyncio.Event()
        self._laid_out.set()
        self._lives = 0
        self._leaving = asyncio.Event()
        rpc = context.rpc
        rpc.serve_stream(Push, self._push)
        rpc.serve_stream(Shard, self._shard)
        rpc.serve_stream(FetchState, self._fetch_state)
        rpc.serve_unary(Fence, self._fence)
        rpc.serve_unary(Reduce, self._reduce)
        rpc.serve_unary(Commit, self._commit)

    @property
    def stage(self) -> int | None:
        """What it serves; None before it was told."""
        return self._replica.stage if self._replica else None

    @property
    def version(self) -> int | None:
        """Of its weights; None while it has none."""
        return self._replica.version if self._replica else None

    async def run(self) -> str:
        """Serve until the run ends or `leave` is called; why it ended."""
        loop = asyncio.get_running_loop()
        wait_s, last_s = REJOIN_FIRST_S, loop.time()
        while True:
            lives, began_s = self._lives, loop.time()
            try:
                return await self._live()
            except (RunEnded, Unusable):
                raise
            except SwarmError as error:
                now_s = loop.time()
                if self._lives > lives:  # the time counts from the end of a session
                    last_s = now_s
                if now_s - began_s > STEADY_S:
                    wait_s = REJOIN_FIRST_S
                log.warning("out of the run: %s", error)
                if now_s - last_s >= self._context.rejoin_s:
                    name = self._context.trainer.address
                    reason = f"the trainer at {name} is gone for {now_s - last_s:.0f} s"
                    raise RunEnded(f"{reason}: {error}") from error
            if self._leaving.is_set():
                return "left"
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, REJOIN_MAX_S)

    async def leave(self) -> None:
        """Take nothing on any more, wait for the end of the step for a while, say goodbye."""
        parts, replica = self._parts, self._replica
        if parts is not None and replica is not None and replica.version is not None:
            parts.session.scheduler.closing = True
            try:
                async with asyncio.timeout(LEAVE_S):
                    await replica.reach(replica.version + 1)
            except TimeoutError:
                log.info("leaving in the middle of a step")
        self._leaving.set()

    async def _live(self) -> str:
        """One session, from `Join` to the end of its stream."""
        context, replica = self._context, self._replica
        join = Join(
            context.run_id,
            str(context.rpc.contact.address),
            replica.stage if replica else context.stage,
            replica.version if replica else None,
            replica.digest if replica and replica.version is not None else b"",
        )
        async with context.rpc.open_stream(context.trainer, join, None) as stream:
            first = await _within(JOIN_S, stream.receive())
            if isinstance(first, Finished):
                return first.reason
            if not isinstance(first, Assigned):
                raise LinkLost(f"the trainer answered {type(first).__name__}")
            self._lives += 1
            self._laid_out.clear()
            try:
                await self._serve(stream, first)
            except BaseExceptionGroup as group:
                error = cause_of(group)
                if isinstance(error, _SessionOver):
                    return str(error)
                raise error from None
            finally:
                self._laid_out.set()
        raise AssertionError("a session ends with an exception")

    async def _serve(self, stream: Stream, assigned: Assigned) -> None:
        context = self._context
        replica = self._replica
        if replica is None or replica.stage != assigned.stage:
            self._replica = self._donor = (
                None  # another stage's memory goes before this one's comes
            )
            engine = await context.compute(lambda: context.make_engine(assigned.stage))
            replica = self._replica = Replica(assigned.stage, engine, context.compute)
            self._donor = Donor(replica.snapshot)
        outbox: deque[Message] = deque()
        told = asyncio.Event()

        def note(message: Message) -> None:
            if len(outbox) >= NOTES_MAX:
                raise LinkLost("the trainer does not read what is said to it")
            outbox.append(message)
            told.set()

        session = _session(context, replica, assigned, note)
        log.info("stage %d, incarnation %d", assigned.stage, assigned.incarnation)
        async with asyncio.TaskGroup() as tasks:
            worker = Worker(session, Forwarder(session, tasks))
            averaging = Averaging(
                context.rpc,
                context.tensors,
                context.compute,
                lambda peer: _find(session, peer),
                tasks,
            )
            parts = self._parts = _SessionParts(session, worker, averaging, outbox, told)
            self._laid_out.set()
            try:
                await replica.begin(assigned.since, keep=assigned.keep)
                tasks.create_task(self._listen(stream, parts))
                tasks.create_task(self._tell(stream, parts))
                tasks.create_task(self._report(parts))
                tasks.create_task(worker.work())
                tasks.create_task(self._say_goodbye(parts))
                await self._become_ready(parts, replica, assigned)
                await asyncio.get_running_loop().create_future()  # until a task ends the session
            finally:
                self._parts = None
                worker.close()

    async def _become_ready(
        self, parts: _SessionParts, replica: Replica, assigned: Assigned
    ) -> None:
        """Get the weights, and say so."""
        if replica.version is None:
            context, session = self._context, parts.session
            request = FetchState(context.run_id, assigned.stage, assigned.since)

            async def donors() -> tuple[Contact, ...]:
                me = context.rpc.contact.peer
                while True:
                    members = session.members.ready(assigned.stage)
                    others = tuple(c for c in map(contact, members) if c.peer != me)
                    if others:
                        return others
                    await asyncio.sleep(DONOR_WAIT_S)

            snapshot = await fetch(context.rpc, donors, request, replica.engine.state_bytes)
            await replica.install(snapshot)
        assert replica.version is not None, "weights were kept, made or fetched"
        parts.worker.moved_to(replica.version)
        parts.session.note(Ready(replica.version, replica.digest))
        if self._context.on_ready is not None:
            self._context.on_ready(assigned.stage, replica.version)

    async def _listen(self, stream: Stream, parts: _SessionParts) -> None:
        """Views, until the trainer ends the run or the link does."""
        session = parts.session
        while True:
            message = await stream.receive()
            match message:
                case View():
                    if session.members.receive(message):
                        session.router.update(session.members.ready(session.scheduler.stage + 1))
                case Finished():
                    raise _SessionOver(message.reason)
                case None:
                    raise LinkLost("the trainer ended this server's part in the run")
                case _:
                    raise BadMessage(f"a {type(message).__name__} from the trainer")

    async def _tell(self, stream: Stream, parts: _SessionParts) -> None:
        """Send notes in the order they were made."""
        while True:
            while parts.outbox:
                message = parts.outbox.popleft()
                await stream.send(message)
                if isinstance(message, Leaving):
                    raise _SessionOver("left")
            parts.told.clear()
            await parts.told.wait()

    async def _report(self, parts: _SessionParts) -> None:
        session = parts.session
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(LOAD_EVERY_S)
            session.note(parts.worker.load(loop.time()))
            session.router.update(
                session.members.ready(session.scheduler.stage + 1)
            )  # the lost may be back

    async def _say_goodbye(self, parts: _SessionParts) -> None:
        await self._leaving.wait()
        parts.session.note(Leaving())

    def _serving(self, run_id: bytes) -> _SessionParts:
        """The present session's parts."""
        if self._parts is None or run_id != self._context.run_id:
            raise NotServing("not in this run now")
        return self._parts

    async def _push(self, stream: Stream, push: Push) -> None:
        await self._serving(push.run).worker.push(stream, push)

    async def _shard(self, stream: Stream, shard: Shard) -> None:
        await self._laid_out.wait()  # the reduction that it belongs to does, too
        await self._serving(shard.run).averaging.shard(stream, shard)

    async def _fetch_state(self, stream: Stream, request: FetchState) -> None:
        parts = self._serving(request.run)
        if self._donor is None or request.stage != parts.session.scheduler.stage:
            raise NotServing(f"stage {request.stage} is not here")
        await self._donor.serve(stream, request)

    async def _fence(self, peer: object, fence: Fence) -> Message:
        return await (await self._ordered(peer, fence.run)).worker.fence(fence)

    async def _reduce(self, peer: object, order: Reduce) -> Message:
        parts, replica = await self._ordered(peer, order.run), self._replica
        assert replica is not None, "a session has weights or room for them"
        me = self._context.rpc.contact.peer
        assert me is not None, "we know our own id"
        if me.raw in order.group:
            await replica.reach(order.step)  # its commit may still be on the way
        parts.session.scheduler.check_reduce(order, me.raw)
        sums = replica.engine.weights.reduction()
        outcome = await parts.averaging.average(order, sums)
        replica.keep_reduction(ReducedGradient(order.step, order.generation, sums, outcome))
        return Reduced(outcome.digest, outcome.squared_norm)

    async def _commit(self, peer: object, order: Commit) -> Message:
        parts, replica = await self._ordered(peer, order.run), self._replica
        assert replica is not None, "a session has weights or room for them"
        parts.session.scheduler.check_commit(order)
        if not await replica.commit(order):
            return Committed(order.step + 1, b"")
        assert replica.version is not None, "it has just moved"
        if parts is self._parts:
            parts.worker.moved_to(replica.version)
            record = parts.session.members.record(_raw(self._context.rpc.contact))
            if record is None or not record.ready:
                parts.session.note(Ready(replica.version, replica.digest))
        return Committed(replica.version, replica.digest)

    async def _ordered(self, peer: object, run_id: bytes) -> _SessionParts:
        """As `_serving`, for what only the trainer may ask.

        An order that overtakes the making of our memory waits: a newcomer that missed a reduction
        would have to begin anew.
        """
        trainer = self._context.trainer.peer
        if trainer is not None and peer != trainer:
            raise Refused("only the trainer may ask this")
        await self._laid_out.wait()
        return self._serving(run_id)


async def _within(limit_s: float, word: Awaitable[Message | None]) -> Message | None:
    try:
        async with asyncio.timeout(limit_s):
            return await word
    except TimeoutError:
        raise Late(f"the trainer did not answer in {limit_s:g} s") from None


def _session(
    context: ServerContext, replica: Replica, assigned: Assigned, note: Callable[[Message], None]
) -> MemberSession:
    run = context.run
    scheduler = Scheduler(assigned.stage, run.stages, assigned.incarnation, run.batch.microbatches)
    router = context.make_router()
    return MemberSession(context, replica.engine, scheduler, MemberView(), router, note)


def _find(session: MemberSession, peer: bytes) -> Contact | None:
    """Where a member of the run is dialled, as far as the view tells."""
    record = session.members.record(peer)
    return contact(record) if record else None


def _raw(who: Contact) -> bytes:
    assert who.peer is not None, "we know our own id"
    return who.peer.raw
