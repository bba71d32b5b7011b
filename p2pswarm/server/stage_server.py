"""A stage server: joins a run, serves one stage of it, and leaves.

Errors:  Unusable when this machine cannot serve the stage; RunEnded when a trainer says so.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from dataclasses import replace

from p2pswarm.base.errors import Busy, LinkLost, NotServing, Refused, RunEnded, SwarmError, Unusable
from p2pswarm.base.exception_group import cause_of
from p2pswarm.base.ids import Contact
from p2pswarm.base.signal import Signal
from p2pswarm.base.tasks import obey_cancellation
from p2pswarm.base.token_bucket import TokenBucket
from p2pswarm.base.transient_errors import DeviceLost
from p2pswarm.net.rpc.base import Stream
from p2pswarm.net.wire.message import Message
from p2pswarm.run.averaging.piece_delivery import AveragingRoadLost
from p2pswarm.run.member_cards import learn_all
from p2pswarm.run.messages.field_limits import REASON_CHARS
from p2pswarm.run.messages.membership import Assigned, Leaving, PrepareStage, View, WillLeave
from p2pswarm.run.messages.microbatch import Push
from p2pswarm.run.messages.state import FetchBase, FetchPieces
from p2pswarm.run.messages.step import CannotAverage, Commit, Committed, Fence, Reduce, Shard
from p2pswarm.run.messages.trainers import Alive
from p2pswarm.run.messages.waits import AskWaits, ServerWaits
from p2pswarm.run.peer_health import AVERAGING_SILENT_S, AVERAGING_WAIT_S
from p2pswarm.run.peer_health_io import WatchedRpc
from p2pswarm.run.state.donor import Donor
from p2pswarm.server.commit_log import ClosedSum, WeightsLost
from p2pswarm.server.leadership import Leadership, Seeker
from p2pswarm.server.lifecycle import JOIN_S, Lifecycle, ServerState
from p2pswarm.server.member_session import ServerContext
from p2pswarm.server.member_session_io import SessionParts, join_of, session_parts
from p2pswarm.server.orders_io import Preparation
from p2pswarm.server.replica import Replica
from p2pswarm.server.waits.own_waits import averaging, committing
from p2pswarm.server.weights_download import fetch_saved, fetch_weights, keep_base, make_replica

log = logging.getLogger(__name__)
NOTHING = PrepareStage(None)
GOODBYE_S = 0.5  # for the trainer to end the stream of a server that leaves
STRANGER_S = 0.2  # a newcomer may know us before we know it
ASKED_EVERY_S, ASKED_BURST = 0.1, 20  # an answer takes some 50 us: a two-thousandth of a processor


class _SessionOver(Exception):
    """The run or this server's part in it is over."""


