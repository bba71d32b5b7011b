"""Pushes what a stage computes to the next stage, or back to the one before."""

import asyncio
import functools
import logging
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from p2pswarm.base.errors import Refused, SwarmError
from p2pswarm.models.base import Bundle
from p2pswarm.models.compute.base import Key
from p2pswarm.models.compute.torch_device import computing
from p2pswarm.net.rpc.base import Rpc
from p2pswarm.run.messages.field_limits import Obstacle, Work
from p2pswarm.run.messages.membership import MemberRecord
from p2pswarm.run.messages.microbatch import Push
from p2pswarm.run.push import OnlyPeer, PushProgress, keeper_among, keepers_for
from p2pswarm.run.push_io import Pusher, push_to_any
from p2pswarm.server.boundary_cache import WorkItem
from p2pswarm.server.member_session import MemberSession
from p2pswarm.server.work_plan import (
    Direction,
    GrantWait,
    Metas,
    OutgoingBundle,
    edge_to,
    handed,
    metas_of,
    undelivered,
)
from p2pswarm.tensors.codecs.base import Tensor, Unencodable
from p2pswarm.tensors.codecs.meta import bytes_of
from p2pswarm.tensors.codecs.registry import EncodedTensor

log = logging.getLogger(__name__)


class _PendingBundle:
    """A bundle that is being computed."""

    def __init__(
        self,
        session: MemberSession,
        direction: Direction,
        push: Push,
        made: asyncio.Future[Bundle],
    ) -> None:
        """`push`: the one that the bundle answers, whose microbatch it is of."""
        self._session = session
        self._made = made
        self.outgoing = OutgoingBundle(direction, push)

    @property
    def obstacle(self) -> Obstacle:
        """The reason why it cannot be encoded: it is not finite, or its codec does not suit it."""
        values = [x for x in self._made.result().values() if x.is_floating_point()]
        finite = all(bool(x.isfinite().all()) for x in values)
        return Obstacle.WORK if finite else Obstacle.NOT_FINITE

    async def metas(self, to: MemberRecord) -> Metas:
        """The announcement: foreseen, or the metas of the encoded tensors."""
        foreseen = self.outgoing.forecast.foreseen
        if not self._made.done() and foreseen is not None:
            return foreseen
        return metas_of(await self.encoded(to))

    @contextmanager
    def settled(self) -> Iterator[None]:
        """Guard a push of it, and note whether the peer took it."""
        try:
            yield
        except SwarmError as error:
            self.outgoing.failed(error)
            raise
        self.outgoing.taken()

    @contextmanager
    def waiting(self, wait: GrantWait) -> Iterator[None]:
        """Tell the trainer, once it is computed, if it waits for a server."""
        loop = asyncio.get_running_loop()
        timer: asyncio.TimerHandle | None = None

        def plan() -> None:
            nonlocal timer
            if (due_s := wait.next_deadline_s()) is not None:
                timer = loop.call_at(due_s, due)

        def due() -> None:
            if (note := wait.on_deadline(loop.time())) is not None:
                self._session.note(note)
            plan()

        def computed(_made: asyncio.Future[Bundle]) -> None:
            wait.on_result(loop.time())
            plan()

        self._made.add_done_callback(computed)
        try:
            yield
        finally:
            self._made.remove_done_callback(computed)
            wait.on_end()
            if timer is not None:
                timer.cancel()

    async def encoded(self, to: MemberRecord) -> list[EncodedTensor]:
        """The bundle as it goes to one peer, once it is computed."""
        made = await self._made
        encoded = self.outgoing.encoded_for(edge_to(to))
        if encoded is not None:
            return encoded
        todo = self.outgoing.begin(edge_to(to), self._session.members.members, made)
        try:
            with computing():
                packed = await self._session.context.tensors.pack_bundle(todo)
        except Refused as error:  # it is ours: the peer is not to be blamed for it
            raise Unencodable(str(error)) from error
        return self.outgoing.finish(packed)


_Push = Callable[[_PendingBundle], Coroutine[Any, Any, str | None]]
"""Begins a push; a task that is cancelled before it starts leaves no coroutine behind."""


