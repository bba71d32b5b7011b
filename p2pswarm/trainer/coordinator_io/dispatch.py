"""Carries out the coordinator's orders to servers, and tells it the outcome."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, TypeVar

import torch

from p2pswarm.base.errors import BadHandshake, DialFailed, LinkLost, NoRoute, SwarmError, Unusable
from p2pswarm.base.signal import Signal
from p2pswarm.data.samples.corpus import Corpus
from p2pswarm.net.wire.message import Message
from p2pswarm.run.member_view import Incarnation, contact, incarnation_of
from p2pswarm.run.messages.membership import MemberRecord, StillThere
from p2pswarm.run.messages.microbatch import Handed
from p2pswarm.run.push import PushProgress, keeper_among, keepers_for
from p2pswarm.run.push_io import Pusher, push_to_any
from p2pswarm.run.router import Router
from p2pswarm.tensors.codecs.registry import EncodedTensor
from p2pswarm.trainer.coordinator.coordinator import Coordinator
from p2pswarm.trainer.coordinator_io.server_reports import (
    Call,
    Order,
    first_push,
    limit_s,
    on_answer,
    samples_of,
    targets_of,
    undelivered_note,
)
from p2pswarm.trainer.coordinator_io.trainer_context import TrainerContext
from p2pswarm.trainer.reports import actions as act

log = logging.getLogger(__name__)
Read = TypeVar("Read")
PROBE_S = 4.0  # as long as anybody waits for the answer


class Dispatcher:
    """The trainer's calls and pushes; `pump` is called after every word to the coordinator.

    Each order is a task of the trainer. A launch tries one server after another, as any push does.
    A fence, a reduction and a commit are calls to one member. `server_reports` has the messages of
    each.
    """

    def __init__(
        self,
        context: TrainerContext,
        coordinator: Coordinator,
        tasks: asyncio.TaskGroup,
        pump: Callable[[], None],
        now_s: Callable[[], float],
    ) -> None:
        self._context = context
        self._coordinator = coordinator
        self._tasks = tasks
        self._pump = pump
        self._now_s = now_s
        self._pusher = Pusher(context.rpc, context.tensors)
        self._router = Router(context.rng)
        self._view_changed = Signal()
        self._launched: dict[int, dict[asyncio.Task[None], int]] = {}
        """The pushes of each microbatch that are not over, with their attempts."""
        self._reading = asyncio.Lock()
        """One thread makes samples at a time: a corpus keeps what it planned last."""
        self._under_way: dict[asyncio.Task[None], Order] = {}
        self._pushing: dict[asyncio.Timeout, Incarnation] = {}
        """Our pushes and calls to one server each; one ends when its deadline is moved to now."""

    def follow_view(self) -> None:
        """Give the router the new membership; end what we ask of those that are gone."""
        self._router.update(tuple(m.record for m in self._coordinator.members.ready(0)))
        for scope, to in self._pushing.items():
            if self._coordinator.members.alive(to) is None and not scope.expired():
                scope.reschedule(asyncio.get_running_loop().time())
        self._view_changed.fire()

    def begin(self, order: Order) -> None:
        """Start an order; the coordinator is told its outcome."""
        if isinstance(order, act.Launch):
            self._router.on_gradients(self._coordinator.timeout.median_s)
            former = self._launched.setdefault(order.microbatch, {})
            for task in former:
                task.cancel()
            task = self._start(order, self._launch(order, tuple(former)))
            former[task] = order.attempt
        elif isinstance(order, act.CountTargets):
            self._start(order, self._count(order))
        else:
            self._start(order, self._ask(order))

    def cancel(self, order: act.CancelLaunch) -> None:
        """End our own push of an attempt that is given up."""
        for task, attempt in tuple(self._launched.get(order.microbatch, {}).items()):
            if attempt <= order.attempt:
                task.cancel()

    def probe(self, order: act.Probe) -> None:
        """Ask a server that was lost whether it is there."""
        self._tasks.create_task(self._probe(order))

    def stop(self, *, commits: bool) -> None:
        """Cancel what is under way, oldest first; commits only if `commits`, else they go on."""
        for task, order in list(self._under_way.items()):
            if commits or not isinstance(order, act.SendCommit):
                task.cancel()

    def _start(self, order: Order, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._tasks.create_task(work)
        self._under_way[task] = order
        task.add_done_callback(self._forget)
        return task

    def _forget(self, task: asyncio.Task[None]) -> None:
        order = self._under_way.pop(task)
        if isinstance(order, act.Launch):
            pushes = self._launched[order.microbatch]
            del pushes[task]
            if not pushes:
                del self._launched[order.microbatch]

    async def _count(self, order: act.CountTargets) -> None:
        """Count the targets of microbatches in our text; the coordinator is told."""
        numbers = order.microbatches
        targets = await self._read(lambda corpus: targets_of(numbers, corpus))
        self._coordinator.on_targets(order.step, targets, self._now_s())
        self._pump()

    async def _read(self, read: Callable[[Corpus], Read]) -> Read:
        """Read the text; what takes time is made beside the event loop."""
        corpus = self._context.corpus
        try:
            if not corpus.blocks:
                return read(corpus)
            async with self._reading:
                return await asyncio.to_thread(read, corpus)
        except Unusable as reason:
            self._context.text_lost(reason)
            never: asyncio.Future[Read] = asyncio.get_running_loop().create_future()
            return await never  # until the trainer is left

    async def _launch(self, order: act.Launch, former: Sequence[asyncio.Task[None]]) -> None:
        """Push a microbatch's tokens to a server of stage 0, once the `former` pushes are over."""
        if former:
            await asyncio.wait(former)
        context, coordinator = self._context, self._coordinator
        samples = torch.from_numpy(
            await self._read(lambda corpus: samples_of(order.microbatch, corpus))
        )
        encoded = await context.tensors.pack([samples], "raw")
        first = first_push(order, context.run_id, encoded[0].meta)
        servers = tuple(m.record for m in coordinator.members.ready(0))
        keeper = keeper_among(order.keepers, 0, servers)

        async def push_once(member: MemberRecord, progress: PushProgress) -> None:
            asked = progress.asks_keeper
            push = replace(first, keepers=keepers_for(order.keepers, 0, asked=asked))

            async def load() -> Sequence[EncodedTensor]:
                what = order.step, order.microbatch, order.attempt
                note = Handed(*what, member.peer, member.incarnation)
                coordinator.on_handoff(incarnation_of(member), note, self._now_s())
                self._pump()
                return encoded

            async with self._while_alive(incarnation_of(member)):
                await self._pusher.push(member, push, load, progress)

        nobody = "nobody serves stage 0"
        reason = await push_to_any(self._router, nobody, self._view_changed, push_once, keeper)
        if reason is not None:
            log.info("microbatch %d could not be launched: %s", order.microbatch, reason)
            coordinator.on_delivery_failure(undelivered_note(order, reason), self._now_s())
            self._pump()

    @asynccontextmanager
    async def _while_alive(self, to: Incarnation) -> AsyncIterator[None]:
        """Run a block; if the incarnation ends first, the block ends with LinkLost.

        An evicted server's link may last for another 15 s, and its view does not reach it.
        """
        scope = asyncio.timeout(None)
        self._pushing[scope] = to
        try:
            async with scope:
                yield
        except TimeoutError as error:
            if isinstance(error, SwarmError) or not scope.expired():
                raise
            raise LinkLost(f"{to} is gone") from None
        finally:
            del self._pushing[scope]

    async def _ask(self, order: Call) -> None:
        member = self._coordinator.members.alive(order.incarnation)
        try:
            if member is None:
                raise NoRoute(f"{order.incarnation} is gone")
            async with self._while_alive(order.incarnation):
                answer: Message | SwarmError = await self._context.rpc.call(
                    contact(member.record), order.message, limit_s(order)
                )
        except SwarmError as error:
            log.info("%s did not carry out an order: %s", order.incarnation, error)
            answer = error
        on_answer(self._coordinator, order, answer, self._now_s())
        self._pump()

    async def _probe(self, order: act.Probe) -> None:
        one, reason = incarnation_of(order.member), None
        try:
            await self._context.rpc.call(contact(order.member), StillThere(), PROBE_S)
        except (DialFailed, BadHandshake) as error:
            reason = str(error)
        except SwarmError as error:  # it may be on its way to us, or we to it
            log.info("%s does not say whether it is there: %s", one, error)
            return
        self._coordinator.on_probe_answer(one, reason, self._now_s())
        self._pump()
