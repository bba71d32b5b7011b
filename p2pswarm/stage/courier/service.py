"""Carries what a stage computed to the next one, or back to the one before.

Forward, the router chooses. Backward there is but one way: to the server that the microbatch came
from. What cannot be carried is told to the trainer.

Units:   seconds.
Errors:  none: what fails is told to the trainer.
"""

import asyncio
import logging
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any

from p2pswarm.errors import Busy, SwarmError
from p2pswarm.stage.base import Key
from p2pswarm.stage.desk import Ticket
from p2pswarm.stage.life import Life
from p2pswarm.swarm.handing.service import PLACE_S, Carrier, place
from p2pswarm.swarm.messages import REASON_CHARS, Handed, MemberRecord, Undelivered, Work
from p2pswarm.tensors.codecs.base import Tensor

log = logging.getLogger(__name__)


class Courier:
    """Outgoing pushes of one life, each a task of the life's group."""

    def __init__(self, life: Life, tasks: asyncio.TaskGroup) -> None:
        self._life = life
        self._tasks = tasks
        self._going: dict[asyncio.Task[None], Key] = {}
        self._carrier = Carrier(life.setting.rpc, life.setting.tensors)

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
        life = self._life
        parcels = await life.setting.tensors.pack([tokens], "raw")
        parcels += await life.setting.tensors.pack([x], life.setting.run.codecs.activation)
        metas = tuple(parcel.meta for parcel in parcels)
        push = replace(ticket.push, stage=life.desk.stage + 1, tensors=metas)

        async def hand(member: MemberRecord) -> None:
            life.desk.handed(ticket.key, member.peer)  # its gradient can overtake its grant
            note = Handed(push.step, push.microbatch, push.attempt, member.peer, member.incarnation)
            await self._carrier.hand(member, push, parcels, lambda: life.note(note))

        reason = await place(life.router, push.stage, hand)
        if reason is not None:
            self._undelivered(ticket, reason)

    async def _back(self, ticket: Ticket, gradient: Tensor) -> None:
        """`ticket` is the forward's: its sender is who waits."""
        life, loop = self._life, asyncio.get_running_loop()
        parcels = await life.setting.tensors.pack([gradient], life.setting.run.codecs.gradient)
        back = replace(
            ticket.push,
            work=Work.BACKWARD,
            stage=life.desk.stage - 1,
            tensors=(parcels[0].meta,),
        )
        give_up_s = loop.time() + PLACE_S
        while True:
            member = life.roster.record(ticket.sender)
            if member is None:
                self._undelivered(ticket, "the server that waits for the gradient is gone")
                return
            try:
                await self._carrier.hand(member, back, parcels, _nothing)
            except Busy as error:
                if loop.time() + error.retry_after_s < give_up_s:
                    await asyncio.sleep(error.retry_after_s)
                    continue
                self._undelivered(ticket, str(error))
            except SwarmError as error:
                self._undelivered(ticket, str(error))
            return

    def _undelivered(self, ticket: Ticket, reason: str) -> None:
        push = ticket.push
        log.info("microbatch %d attempt %d: %s", push.microbatch, push.attempt, reason)
        self._life.note(
            Undelivered(push.step, push.microbatch, push.attempt, reason[:REASON_CHARS])
        )


def _nothing() -> None:
    """A gradient is expected: nobody is told that it was taken."""
