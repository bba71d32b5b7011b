"""Carries what a stage computes to the next one, or back to the one before.

Forward, the router chooses. Backward there is but one way: to the server that the microbatch came
from. What cannot be carried is told to the trainer.

Room is asked for while the microbatch is still computed: once two of a kind have had the same size,
the next is announced with it. That hides one round trip of every hop.

Units:   seconds.
Errors:  none: what fails is told to the trainer.
"""

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, replace
from typing import Any

from p2pswarm.compute.base import Key
from p2pswarm.server.scheduler import WorkItem
from p2pswarm.server.session import MemberSession
from p2pswarm.swarm.messages.membership import MemberRecord
from p2pswarm.swarm.messages.microbatch import Handed, Push, Undelivered
from p2pswarm.swarm.messages.types import REASON_CHARS, Work
from p2pswarm.swarm.push import OnlyPeer, PushProgress
from p2pswarm.swarm.pusher import Pusher, push_to_any
from p2pswarm.tensors.codecs.base import Tensor
from p2pswarm.tensors.codecs.registry import EncodedTensor
from p2pswarm.tensors.meta import TensorMeta, travels_alone

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _ExpectedSize:
    """What the last tensor of a kind was announced with."""

    meta: TensorMeta
    steady: bool
    """The one before had the same; so will the next."""


class _PendingTensor:
    """A tensor that is being computed, and what may be said of it before."""

    def __init__(self, forwarder: "Forwarder", made: asyncio.Future[Tensor], work: Work) -> None:
        self._forwarder = forwarder
        self._made = made
        self._backward = work is Work.BACKWARD
        self._parcels: list[EncodedTensor] = []

    async def meta(self) -> TensorMeta:
        """To announce it with: foreseen, or read off the tensor."""
        size = self._forwarder.sizes.get(self._backward)
        if not self._made.done() and size is not None and size.steady:
            return size.meta
        return (await self.encoded())[0].meta

    async def encoded(self) -> list[EncodedTensor]:
        """The tensor, encoded once it is there."""
        made = await self._made
        if not self._parcels:
            self._parcels = await self._forwarder.pack(made, backward=self._backward)
        return self._parcels


class Forwarder:
    """Outgoing pushes of one session, each a task of the session's group."""

    def __init__(self, session: MemberSession, tasks: asyncio.TaskGroup) -> None:
        self._session = session
        self._tasks = tasks
        self._going: dict[asyncio.Task[None], Key] = {}
        self._carrier = Pusher(session.context.rpc, session.context.tensors)
        self.sizes: dict[bool, _ExpectedSize] = {}
        """By direction: forward False, backward True."""

    def onward(self, item: WorkItem, tokens: Tensor) -> asyncio.Future[Tensor]:
        """Hand a microbatch to the next stage, as soon as the future has its activation."""
        made: asyncio.Future[Tensor] = asyncio.get_running_loop().create_future()
        self._start(item, self._onward(item, tokens, _PendingTensor(self, made, Work.FORWARD)))
        return made

    def back(self, item: WorkItem) -> asyncio.Future[Tensor]:
        """Hand a gradient to where `item`'s forward came from, as soon as the future has it."""
        made: asyncio.Future[Tensor] = asyncio.get_running_loop().create_future()
        self._start(item, self._back(item, _PendingTensor(self, made, Work.BACKWARD)))
        return made

    def drop_fenced(self, microbatch: int, attempt: int) -> None:
        """Stop carrying attempts up to this one."""
        for task, key in tuple(self._going.items()):
            if key[0] == microbatch and key[1] <= attempt:
                task.cancel()

    async def pack(self, made: Tensor, *, backward: bool) -> list[EncodedTensor]:
        """Encode for the way, and remember the size."""
        codecs = self._session.context.run.codecs
        codec_name = codecs.gradient if backward else codecs.activation
        encoded = await self._session.context.tensors.pack([made], codec_name)
        meta, last = encoded[0].meta, self.sizes.get(backward)
        steady = last is not None and last.meta == meta and travels_alone(meta)
        self.sizes[backward] = _ExpectedSize(meta, steady)
        return encoded

    def _start(self, item: WorkItem, work: Coroutine[Any, Any, None]) -> None:
        task = self._tasks.create_task(work)
        self._going[task] = item.key
        task.add_done_callback(self._going.pop)

    async def _onward(self, item: WorkItem, tokens: Tensor, pending: _PendingTensor) -> None:
        session = self._session
        first = await session.context.tensors.pack([tokens], "raw")
        stage = session.scheduler.stage + 1

        async def push_once(member: MemberRecord, progress: PushProgress) -> None:
            metas = (first[0].meta, await pending.meta())
            push = replace(item.push, stage=stage, tensors=metas)

            async def load() -> Sequence[EncodedTensor]:
                self._note_handed(push, member)
                encoded = [*first, *await pending.encoded()]
                session.scheduler.handed(item.key, member.peer)
                return encoded

            session.scheduler.handed(item.key, member.peer)  # what rides inline needs no grant
            await self._carrier.push(member, push, load, progress)

        nobody = f"nobody serves stage {stage}"
        reason = await push_to_any(session.router, nobody, session.view_changed, push_once)
        if reason is not None:
            self._undelivered(item, reason)

    async def _back(self, item: WorkItem, pending: _PendingTensor) -> None:
        session = self._session
        stage = session.scheduler.stage - 1

        async def push_once(member: MemberRecord, progress: PushProgress) -> None:
            metas = (await pending.meta(),)
            push = replace(item.push, work=Work.BACKWARD, stage=stage, tensors=metas)
            await self._carrier.push(member, push, pending.encoded, progress)

        sender = OnlyPeer(session.members, item.sender)
        nobody = "the server that waits for the gradient is gone"
        reason = await push_to_any(sender, nobody, session.view_changed, push_once)
        if reason is not None:
            self._undelivered(item, reason)

    def _note_handed(self, push: Push, to: MemberRecord) -> None:
        self._session.note(
            Handed(push.step, push.microbatch, push.attempt, to.peer, to.incarnation)
        )

    def _undelivered(self, item: WorkItem, reason: str) -> None:
        push = item.push
        log.info("microbatch %d attempt %d: %s", push.microbatch, push.attempt, reason)
        self._session.note(
            Undelivered(push.step, push.microbatch, push.attempt, reason[:REASON_CHARS])
        )