class StageServer:
    """Serves one stage of one run.

    This file keeps the stream with the trainer and gives every request to the part that serves it:
    `worker` computes what comes in, `forwarder` sends what goes out, `replica` holds the weights.
    `lifecycle` decides when to join, to leave and to give up.
    """

    def __init__(self, context: ServerContext) -> None:
        self._context = context
        self._replica: Replica | None = None
        self._donor: Donor | None = None
        self._base_donor: Donor | None = None
        """Of what is frozen, if the run has some."""
        self._session: SessionParts | None = None
        self._former: SessionParts | None = None
        """Of the session that has ended, until its sum is closed."""
        self._sessions = 0
        """In how many it had the weights; a move is a session of its own."""
        self._questions = TokenBucket(ASKED_EVERY_S, ASKED_BURST)
        """How often it tells what it waits for: everybody may ask in an open run."""
        self._changed, self._to_tell = Signal(), Signal()
        """The lifecycle has moved; the trainer is to be told something."""
        self.leadership = Leadership(context, self._end_session, self._moved)
        """Its vote, and its eye on the coordinator."""
        self.seeker = Seeker(context, self.leadership, self._changed, self._moved)
        """Its search for a trainer."""
        rpc = context.rpc
        self._roads = WatchedRpc(rpc), WatchedRpc(rpc, AVERAGING_SILENT_S, AVERAGING_WAIT_S)
        rpc.serve_stream(Push, self._push)
        rpc.serve_stream(Shard, self._shard)
        rpc.serve_stream(FetchPieces, self._fetch_pieces)
        rpc.serve_stream(FetchBase, self._fetch_base)
        rpc.serve_unary(Fence, self._fence)
        rpc.serve_unary(Reduce, self._reduce)
        rpc.serve_unary(Commit, self._commit)
        rpc.serve_unary(AskWaits, self._waits)

    @property
    def stage(self) -> int | None:
        """The stage that it serves; None before the trainer has said."""
        return self._replica.stage if self._replica else None

    @property
    def version(self) -> int | None:
        """The version of its weights; None while they are not here."""
        return self._replica.version if self._replica else None

    @property
    def weights_share(self) -> float:
        """The share of its stage's weights that is here."""
        return self._replica.weights_share if self._replica else 0.0

    @property
    def newest(self) -> int | None:
        """The version that its weights have, or would have if a commit came."""
        return self._replica.log.newest if self._replica else None

    async def serving(self, sessions: int = 0) -> int:
        """Wait until it has the weights in more sessions than so many; returns in how many."""
        while self._sessions <= sessions:
            await self._changed.wait()
        return self._sessions

    async def run(self) -> str:
        """Serve until the run ends, or `leave` or `give_up` is called; returns why."""
        lifecycle = self.seeker.begin()
        try:
            async with asyncio.TaskGroup() as tasks:
                self.leadership.begin(lifecycle, tasks)
                try:
                    return await self._live(lifecycle)
                finally:
                    self.leadership.close()
        except BaseExceptionGroup as group:
            raise cause_of(group) from None

    async def _live(self, lifecycle: Lifecycle) -> str:
        """Session after session, to the end."""
        loop = asyncio.get_running_loop()
        while (end := lifecycle.end) is None:
            trainer = lifecycle.joining(loop.time())
            self._moved()
            try:
                await self._join(lifecycle, trainer)
            except (RunEnded, Unusable):
                raise
            except SwarmError as error:
                obey_cancellation()
                log.info("out of the run: %s", error)
                lifecycle.session_lost(str(error), loop.time())
                self._moved()
            finally:
                self.leadership.stream_ended(trainer)
            await self.seeker.until(lambda: lifecycle.may_join or lifecycle.end is not None)
        return end.reason

    async def leave(self, grace_s: float) -> None:
        """Admit nothing more, wait at most so long for the end of the step, and tell the trainer.

        The last server of its stage, as the trainer says, waits for another one within that time.
        """
        lifecycle = self.seeker.lifecycle
        if lifecycle is None:
            return
        lifecycle.leave(asyncio.get_running_loop().time(), grace_s)
        if self._session is not None and lifecycle.state is ServerState.STAYING:
            self._session.session.note(WillLeave(grace_s))
        if lifecycle.end is not None:
            self.seeker.end_knock()
        self._moved()
        await self.seeker.until(lambda: bool(lifecycle.end) or lifecycle.must_say_goodbye)

    def _moved(self) -> None:
        """Follow the lifecycle, which has moved, and let everybody know."""
        lifecycle, parts = self.seeker.lifecycle, self._session
        assert lifecycle is not None, "nothing moves before `run`"
        if parts is not None:
            scheduler = parts.session.scheduler
            scheduler.closing = lifecycle.closing
            if lifecycle.closing and scheduler.idle:  # it has nothing that its leaving would void
                lifecycle.step_ended()
        for remark in lifecycle.remarks():
            self._context.say(remark)
        self._changed.fire()
        self._to_tell.fire()  # goodbye, perhaps

    def _end_session(self, reason: str) -> None:
        """Go to another trainer: the session ends, or the try to begin one."""
        if self._session is not None:
            self._session.fail(LinkLost(reason))
        self.seeker.end_knock()
        self._moved()

    async def _join(self, lifecycle: Lifecycle, trainer: Contact) -> None:
        """Keep one stream with a trainer, from `Join` to its end."""
        context, replica = self._context, self._replica
        if self._former is not None and (prepared := await self._former.prepared()) is not None:
            self._take(prepared)
            replica = prepared
        former, self._former = self._former, None
        if former is not None and former.replica is replica:
            replica.log.session_over(await former.closed_sum(void=lifecycle.thrown_out))
        del former  # as `replica`, it holds the memory of a stage that may not be ours any more
        join = await join_of(context, replica, self.leadership.records)
        del replica
        async with contextlib.AsyncExitStack() as blocks:
            opening = blocks.enter_async_context(context.rpc.open_stream(trainer, join, None))
            self.leadership.on_try()
            stream = await self.seeker.knocking(lifecycle.knock_s(), opening)
            if lifecycle.end is not None:
                return
            self.leadership.on_word()
            lifecycle.trainers.reached(asyncio.get_running_loop().time())
            answer = await self.seeker.knocking(JOIN_S, stream.receive())
            learn_all(context.cards, answer, trainer.peer)
            assigned = lifecycle.answered(answer)
            if assigned is None:
                return
            self.leadership.on_word(assigned)
            log.info("stage %d, incarnation %d", assigned.stage, assigned.incarnation)
            try:
                await self._serve(stream, trainer, assigned)
            except BaseExceptionGroup as group:
                error = cause_of(group)
                if not isinstance(error, _SessionOver):
                    raise error from None

    async def _prepared(self, assigned: Assigned) -> Replica:
        """The replica of a stage: the one that is here, or a new one."""
        replica, context = self._replica, self._context
        before = None if replica is None else replica.stage
        if replica is None or before != assigned.stage:
            # free its memory before the new one's is allocated
            replica = self._replica = self._donor = self._base_donor = None
            try:
                engine = await context.compute(lambda: context.make_engine(assigned.stage))
            except SwarmError as error:
                why = f"stage {assigned.stage} cannot be served here: {error}"
                if isinstance(error, DeviceLost):  # no other stage or run would do better
                    raise DeviceLost(why) from error
                if before is not None:
                    self._context = replace(context, stage=before)  # it goes back, and stays
                raise (Unusable if before is None else LinkLost)(why) from error
            replica = make_replica(context, assigned.stage, engine)
            self._take(replica)
        return replica

    def _take(self, replica: Replica) -> None:
        """Serve a stage's weights, and give them to newcomers."""
        self._replica, self._donor = replica, Donor(replica)
        self._base_donor = None if replica.base is None else Donor(replica.base)

    async def _serve(self, stream: Stream, trainer: Contact, assigned: Assigned) -> None:
        """Serve one session; raises a group of the errors that ended it."""
        lifecycle, replica = self.seeker.lifecycle, await self._prepared(assigned)
        assert lifecycle is not None, "a session is a part of `run`"
        async with asyncio.TaskGroup() as tasks:
            parts = self._session = session_parts(
                self._context, replica, trainer, assigned, self._roads, self._to_tell, tasks
            )
            if self._context.facts is not None:
                parts.session.note(self._context.facts)
            try:
                await replica.enter(assigned.era, keep=assigned.keep)
                kept = await replica.begin(
                    assigned.since,
                    keep=assigned.keep,
                    keep_sum=assigned.keep_sum,
                    agreed=assigned.state,
                )
                lifecycle.prepared()
                self._moved()
                tasks.create_task(self._listen(stream, parts, lifecycle, tasks))
                tasks.create_task(self._tell(stream, parts, lifecycle))
                tasks.create_task(parts.tell_states())
                tasks.create_task(parts.worker.work())
                if replica.base is not None:
                    tasks.create_task(keep_base(self._context, replica.base))
                await self._load(parts, assigned, kept)
                lifecycle.loaded()
                self._sessions += 1
                self._moved()
                await parts.failed  # or a task ends the session
            finally:
                self._session, self._former = None, parts
                parts.close()
                if lifecycle.sent_to is None or not parts.prepares_for(lifecycle.sent_to):
                    parts.prepare(NOTHING, tasks)

    async def _load(self, parts: SessionParts, assigned: Assigned, kept: ClosedSum | None) -> None:
        """Get the weights, and begin with the sum that was kept."""
        replica = parts.replica
        if assigned.loads:
            await parts.checkpointing.load(assigned.since)
            session = parts.session
            await fetch_saved(self._context, replica, session.trainer, session.members)
        await fetch_weights(self._context, replica, parts.session.members, parts.keeping.begin)
        assert replica.version is not None, "it was kept, drawn or loaded"
        parts.keeping.end()
        parts.worker.moved_to(replica.version)
        if kept is not None:
            parts.session.scheduler.resume(kept)

    async def _listen(
        self, stream: Stream, parts: SessionParts, lifecycle: Lifecycle, tasks: asyncio.TaskGroup
    ) -> None:
        """Take views, until the trainer ends the run or the link is lost."""
        while (part := lifecycle.on_message(await parts.checkpointing.receive(stream))) is not None:
            self.leadership.on_word(part)
            if isinstance(part, View) and parts.session.members.receive(part):
                parts.members_changed()
            elif isinstance(part, PrepareStage):
                parts.prepare(part, tasks)
            if lifecycle.closing or not isinstance(part, Alive):  # a word that moves nothing
                self._moved()
        raise _SessionOver

    async def _tell(self, stream: Stream, parts: SessionParts, lifecycle: Lifecycle) -> None:
        """Tell the trainer what there is to tell, and goodbye, which ends the stream.

        Until then the orders that cross the goodbye are carried out. To refuse one would be a
        fault in the eyes of the trainer, because the answer may overtake the goodbye.
        """
        await parts.tell(stream, lifecycle, self.leadership.unheard_s, self._to_tell)
        await stream.send(Leaving())
        await asyncio.sleep(GOODBYE_S)
        lifecycle.said_goodbye()
        self._moved()
        raise _SessionOver

    def _serving(self, run_id: bytes) -> SessionParts:
        """The parts of the present session."""
        if self._session is None or run_id != self._context.run_id:
            raise NotServing("not in this run now")
        return self._session

    async def _in_order(self, run_id: bytes) -> SessionParts:
        """As `_serving`, for a message that may come before the assignment that it follows."""
        lifecycle = self.seeker.lifecycle
        while lifecycle is not None and lifecycle.orders_wait:
            await self._changed.wait()
        return self._serving(run_id)

    async def _ordered(self, peer: object, run_id: bytes) -> SessionParts:
        """As `_in_order`, for an order that only the trainer may give."""
        parts = await self._in_order(run_id)
        trainer = parts.session.trainer.peer
        if trainer is not None and peer != trainer:
            raise Refused("only the trainer may ask this")
        return parts

    def _prepares(self, peer: object, order: Reduce | Commit, stage: int) -> Preparation:
        """The stage that is prepared, by the present membership or the one that has just ended."""
        parts = self._session or self._former
        if parts is None or order.run != self._context.run_id:
            raise NotServing("not in this run now")
        if parts.session.trainer.peer not in (None, peer):
            raise Refused("only the trainer may ask this")
        return parts.prepares(stage, order.incarnation)

    async def _push(self, stream: Stream, push: Push) -> None:
        parts = self._serving(push.run)
        async with parts.orders.carrying_out(lambda: parts.worker.cut_short(push)):
            await parts.worker.push(stream, push)

    async def _shard(self, stream: Stream, shard: Shard) -> None:
        latest = self._session or self._former  # what is prepared outlives its session
        beside = None if latest is None else latest.preparation
        if beside is not None and beside.gets_from(stream.peer.raw):
            await beside.shard(stream, shard)
            return
        parts = await self._in_order(shard.run)
        async with parts.orders.carrying_out(), parts.observed.receiving(shard.step):
            await parts.averaging.shard(stream, shard)

    async def _fetch_pieces(self, stream: Stream, request: FetchPieces) -> None:
        self._require_newcomer(stream, request)
        assert self._donor is not None, "there is a replica"
        await self._donor.serve(stream)

    async def _fetch_base(self, stream: Stream, request: FetchBase) -> None:
        self._require_newcomer(stream, request)
        if self._base_donor is None:
            raise NotServing("nothing of this run is frozen")
        await self._base_donor.serve(stream)

    def _require_newcomer(self, stream: Stream, request: FetchPieces | FetchBase) -> None:
        """Refuse who asks for another stage, and who is neither a member nor the trainer."""
        session = self._serving(request.run).session
        if self._donor is None or request.stage != session.scheduler.stage:
            raise NotServing(f"stage {request.stage} is not here")
        if stream.peer != session.trainer.peer and session.members.find(stream.peer.raw) is None:
            raise Busy("only members of the run may ask this", STRANGER_S)

    async def _fence(self, peer: object, fence: Fence) -> Message:
        parts = await self._ordered(peer, fence.run)
        async with parts.orders.carrying_out():
            return parts.worker.fence(fence)

    async def _reduce(self, peer: object, order: Reduce) -> Message:
        if order.observed is not None:
            return await self._prepares(peer, order, order.observed).reduce(order)
        parts = await self._ordered(peer, order.run)
        me, replica = parts.session.context.me, parts.replica
        async with self._moving(parts):
            if me in order.group:
                await replica.reached(order.step)  # its commit may still be on the way
            await replica.committed_before(order.step)
            parts.session.scheduler.reduce(order, me)
            clock, waits = asyncio.get_running_loop().time, parts.session.waits
            with averaging(waits, order.step, clock):
                try:
                    outcome = await parts.average(order)
                except AveragingRoadLost as error:
                    return CannotAverage(error.peer, str(error)[:REASON_CHARS])
                return await replica.answer(order.step, outcome)

    async def _commit(self, peer: object, order: Commit) -> Message:
        if order.observed is not None:
            return await self._prepares(peer, order, order.observed).commit(order)
        parts = await self._ordered(peer, order.run)
        parts.session.scheduler.check_incarnation(order.incarnation)  # its log judges the rest
        parts.session.codecs.on_codecs(order.step + 1, order.codecs)
        parts.observed.decided(order.step)
        clock, waits = asyncio.get_running_loop().time, parts.session.waits
        seconds = waits.clock.lap(order.step, clock())
        async with self._moving(parts):
            with committing(waits, clock):
                applied = await parts.replica.commit(order)
        return Committed(order.step + 1, applied, seconds)

    def _waits(self, peer: object, question: AskWaits) -> ServerWaits:
        """Answer what this server waits for; Busy to strangers if they ask too often."""
        now_s = asyncio.get_running_loop().time()
        if question.run != self._context.run_id:
            raise NotServing("not in this run now")
        lifecycle, parts = self.seeker.lifecycle, self._session
        trainer = None if parts is None else parts.session.trainer.peer
        if peer != trainer and not self._questions.take(now_s):
            raise Busy("asked too often", ASKED_EVERY_S)
        state = "has not begun" if lifecycle is None else lifecycle.state.value
        if parts is None:
            return ServerWaits(None, self.version, state)
        return parts.waits(state, self.leadership.unheard_s(), now_s)

    @contextlib.asynccontextmanager
    async def _moving(self, parts: SessionParts) -> AsyncIterator[None]:
        """Run a block that may change the weights or lose them, or find the device lost."""
        try:
            async with parts.orders.carrying_out():
                yield
        except (WeightsLost, Unusable) as error:
            parts.fail(error)
            raise
        finally:
            self._weights_moved(parts)  # even if nobody waits for the answer now

    def _weights_moved(self, parts: SessionParts) -> None:
        """Begin the next step, if a commit has made new weights."""
        lifecycle, version = self.seeker.lifecycle, parts.replica.version
        if lifecycle is None or parts is not self._session or version is None:
            return
        if version != parts.session.scheduler.version:
            parts.worker.moved_to(version)
            if not self._context.run.delay or parts.session.scheduler.idle:
                lifecycle.step_ended()
            self._moved()
