"""Takes pushes in and computes them, one at a time, in the order that the scheduler says.

Bytes come in while another microbatch is computed; what is computed leaves by the forwarder while
the next one is. Between the two there is one thread, and nothing else touches weights and sums.

Units:   seconds.
Errors:  to the sender Busy, NotServing, TooLarge or BadMessage; what cannot be computed is told
         to the trainer.
"""

import asyncio
from dataclasses import dataclass

from p2pswarm.compute.base import BackwardSpec, LossResult
from p2pswarm.errors import Busy, NotServing, SwarmError
from p2pswarm.rpc.base import Stream
from p2pswarm.server.forwarder import Forwarder
from p2pswarm.server.scheduler import WorkItem
from p2pswarm.server.session import MemberSession
from p2pswarm.swarm.messages.membership import Load
from p2pswarm.swarm.messages.microbatch import Counted, Evaluated, Push, Receipt, Undelivered
from p2pswarm.swarm.messages.step import Fence, Fenced
from p2pswarm.swarm.messages.types import REASON_CHARS, Work
from p2pswarm.tensors.codecs.base import Tensor

UNKNOWN_RETRY_S = 0.05  # the sender's view is newer than ours for so long at most


@dataclass(frozen=True, slots=True)
class _PendingInput:
    """The bytes of a item, and the sender's task that waits for its receipt."""

    inputs: list[Tensor]
    arrived_s: float
    waiting: asyncio.Future[Receipt]


