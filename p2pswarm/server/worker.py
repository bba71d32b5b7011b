"""Receives pushes and computes them, one at a time, in the order that the scheduler says.

Errors:  Busy, NotServing, TooLarge or BadMessage to the sender; the trainer is told of a microbatch
         that cannot be computed.
"""

import asyncio
import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from p2pswarm.base.errors import NotComputed, NotServing, SwarmError, Unusable
from p2pswarm.models.base import Bundle
from p2pswarm.models.compute.base import Key
from p2pswarm.models.compute.sketch import Sketcher
from p2pswarm.models.compute.torch_device import computing
from p2pswarm.net.rpc.base import Stream
from p2pswarm.run.messages.balance import Capacity
from p2pswarm.run.messages.field_limits import Work
from p2pswarm.run.messages.membership import Load
from p2pswarm.run.messages.microbatch import Push, Receipt, Sketch
from p2pswarm.run.messages.step import Fence, Fenced
from p2pswarm.server.boundary_cache import KeptAnswer, ResultRoute, WorkItem
from p2pswarm.server.forwarder import Forwarder
from p2pswarm.server.member_session import MemberSession
from p2pswarm.server.note_queue import GradientReturns
from p2pswarm.server.scheduler import WorkInputs
from p2pswarm.server.work_plan import (
    NOBODY_ANSWERS,
    Made,
    WorkPlan,
    bundle_in,
    cut_short,
    load_of,
    loss_in,
    not_computed,
    plan,
    refusal_of,
    refuse_cut_off,
    refuse_stranger,
    sketch_of,
)
from p2pswarm.tensors.codecs.meta import bytes_of


@dataclass(frozen=True, slots=True)
class _PendingInput:
    """The tensors of an item, and the sender's task that waits for its receipt."""

    inputs: WorkInputs
    bytes_s: float
    """Time of the last byte."""
    arrived_s: float
    """Time at which they were decoded."""
    waiting: asyncio.Future[Receipt]


