"""Carries out what the coordinator asks of others, and tells it what came of it.

Each errand is a task of the trainer's. Launching tries one server after another, as any sender
does; fencing, reducing and committing are calls to one member.

Units:   seconds on the loop's clock.
Errors:  none of the network's: they are events for the coordinator.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import torch

from p2pswarm.errors import BadMessage, NoRoute, SwarmError
from p2pswarm.flow.signal import Signal
from p2pswarm.swarm.messages.membership import MemberRecord
from p2pswarm.swarm.messages.microbatch import Handed, Push, Undelivered
from p2pswarm.swarm.messages.step import Committed, Fence, Fenced, Reduced
from p2pswarm.swarm.messages.types import REASON_CHARS, Work
from p2pswarm.swarm.push import PushProgress
from p2pswarm.swarm.pusher import Pusher, push_to_any
from p2pswarm.swarm.router import Router
from p2pswarm.swarm.view import Incarnation, contact, incarnation_of
from p2pswarm.tensors.codecs.registry import EncodedTensor
from p2pswarm.trainer import actions as act
from p2pswarm.trainer.context import TrainerContext
from p2pswarm.trainer.coordinator import COMMIT_S, REDUCE_S, Coordinator
from p2pswarm.trainer.fencing import FENCE_S
from p2pswarm.trainer.in_flight import EVALUATION_BASE
from p2pswarm.wire.message import Message

log = logging.getLogger(__name__)


class Dispatcher:
    """The trainer's calls and pushes; `told` is called whenever the coordinator has news."""

    def __init__(
        self,
        context: TrainerContext,
        coordinator: Coordinator,
        tasks: asyncio.TaskGroup,
        told: Callable[[], None],
    ) -> None:
        self._context = context
        self._coordinator = coordinator
        self._tasks = tasks
        self._pump = told
        self._carrier = Pusher(context.rpc, context.tensors)
        self._router = Router(context.rng)
        self._view_changed = Signal()
        self._launched: dict[int, asyncio.Task[None]] = {}

    def follow_view(self) -> None:
        """The membership has changed: route by it."""
        self._router.update(tuple(m.record for m in self._coordinator.members.ready(0)))
        self._view_changed.fire()

    def begin(self, order: act.Launch | act.SendFence | act.SendReduce | act.SendCommit) -> None:
        """Start an errand; the coordinator hears how it went."""
        match order:
            case act.Launch():
                task = self._start(self._launch(order))
                self._launched[order.microbatch] = task
                task.add_done_callback(lambda done: self._forget(order.microbatch, done))
            case act.SendFence():
                for work in order.work:  # we are a sender too: our own attempt ends first
                    if launched := self._launched.get(work.microbatch):
                        launched.cancel()
                self._start(self._fence(order))
            case act.SendReduce():
                self._start(self._reduce(order))
            case act.SendCommit():
                self._start(self._commit(order))

    def stop(self) -> None:
        """Launch nothing more."""
        for task in self._launched.values():
            task.cancel()

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        return self._tasks.create_task(work)

    def _forget(self, microbatch: int, done: asyncio.Task[None]) -> None:
        if self._launched.get(microbatch) is done:
            del self._launched[microbatch]

    def _now_s(self) -> float:
        return asyncio.get_running_loop().time()

    async def _launch(self, order: act.Launch) -> None:
        """Push a microbatch's tokens to a server of stage 0."""
        corpus = self._context.corpus
        if order.work is Work.EVALUATE:
            tokens = corpus.held_out_batch(order.microbatch - EVALUATION_BASE)
        else:
            tokens = corpus.microbatch(order.microbatch)
        encoded = await self._context.tensors.pack([torch.from_numpy(tokens)], "raw")
        push = Push(
            self._context.run_id,
            order.step,
            order.microbatch,
            order.attempt,
            order.work,
            0,
            0,
            order.counting,
            (encoded[0].meta,),
        )

        async def push_once(member: MemberRecord, progress: PushProgress) -> None:
            async def load() -> Sequence[EncodedTensor]:
                to = incarnation_of(member)
                note = Handed(order.step, order.microbatch, order.attempt, to.peer, to.number)
                self._coordinator.handed(to, note, self._now_s())
                self._pump()
                return encoded

            await self._carrier.push(member, push, load, progress)

        nobody = "nobody serves stage 0"
        reason = await push_to_any(self._router, nobody, self._view_changed, push_once)
        if reason is not None:
            log.info("microbatch %d could not be launched: %s", order.microbatch, reason)
            note = Undelivered(order.step, order.microbatch, order.attempt, reason[:REASON_CHARS])
            self._coordinator.undelivered(note, self._now_s())
            self._pump()

    async def _call(self, to: Incarnation, request: Message, timeout_s: float) -> Message:
        member = self._coordinator.members.alive(to)
        if member is None:
            raise NoRoute(f"{to} is gone")
        return await self._context.rpc.call(contact(member.record), request, timeout_s)

    async def _fence(self, order: act.SendFence) -> None:
        to = order.incarnation
        fence = Fence(self._context.run_id, order.step, to.number, order.work)
        try:
            answer = await self._call(to, fence, FENCE_S)
            if not isinstance(answer, Fenced):
                raise BadMessage(f"{type(answer).__name__} where Fenced is due")
        except SwarmError as error:
            self._coordinator.lost(to, f"it did not answer a fence: {error}", self._now_s())
        else:
            self._coordinator.fenced(to, answer.counted, self._now_s())
        self._pump()

    async def _reduce(self, order: act.SendReduce) -> None:
        to, generation = order.incarnation, order.message.generation
        try:
            answer = await self._call(to, order.message, REDUCE_S)
            if not isinstance(answer, Reduced):
                raise BadMessage(f"{type(answer).__name__} where Reduced is due")
        except SwarmError as error:
            log.info("%s could not average: %s", to, error)
            self._coordinator.reduce_failed(to, generation, str(error), self._now_s())
        else:
            self._coordinator.reduced(to, generation, answer, self._now_s())
        self._pump()

    async def _commit(self, order: act.SendCommit) -> None:
        to = order.incarnation
        try:
            answer = await self._call(to, order.message, COMMIT_S)
            if not isinstance(answer, Committed):
                raise BadMessage(f"{type(answer).__name__} where Committed is due")
        except SwarmError as error:
            self._coordinator.lost(to, f"it did not commit: {error}", self._now_s())
        else:
            self._coordinator.committed(to, answer.version, answer.digest, self._now_s())
        self._pump()
