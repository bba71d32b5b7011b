"""Takes pushes in and computes them, one at a time, in the order that the desk says.

Bytes come in while another microbatch is computed; what is computed leaves by the courier while the
next one is. Between the two there is one thread, and nothing else touches weights and sums.

Units:   seconds.
Errors:  to the sender Busy, NotServing, TooLarge or BadMessage; what cannot be computed is told
         to the trainer.
"""

import asyncio
from dataclasses import dataclass

from p2pswarm.errors import Busy, NotServing, SwarmError
from p2pswarm.rpc.base import Exchange
from p2pswarm.stage.base import Duty, Finish
from p2pswarm.stage.courier.service import Courier
from p2pswarm.stage.desk import Ticket
from p2pswarm.stage.life import Life
from p2pswarm.swarm.messages import (
    REASON_CHARS,
    Counted,
    Evaluated,
    Fence,
    Fenced,
    Load,
    Push,
    Receipt,
    Undelivered,
    Work,
)
from p2pswarm.tensors.codecs.base import Tensor

UNKNOWN_RETRY_S = 0.05  # the sender's view is newer than ours for so long at most


@dataclass(frozen=True, slots=True)
class _Job:
    """The bytes of a ticket, and the sender's task that waits for its receipt."""

    inputs: list[Tensor]
    arrived_s: float
    waiting: asyncio.Future[Receipt]