class Worker:
    """Incoming pushes and the compute loop of one session."""

    def __init__(self, session: MemberSession, forwarder: Forwarder) -> None:
        self._session = session
        self._forwarder = forwarder
        self._jobs: dict[WorkItem, _PendingInput] = {}
        self._wake = asyncio.Event()
        self._put_down = asyncio.Condition()

    async def push(self, stream: Stream, push: Push) -> None:
        """One stream with a sender: grant, bytes, compute, receipt."""
        scheduler, loop = self._session.scheduler, asyncio.get_running_loop()
        self._require_neighbour(stream.peer.raw, push)
        item = scheduler.admit(push, stream.peer.raw)
        try:
            async with self._session.context.tensors.accept(stream, push.tensors) as coming:
                await stream.send(coming.grant)
                inputs = await coming.tensors()
            scheduler.arrived(item, loop.time())
        finally:
            scheduler.withdraw(item)
        job = self._jobs[item] = _PendingInput(inputs, loop.time(), loop.create_future())
        self.wake()
        await stream.send(await job.waiting)

    def wake(self) -> None:
        """There may be something to compute."""
        self._wake.set()

    async def work(self) -> None:
        """Compute what comes, for ever."""
        loop = asyncio.get_running_loop()
        while True:
            item = self._session.scheduler.take(loop.time())
            if item is None:
                self._wake.clear()
                await self._wake.wait()
                continue
            await self._compute(item, self._jobs.pop(item))
            async with self._put_down:
                self._put_down.notify_all()

    async def fence(self, fence: Fence) -> Fenced:
        """Do away with attempts; answers when that is certain."""
        scheduler = self._session.scheduler
        dropped = scheduler.fence(fence)
        self._refuse(dropped.items, "its attempt is over")
        for work in fence.work:
            self._forwarder.drop_fenced(work.microbatch, work.attempt)
        async with self._put_down:
            while scheduler.fences_in_hand(fence):
                await self._put_down.wait()
        if dropped.keys:
            await self._session.context.compute(
                lambda: self._session.engine.stage.drop(dropped.keys)
            )
        return Fenced(scheduler.counted(fence))

    def moved_to(self, version: int) -> None:
        """The weights have changed: what belonged to the former step goes, what waited begins."""
        dropped = self._session.scheduler.moved_to(version)
        self._refuse(dropped.items, "its step is over")
        self.wake()

    def close(self) -> None:
        """The life is over."""
        self._refuse(tuple(self._jobs), "this server's incarnation is over")

    def load(self, now_s: float) -> Load:
        """What was done since the last report."""
        period = self._session.scheduler.period(now_s)
        span_s = max(now_s - period.started_s, 1e-9)
        return Load(
            self._session.scheduler.queued(),
            _mean(period.waits_s),
            _mean(period.computes_s),
            period.counted / span_s,
            self._session.engine.stage.recomputed,
        )

    async def _compute(self, item: WorkItem, job: _PendingInput) -> None:
        scheduler, loop = self._session.scheduler, asyncio.get_running_loop()
        spec, started_s = scheduler.spec(item), loop.time()
        leaving = self._way_out(item, job.inputs, spec)
        try:
            made = await self._session.context.compute(lambda: self._call(item, job.inputs, spec))
        except SwarmError as error:
            scheduler.failed(item, loop.time() - started_s)
            self._undelivered(item, str(error))
            made = None
        else:
            counted = spec.counting and (item.work is Work.BACKWARD or isinstance(made, LossResult))
            if scheduler.done(item, loop.time() - started_s, counted=counted):
                self._tell(item, made, counted=counted)
            else:
                made = None
                await self._session.context.compute(
                    lambda: self._session.engine.stage.drop((item.key,))
                )
        _send_off(leaving, made.gradient_BTD if isinstance(made, LossResult) else made)
        if not job.waiting.done():
            queue_s = started_s - job.arrived_s
            job.waiting.set_result(Receipt(queue_s, loop.time() - started_s))

    def _way_out(
        self, item: WorkItem, inputs: list[Tensor], spec: BackwardSpec
    ) -> asyncio.Future[Tensor] | None:
        """Where the result of a item will leave, if it is to."""
        scheduler = self._session.scheduler
        if item.work is Work.BACKWARD:
            forward = scheduler.held_from(item.key)
            assert forward is not None, "a backward is admitted only while its forward is held"
            return self._forwarder.back(forward) if spec.returning else None
        if not scheduler.last:
            return self._forwarder.onward(item, inputs[0])
        training = item.work is Work.FORWARD
        return self._forwarder.back(item) if training and spec.returning else None

    def _call(
        self, item: WorkItem, inputs: list[Tensor], spec: BackwardSpec
    ) -> Tensor | LossResult | float | None:
        """On the compute thread."""
        stage, scheduler = self._session.engine.stage, self._session.scheduler
        if item.work is Work.BACKWARD:
            return stage.backward(item.key, inputs[0], spec)
        tokens, x = inputs[0], inputs[1] if len(inputs) > 1 else None
        if item.work is Work.EVALUATE:
            return stage.evaluate(tokens, x)
        if scheduler.last:
            return stage.finish(tokens, x, spec)
        if scheduler.returns(item):
            return stage.forward(item.key, tokens, x)
        return stage.evaluate(tokens, x)

    def _tell(
        self, item: WorkItem, made: Tensor | LossResult | float | None, *, counted: bool
    ) -> None:
        """What the trainer is to know of a result."""
        push, note = item.push, self._session.note
        if isinstance(made, float):
            note(Evaluated(push.step, push.microbatch, made))
        elif isinstance(made, LossResult):
            note(Counted(push.step, push.microbatch, push.attempt, counted, made.loss))
        elif item.work is Work.BACKWARD:
            note(Counted(push.step, push.microbatch, push.attempt, counted, None))

    def _require_neighbour(self, sender: bytes, push: Push) -> None:
        """Refuse pushes from anybody but the trainer and the stage next to ours."""
        stage = push.stage + (1 if push.work == Work.BACKWARD else -1)
        if stage < 0:
            trainer = self._session.context.trainer.peer
            if trainer is not None and trainer.raw != sender:
                raise NotServing("the first stage takes microbatches from the trainer")
            return
        record = self._session.members.record(sender)
        if record is None or record.stage != stage:
            raise Busy("the sender is not in the view here yet", UNKNOWN_RETRY_S)

    def _refuse(self, items: tuple[WorkItem, ...], reason: str) -> None:
        for item in items:
            job = self._jobs.pop(item, None)
            if job is not None and not job.waiting.done():
                push = item.push
                job.waiting.set_exception(NotServing(f"microbatch {push.microbatch}: {reason}"))

    def _undelivered(self, item: WorkItem, reason: str) -> None:
        push = item.push
        self._session.note(
            Undelivered(push.step, push.microbatch, push.attempt, reason[:REASON_CHARS])
        )


def _mean(values_s: list[float]) -> float:
    return sum(values_s) / len(values_s) if values_s else 0.0


def _send_off(leaving: asyncio.Future[Tensor] | None, made: Tensor | float | None) -> None:
    """Give the forwarder what it waits for, or tell it that nothing comes."""
    if leaving is None or leaving.done():
        return
    if isinstance(made, Tensor):
        leaving.set_result(made)
    else:
        leaving.cancel()