class Worker:
    """Incoming pushes and the compute loop of one session.

    The bytes of a microbatch come while the one before is computed. The forwarder sends its result
    while the next is computed. One thread computes, and nothing else touches weights and sums.
    """

    def __init__(
        self,
        session: MemberSession,
        forwarder: Forwarder,
        tasks: asyncio.TaskGroup,
        is_broken: Callable[[bytes], bool],
    ) -> None:
        """`is_broken`: nothing comes from a peer at present."""
        self._tasks = tasks
        self._session = session
        self._forwarder = forwarder
        self._is_broken = is_broken
        self._jobs: dict[WorkItem, _PendingInput] = {}
        self._wake = asyncio.Event()
        run = session.context.run
        self._sketcher = Sketcher(session.context.run_id) if run.spot_check_share else None
        self._state_bytes = session.engine.state_bytes
        self._returns = GradientReturns()
        self._to_drop: list[Key] = []
        """Inputs of attempts that are over; the compute thread forgets them next."""

    async def push(self, stream: Stream, push: Push) -> None:
        """Serve one stream with a sender: grant, bytes, compute, receipt."""
        session, loop = self._session, asyncio.get_running_loop()
        scheduler, sender = session.scheduler, stream.peer.raw
        refuse_stranger(push, sender, session.trainer.peer, session.members.record(sender))
        refuse_cut_off(push, session.members.ready(scheduler.stage + 1), self._is_broken)
        if push.work != Work.BACKWARD and session.router.nobody_reached(loop.time()):
            raise NotServing(NOBODY_ANSWERS)
        item = scheduler.admit(push, sender)
        try:
            keys = scheduler.expected.keys(push)
            async with session.context.tensors.accept(stream, push.tensors, keys) as coming:
                await stream.send(coming.grant)
                await coming.arrival()
                bytes_s = loop.time()
                with computing():
                    tensors = await coming.tensors()
                inputs = scheduler.expected.inputs(push, tensors)
            scheduler.arrived(item, loop.time())
            session.waits.on_input(loop.time())
            if item.work is Work.BACKWARD:
                self._returns.on_return(item.key, loop.time())
        finally:
            scheduler.withdraw(item)
        if (kept := scheduler.answered(item)) is not None:
            self._pass_on(item, inputs, kept)
            await stream.send(Receipt(0.0, 0.0))
            return
        job = self._jobs[item] = _PendingInput(inputs, bytes_s, loop.time(), loop.create_future())
        self.wake()
        await stream.send(await job.waiting)

    @property
    def away(self) -> Mapping[Key, float]:
        """Since when microbatches wait for their gradients."""
        return self._returns.away

    def wake(self) -> None:
        """Let `work` look for something to compute."""
        self._wake.set()

    async def work(self) -> None:
        """Compute what comes, until the session ends."""
        session, loop = self._session, asyncio.get_running_loop()
        while True:
            if self._to_drop:
                keys, self._to_drop = tuple(self._to_drop), []
                await session.context.compute(functools.partial(session.engine.stage.drop, keys))
            item = session.scheduler.take(loop.time())
            if item is None:
                self._wake.clear()
                await self._wake.wait()
                continue
            await self._compute(item, self._jobs[item])
            self._jobs.pop(item, None)

    def fence(self, fence: Fence) -> Fenced:
        """Give attempts up: none of them will begin, go on or be counted here any more."""
        scheduler = self._session.scheduler
        dropped = scheduler.fence(fence)
        self._refuse(dropped.items, "its attempt is over")
        for work in fence.work:
            self._forwarder.drop_fenced(work.microbatch, work.attempt)
        self._to_drop += dropped.keys
        self._returns.drop(dropped.keys)
        self.wake()
        return Fenced(scheduler.counted(fence))

    def moved_to(self, version: int) -> None:
        """Drop what belonged to the former step and begin what waited: the weights have changed."""
        dropped = self._session.scheduler.moved_to(version)
        if self._session.engine.odd is None:  # the commit has dropped all inputs
            self._returns.drop(None)
        else:
            self._to_drop += dropped.keys
            self._returns.drop(dropped.keys)
        self._refuse(dropped.items, "its step is over")
        self.wake()

    def close(self) -> None:
        """End this incarnation: nothing more is computed."""
        self._session.scheduler.close()
        left = self._session.scheduler.closed_sum()
        for item in tuple(self._jobs):
            self._end(item, cut_short(item.push, left))

    def cut_short(self, push: Push) -> SwarmError:
        """The error for its sender if the session ends before the push is answered."""
        return cut_short(push, self._session.scheduler.closed_sum())

    def load(self, now_s: float) -> Load:
        """The work since the last report."""
        scheduler = self._session.scheduler
        period, queued = scheduler.period(now_s), scheduler.queued()
        load = load_of(period, queued, self._session.engine.recomputed, now_s)
        measured = self._session.meter.measured(
            free_bytes=self._session.context.free_bytes(), state_bytes=self._state_bytes
        )
        return replace(load, links=self._session.links(), capacity=Capacity.of(measured))

    async def _compute(self, item: WorkItem, job: _PendingInput) -> None:
        session, loop = self._session, asyncio.get_running_loop()
        work, started_s = plan(session.scheduler, item), loop.time()
        leaving = self._leaving(work, job.inputs)
        result: Made | None = None
        sketch: Sketch | None = None
        failure: NotComputed | None = None
        session.waits.on_compute(item.push.microbatch, item.work, started_s)
        try:
            try:
                made, sketch = await session.context.compute(lambda: self._made(work, job.inputs))
            finally:
                session.waits.on_compute_end(loop.time())
        except Unusable:  # this server cannot go on
            raise
        except SwarmError as error:
            if work.counted:  # the sum holds it, or a part of it: this incarnation is over
                raise
            session.scheduler.failed(item, loop.time() - started_s)
            failure = refusal_of(session.context.me, error)
            session.note(not_computed(item.push, error, failure))
        else:
            took_s, loss = loop.time() - started_s, loss_in(made)
            self._measure(item, started_s - job.arrived_s, took_s, loop.time())
            if session.scheduler.done(item, took_s, counted=work.counted, loss=loss):
                result = made
                work.keep(session.scheduler.kept, made)
                self._unload(item.push.microbatch, bundle_in(made))
                self._tell(work, made, sketch, loop.time())
            else:
                if work.counted and sketch is not None:
                    session.note(sketch)  # the sum has it: the fence came too late for that
                await session.context.compute(lambda: session.engine.stage.drop((item.key,)))
        _send_off(leaving, bundle_in(result))
        if job.waiting.done():
            return
        if failure is not None:
            job.waiting.set_exception(failure)
        else:
            queue_s = started_s - job.bytes_s
            now_s = loop.time()
            gradient_s = self._returns.usual_s(now_s)
            session.router.on_gradients(gradient_s)
            receipt = Receipt(queue_s, now_s - started_s, gradient_s)
            job.waiting.set_result(receipt)

    def _unload(self, microbatch: int, bundle: Bundle | None) -> None:
        """Copy what is kept to the host, while others compute: a device's memory is for that."""
        kept, tensors = self._session.scheduler.kept, self._session.context.tensors

        async def unload(bundle: Bundle) -> None:
            kept.replace(microbatch, bundle, await tensors.on_host(bundle))

        if bundle and kept.keeps(microbatch, bundle) and tensors.is_on_device(bundle):
            self._tasks.create_task(unload(bundle))

    def _tell(self, work: WorkPlan, made: Made, sketch: Sketch | None, now_s: float) -> None:
        """Note a result: what the trainer is to know, and that its gradient is to come back."""
        if work.returning:
            self._returns.left(work.item.key, now_s)
        for note in (sketch, work.note(made)):
            if note is not None:
                self._session.note(note)

    def _measure(self, item: WorkItem, waited_s: float, took_s: float, now_s: float) -> None:
        """Measure the cost of a microbatch for this server."""
        meter = self._session.meter
        if item.work is Work.EVALUATE:  # now and then, last of all, and shorter than the others
            return
        meter.on_wait(waited_s, now_s)
        meter.on_input(bytes_of(item.push.tensors))
        meter.on_compute(took_s, now_s, backward=item.work is Work.BACKWARD)

    def _made(self, work: WorkPlan, inputs: WorkInputs) -> tuple[Made, Sketch | None]:
        """Call the stage, on the compute thread; with it the sketch, in a run with spot checks."""
        stage, sketcher = work.stage_of(self._session.engine), self._sketcher
        made = work.run(stage, inputs)
        return made, sketch_of(work, sketcher, stage, inputs, made) if sketcher else None

    def _leaving(self, work: WorkPlan, inputs: WorkInputs) -> asyncio.Future[Bundle] | None:
        """The future that the forwarder waits for; None if no result leaves."""
        if work.exit is ResultRoute.ONWARD:
            assert inputs.tokens is not None, "only a gradient comes without tokens"
            return self._forwarder.onward(work.item, inputs.tokens)
        return self._forwarder.back(work.forward) if work.exit is ResultRoute.BACK else None

    def _pass_on(self, item: WorkItem, inputs: WorkInputs, kept: KeptAnswer) -> None:
        """Hand on a kept result, one at a time for a microbatch: no more is under way than kept."""
        self._forwarder.drop_fenced(*item.key)
        if kept.exit is ResultRoute.BACK:
            leaving = self._forwarder.back(item)
        else:
            assert inputs.tokens is not None, "a forward comes with tokens"
            leaving = self._forwarder.onward(item, inputs.tokens)
        leaving.set_result(kept.bundle)

    def _refuse(self, items: tuple[WorkItem, ...], reason: str) -> None:
        for item in items:
            self._end(item, NotServing(f"microbatch {item.push.microbatch}: {reason}"))

    def _end(self, item: WorkItem, error: SwarmError) -> None:
        """Answer a push with an error, unless it was answered."""
        job = self._jobs.pop(item, None)
        if job is not None and not job.waiting.done():
            job.waiting.set_exception(error)


def _send_off(leaving: asyncio.Future[Bundle] | None, bundle: Bundle | None) -> None:
    """Give the forwarder its bundle, or end its wait if there is none."""
    if leaving is None or leaving.done():
        return
    if bundle is None:
        leaving.cancel()
    else:
        leaving.set_result(bundle)