class Intake:
    """Incoming pushes and the compute loop of one life."""

    def __init__(self, life: Life, courier: Courier) -> None:
        self._life = life
        self._courier = courier
        self._jobs: dict[Ticket, _Job] = {}
        self._wake = asyncio.Event()
        self._put_down = asyncio.Condition()

    async def push(self, exchange: Exchange, push: Push) -> None:
        """One exchange with a sender: grant, bytes, compute, receipt."""
        desk, loop = self._life.desk, asyncio.get_running_loop()
        self._require_neighbour(exchange.peer.raw, push)
        ticket = desk.admit(push, exchange.peer.raw)
        try:
            async with self._life.setting.tensors.accept(exchange, push.tensors) as coming:
                await exchange.send(coming.grant)
                inputs = await coming.tensors()
            desk.arrived(ticket, loop.time())
        finally:
            desk.withdraw(ticket)
        job = self._jobs[ticket] = _Job(inputs, loop.time(), loop.create_future())
        self.wake()
        await exchange.send(await job.waiting)

    def wake(self) -> None:
        """There may be something to compute."""
        self._wake.set()

    async def work(self) -> None:
        """Compute what comes, for ever."""
        loop = asyncio.get_running_loop()
        while True:
            ticket = self._life.desk.take(loop.time())
            if ticket is None:
                self._wake.clear()
                await self._wake.wait()
                continue
            await self._compute(ticket, self._jobs.pop(ticket))
            async with self._put_down:
                self._put_down.notify_all()

    async def fence(self, fence: Fence) -> Fenced:
        """Do away with attempts; answers when that is certain."""
        desk = self._life.desk
        dropped = desk.fence(fence)
        self._refuse(dropped.tickets, "its attempt is over")
        for work in fence.work:
            self._courier.drop_fenced(work.microbatch, work.attempt)
        async with self._put_down:
            while desk.fences_in_hand(fence):
                await self._put_down.wait()
        if dropped.keys:
            await self._life.setting.compute(lambda: self._life.engine.stage.drop(dropped.keys))
        return Fenced(desk.counted(fence))

    def moved_to(self, version: int) -> None:
        """The weights have changed: what belonged to the former step goes, what waited begins."""
        dropped = self._life.desk.moved_to(version)
        self._refuse(dropped.tickets, "its step is over")
        self.wake()

    def close(self) -> None:
        """The life is over."""
        self._refuse(tuple(self._jobs), "this server's incarnation is over")

    def load(self, now_s: float) -> Load:
        """What was done since the last report."""
        period = self._life.desk.period(now_s)
        span_s = max(now_s - period.started_s, 1e-9)
        return Load(
            self._life.desk.queued(),
            _mean(period.waits_s),
            _mean(period.computes_s),
            period.counted / span_s,
            self._life.engine.stage.recomputed,
        )

    async def _compute(self, ticket: Ticket, job: _Job) -> None:
        desk, loop = self._life.desk, asyncio.get_running_loop()
        duty, started_s = desk.duty(ticket), loop.time()
        leaving = self._way_out(ticket, job.inputs, duty)
        try:
            made = await self._life.setting.compute(lambda: self._call(ticket, job.inputs, duty))
        except SwarmError as error:
            desk.failed(ticket, loop.time() - started_s)
            self._undelivered(ticket, str(error))
            made = None
        else:
            counted = duty.counting and (ticket.work is Work.BACKWARD or isinstance(made, Finish))
            if desk.done(ticket, loop.time() - started_s, counted=counted):
                self._tell(ticket, made, counted=counted)
            else:
                made = None
                await self._life.setting.compute(
                    lambda: self._life.engine.stage.drop((ticket.key,))
                )
        _send_off(leaving, made.gradient_BTD if isinstance(made, Finish) else made)
        if not job.waiting.done():
            queue_s = started_s - job.arrived_s
            job.waiting.set_result(Receipt(queue_s, loop.time() - started_s))

    def _way_out(
        self, ticket: Ticket, inputs: list[Tensor], duty: Duty
    ) -> asyncio.Future[Tensor] | None:
        """Where the result of a ticket will leave, if it is to."""
        desk = self._life.desk
        if ticket.work is Work.BACKWARD:
            forward = desk.held_from(ticket.key)
            assert forward is not None, "a backward is admitted only while its forward is held"
            return self._courier.back(forward) if duty.returning else None
        if not desk.last:
            return self._courier.onward(ticket, inputs[0])
        training = ticket.work is Work.FORWARD
        return self._courier.back(ticket) if training and duty.returning else None

    def _call(
        self, ticket: Ticket, inputs: list[Tensor], duty: Duty
    ) -> Tensor | Finish | float | None:
        """On the compute thread."""
        stage, desk = self._life.engine.stage, self._life.desk
        if ticket.work is Work.BACKWARD:
            return stage.backward(ticket.key, inputs[0], duty)
        tokens, x = inputs[0], inputs[1] if len(inputs) > 1 else None
        if ticket.work is Work.EVALUATE:
            return stage.evaluate(tokens, x)
        if desk.last:
            return stage.finish(tokens, x, duty)
        if desk.returns(ticket):
            return stage.forward(ticket.key, tokens, x)
        return stage.evaluate(tokens, x)

    def _tell(self, ticket: Ticket, made: Tensor | Finish | float | None, *, counted: bool) -> None:
        """What the trainer is to know of a result."""
        push, note = ticket.push, self._life.note
        if isinstance(made, float):
            note(Evaluated(push.step, push.microbatch, made))
        elif isinstance(made, Finish):
            note(Counted(push.step, push.microbatch, push.attempt, counted, made.loss))
        elif ticket.work is Work.BACKWARD:
            note(Counted(push.step, push.microbatch, push.attempt, counted, None))

    def _require_neighbour(self, sender: bytes, push: Push) -> None:
        """Refuse pushes from anybody but the trainer and the stage next to ours."""
        stage = push.stage + (1 if push.work == Work.BACKWARD else -1)
        if stage < 0:
            trainer = self._life.setting.trainer.peer
            if trainer is not None and trainer.raw != sender:
                raise NotServing("the first stage takes microbatches from the trainer")
            return
        record = self._life.roster.record(sender)
        if record is None or record.stage != stage:
            raise Busy("the sender is not in the view here yet", UNKNOWN_RETRY_S)

    def _refuse(self, tickets: tuple[Ticket, ...], reason: str) -> None:
        for ticket in tickets:
            job = self._jobs.pop(ticket, None)
            if job is not None and not job.waiting.done():
                push = ticket.push
                job.waiting.set_exception(NotServing(f"microbatch {push.microbatch}: {reason}"))

    def _undelivered(self, ticket: Ticket, reason: str) -> None:
        push = ticket.push
        self._life.note(
            Undelivered(push.step, push.microbatch, push.attempt, reason[:REASON_CHARS])
        )


def _mean(values_s: list[float]) -> float:
    return sum(values_s) / len(values_s) if values_s else 0.0


def _send_off(leaving: asyncio.Future[Tensor] | None, made: Tensor | float | None) -> None:
    """Give the courier what it waits for, or tell it that nothing comes."""
    if leaving is None or leaving.done():
        return
    if isinstance(made, Tensor):
        leaving.set_result(made)
    else:
        leaving.cancel()