class Forwarder:
    """Outgoing pushes of one session, each a task of the session's group.

    Forward, the router chooses the server. Backward there is only one: the server that the
    microbatch came from. `work_plan.py` decides how a result is announced and encoded.

    The trainer is told of a push that failed.
    """

    def __init__(
        self,
        session: MemberSession,
        rpc: Rpc,
        tasks: asyncio.TaskGroup,
        is_broken: Callable[[bytes], bool],
    ) -> None:
        """`is_broken`: nothing comes from a peer at present."""
        self._is_broken = is_broken
        self._session = session
        self._tasks = tasks
        self._going: dict[asyncio.Task[None], Key] = {}
        loop, waits = asyncio.get_running_loop(), session.waits
        self._pusher = Pusher(
            rpc,
            session.context.tensors,
            lambda begins: waits.on_sending(loop.time(), begins=begins),
        )
        down, up = session.codecs.usual
        self._forward = Direction(up, session.codecs.gives)
        self._backward = Direction(down, session.codecs.returns)

    def onward(self, item: WorkItem, tokens: Tensor) -> asyncio.Future[Bundle]:
        """Push a microbatch to the next stage, as soon as the returned future has its bundle."""
        return self._start(item, self._forward, functools.partial(self._onward, item, tokens))

    def back(self, item: WorkItem) -> asyncio.Future[Bundle]:
        """Push a gradient to the sender of `item`, as soon as the returned future has it."""
        return self._start(item, self._backward, functools.partial(self._back, item))

    def drop_fenced(self, microbatch: int, attempt: int) -> None:
        """Stop pushing the attempts of a microbatch up to this one."""
        for task, key in tuple(self._going.items()):
            if key[0] == microbatch and key[1] <= attempt:
                task.cancel()

    def _start(self, item: WorkItem, way: Direction, work: _Push) -> asyncio.Future[Bundle]:
        made: asyncio.Future[Bundle] = asyncio.get_running_loop().create_future()
        pending = _PendingBundle(self._session, way, item.push, made)
        task = self._tasks.create_task(self._push_and_report(item, work, pending))
        self._going[task] = item.key
        task.add_done_callback(self._going.pop)
        return made

    @contextmanager
    def _offered(self, key: Key, peer: bytes) -> Iterator[None]:
        """Run a block in which a peer is to take a result."""
        waits = self._session.waits
        waits.on_offer(key, peer, asyncio.get_running_loop().time())
        try:
            yield
        finally:
            waits.on_offer_end(key, peer)

    async def _push_and_report(self, item: WorkItem, work: _Push, pending: _PendingBundle) -> None:
        """Do `work`; tell the trainer the reason if it failed."""
        obstacle = Obstacle.ROAD
        try:
            reason = await work(pending)
        except Unencodable as error:
            pending.outgoing.failed(error)
            reason, obstacle = str(error), pending.obstacle
        if reason is not None:
            log.info("microbatch %d attempt %d: %s", *item.key, reason)
            self._session.note(undelivered(item.push, reason, obstacle))

    async def _onward(self, item: WorkItem, tokens: Tensor, pending: _PendingBundle) -> str | None:
        session = self._session
        stage = session.scheduler.stage
        first = await session.context.tensors.pack([tokens], "raw")

        keeper = keeper_among(item.push.keepers, stage + 1, session.members.ready(stage + 1))
        if keeper is not None and self._is_broken(keeper.peer):
            keeper = None

        wait = GrantWait()

        async def push_once(member: MemberRecord, progress: PushProgress) -> None:
            metas = metas_of(first) + await pending.metas(member)
            keepers = keepers_for(item.push.keepers, stage + 1, asked=progress.asks_keeper)
            push = replace(item.push, stage=stage + 1, tensors=metas, keepers=keepers)

            async def load() -> Sequence[EncodedTensor]:
                wait.on_end()
                session.note(handed(push, member))
                encoded = [*first, *await pending.encoded(member)]
                session.scheduler.handed(item.key, member.peer)
                return encoded

            wait.on_request(handed(push, member))
            session.scheduler.handed(item.key, member.peer)  # inline tensors go before a grant
            with pending.settled(), self._offered(item.key, member.peer):
                await self._pusher.push(member, push, load, progress)
            session.meter.on_output(bytes_of(push.tensors))
            if progress.times is not None and not progress.asks_keeper:
                nbytes = bytes_of(push.tensors)
                session.meter.up.on_transfer(progress.times.transfer(member.peer, nbytes))

        nobody = f"nobody serves stage {stage + 1}"
        changed = session.view_changed
        with pending.waiting(wait):
            return await push_to_any(session.router, nobody, changed, push_once, keeper)

    async def _back(self, item: WorkItem, pending: _PendingBundle) -> str | None:
        session = self._session

        async def push_once(member: MemberRecord, progress: PushProgress) -> None:
            metas = await pending.metas(member)
            below = session.scheduler.stage - 1
            push = replace(item.push, work=Work.BACKWARD, stage=below, tensors=metas)
            load = functools.partial(pending.encoded, member)
            with pending.settled(), self._offered(item.key, member.peer):
                await self._pusher.push(member, push, load, progress)
            session.meter.on_output(bytes_of(push.tensors))
            if progress.times is not None:
                nbytes = bytes_of(push.tensors)
                session.meter.down.on_transfer(progress.times.transfer(member.peer, nbytes))

        sender = OnlyPeer(session.members, item.sender)
        nobody = "the server that waits for the gradient is gone"
        return await push_to_any(sender, nobody, session.view_changed, push_once)
