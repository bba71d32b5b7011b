"""Carries what a stage computed to the next one, or back to the one before.

Forward, the router chooses, and another server is tried after a definite refusal only: where a
server may or may not have the microbatch, the trainer is told `Undelivered` and decides. Backward,
there is but one way.

Units:   seconds.
Errors:  none: what fails is told to the trainer.
"""

import asyncio
import logging
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any

from p2pswarm.errors import BadMessage, Busy, DialFailed, Refused, SwarmError, TooLarge
from p2pswarm.rpc.base import Priority
from p2pswarm.stage.base import Key
from p2pswarm.stage.desk import Ticket
from p2pswarm.stage.life import Life
from p2pswarm.swarm.messages import (
    REASON_CHARS,
    Handed,
    MemberRecord,
    Push,
    Receipt,
    Undelivered,
    Work,
)
from p2pswarm.swarm.view import contact
from p2pswarm.tensors.codecs.base import Tensor
from p2pswarm.tensors.codecs.registry import Parcel
from p2pswarm.tensors.meta import Grant

log = logging.getLogger(__name__)

PUSH_S = 600.0  # grant, bytes, queue and compute; the trainer's fence comes long before
PLACE_S = 60.0  # looking for a server that has room; then the trainer decides
REFUSED_S = 0.25  # a server that does not serve this step or attempt is left alone so long
IDLE_S = 0.05  # between two looks while no server is known


class Courier:
    """Outgoing pushes of one life, each a task of the life's group."""

    def __init__(self, life: Life, tasks: asyncio.TaskGroup) -> None:
        self._life = life
        self._tasks = tasks
        self._going: dict[asyncio.Task[None], Key] = {}
        self._codecs = life.setting.run.codecs

    def onward(self, ticket: Ticket, tokens: Tensor, x: Tensor) -> None:
        """Hand a microbatch to a server of the next stage."""
        self._start(ticket, self._onward(ticket, tokens, x))

    def back(self, ticket: Ticket, gradient: Tensor) -> None:
        """Hand a gradient to the server that `ticket`'s forward came from."""
        self._start(ticket, self._back(ticket, gradient))

    def drop_fenced(self, microbatch: int, attempt: int) -> None:
        """Stop carrying attempts up to this one."""
        for task, key in tuple(self._going.items()):
            if key[0] == microbatch and key[1] <= attempt:
                task.cancel()

    def _start(self, ticket: Ticket, work: Coroutine[Any, Any, None]) -> None:
        task = self._tasks.create_task(work)
        self._going[task] = ticket.key
        task.add_done_callback(self._going.pop)

    async def _onward(self, ticket: Ticket, tokens: Tensor, x: Tensor) -> None:
        tensors = self._life.setting.tensors
        parcels = await tensors.pack([tokens], "raw")
        parcels += await tensors.pack([x], self._codecs.activation)
        metas = tuple(parcel.meta for parcel in parcels)
        push = replace(ticket.push, stage=self._life.desk.stage + 1, tensors=metas)
        loop = asyncio.get_running_loop()
        give_up_s = loop.time() + PLACE_S
        reason = f"nobody serves stage {push.stage}"
        while loop.time() < give_up_s:
            member = self._life.router.choose(loop.time())
            if member is None:
                await asyncio.sleep(self._wait_s(loop.time()))
                continue
            try:
                await self._hand(member, ticket, push, parcels)
            except Busy as error:
                self._life.router.busy(member.peer, loop.time() + error.retry_after_s)
                reason = str(error)
            except DialFailed as error:
                self._life.router.lost(member.peer)
                reason = str(error)
            except TooLarge as error:
                self._undelivered(ticket, str(error))
                return
            except Refused as error:
                self._life.router.busy(member.peer, loop.time() + REFUSED_S)
                reason = str(error)
            except SwarmError as error:
                self._life.router.lost(member.peer)
                self._undelivered(ticket, str(error))
                return
            else:
                return
        self._undelivered(ticket, reason)

    async def _back(self, ticket: Ticket, gradient: Tensor) -> None:
        """`ticket` is the forward's: its sender is who waits."""
        parcels = await self._life.setting.tensors.pack([gradient], self._codecs.gradient)
        loop = asyncio.get_running_loop()
        give_up_s = loop.time() + PLACE_S
        while True:
            member = self._life.roster.record(ticket.sender)
            if member is None:
                self._undelivered(ticket, "the server that waits for the gradient is gone")
                return
            push = replace(
                ticket.push, work=Work.BACKWARD, stage=member.stage, tensors=(parcels[0].meta,)
            )
            try:
                await self._hand(member, ticket, push, parcels)
            except Busy as error:
                if loop.time() + error.retry_after_s < give_up_s:
                    await asyncio.sleep(error.retry_after_s)
                    continue
                self._undelivered(ticket, str(error))
            except SwarmError as error:
                self._undelivered(ticket, str(error))
            return

    async def _hand(
        self, member: MemberRecord, ticket: Ticket, push: Push, parcels: list[Parcel]
    ) -> None:
        """One exchange with one server."""
        life, loop = self._life, asyncio.get_running_loop()
        push = replace(push, incarnation=member.incarnation)
        if push.work != Work.BACKWARD:  # before it is sent: the gradient can be faster than Grant
            life.desk.handed(ticket.key, member.peer)
        async with life.setting.rpc.converse(contact(member), push, PUSH_S) as exchange:
            grant = await exchange.receive()
            if not isinstance(grant, Grant):
                raise BadMessage(f"{grant} where a Grant is due")
            started_s = loop.time()
            if push.work != Work.BACKWARD:
                self._note_handed(push, member)
            await life.setting.tensors.send(exchange, grant, parcels, Priority.TENSOR)
            receipt = await exchange.receive()
            if not isinstance(receipt, Receipt):
                raise BadMessage(f"{receipt} where a Receipt is due")
        if push.work != Work.BACKWARD:
            life.router.settle(member.peer, started_s, loop.time())

    def _note_handed(self, push: Push, to: MemberRecord) -> None:
        self._life.note(Handed(push.step, push.microbatch, push.attempt, to.peer, to.incarnation))

    def _undelivered(self, ticket: Ticket, reason: str) -> None:
        push = ticket.push
        log.info("microbatch %d attempt %d: %s", push.microbatch, push.attempt, reason)
        self._life.note(
            Undelivered(push.step, push.microbatch, push.attempt, reason[:REASON_CHARS])
        )

    def _wait_s(self, now_s: float) -> float:
        """Until a busy server may be asked again, or a view may have brought one."""
        free_s = self._life.router.free_at_s()
        return IDLE_S if free_s is None else min(max(free_s - now_s, 0.001), IDLE_S)
