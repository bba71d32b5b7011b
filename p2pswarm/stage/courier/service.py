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

from p2pswarm.errors import Busy, SwarmError
from p2pswarm.stage.base import Key
from p2pswarm.stage.desk import Ticket
from p2pswarm.stage.life import Life
from p2pswarm.swarm.handing.service import PLACE_S, Carrier, place
from p2pswarm.swarm.messages import REASON_CHARS, Handed, MemberRecord, Push, Undelivered, Work
from p2pswarm.tensors.codecs.base import Tensor
from p2pswarm.tensors.codecs.registry import Parcel
from p2pswarm.tensors.meta import TensorMeta, travels_alone

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Size:
    """What the last tensor of a kind was announced with."""

    meta: TensorMeta
    steady: bool
    """The one before had the same; so will the next."""


class _Cargo:
    """A tensor that is being computed, and what may be said of it before."""

    def __init__(self, courier: "Courier", made: asyncio.Future[Tensor], work: Work) -> None:
        self._courier = courier
        self._made = made
        self._backward = work is Work.BACKWARD
        self._parcels: list[Parcel] = []

    async def meta(self) -> TensorMeta:
        """To announce it with: foreseen, or read off the tensor."""
        size = self._courier.sizes.get(self._backward)
        if not self._made.done() and size is not None and size.steady:
            return size.meta
        return (await self.parcels())[0].meta

    async def parcels(self) -> list[Parcel]:
        """The tensor, encoded once it is there."""
        made = await self._made
        if not self._parcels:
            self._parcels = await self._courier.pack(made, backward=self._backward)
        return self._parcels


class Courier:
    """Outgoing pushes of one life, each a task of the life's group."""

    def __init__(self, life: Life, tasks: asyncio.TaskGroup) -> None:
        self._life = life
        self._tasks = tasks
        self._going: dict[asyncio.Task[None], Key] = {}
        self._carrier = Carrier(life.setting.rpc, life.setting.tensors)
        self.sizes: dict[bool, _Size] = {}
        """By direction: forward False, backward True."""

    def onward(self, ticket: Ticket, tokens: Tensor) -> asyncio.Future[Tensor]:
        """Hand a microbatch to the next stage, as soon as the future has its activation."""
        made: asyncio.Future[Tensor] = asyncio.get_running_loop().create_future()
        self._start(ticket, self._onward(ticket, tokens, _Cargo(self, made, Work.FORWARD)))
        return made

    def back(self, ticket: Ticket) -> asyncio.Future[Tensor]:
        """Hand a gradient to where `ticket`'s forward came from, as soon as the future has it."""
        made: asyncio.Future[Tensor] = asyncio.get_running_loop().create_future()
        self._start(ticket, self._back(ticket, _Cargo(self, made, Work.BACKWARD)))
        return made

    def drop_fenced(self, microbatch: int, attempt: int) -> None:
        """Stop carrying attempts up to this one."""
        for task, key in tuple(self._going.items()):
            if key[0] == microbatch and key[1] <= attempt:
                task.cancel()

    async def pack(self, made: Tensor, *, backward: bool) -> list[Parcel]:
        """Encode for the way, and remember the size."""
        codecs = self._life.setting.run.codecs
        codec_name = codecs.gradient if backward else codecs.activation
        parcels = await self._life.setting.tensors.pack([made], codec_name)
        meta, last = parcels[0].meta, self.sizes.get(backward)
        steady = last is not None and last.meta == meta and travels_alone(meta)
        self.sizes[backward] = _Size(meta, steady)
        return parcels

    def _start(self, ticket: Ticket, work: Coroutine[Any, Any, None]) -> None:
        task = self._tasks.create_task(work)
        self._going[task] = ticket.key
        task.add_done_callback(self._going.pop)

    async def _onward(self, ticket: Ticket, tokens: Tensor, cargo: _Cargo) -> None:
        life, loop = self._life, asyncio.get_running_loop()
        first = await life.setting.tensors.pack([tokens], "raw")
        stage = life.desk.stage + 1

        async def hand(member: MemberRecord) -> float:
            metas = (first[0].meta, await cargo.meta())
            push = replace(ticket.push, stage=stage, tensors=metas)
            sent_s = 0.0

            async def load() -> Sequence[Parcel]:
                nonlocal sent_s
                self._note_handed(push, member)
                parcels = [*first, *await cargo.parcels()]
                life.desk.handed(ticket.key, member.peer)
                sent_s = loop.time()
                return parcels

            life.desk.handed(ticket.key, member.peer)  # what rides inline needs no grant
            await self._carrier.hand_ahead(member, push, load)
            return sent_s

        reason = await place(life.router, stage, hand)
        if reason is not None:
            self._undelivered(ticket, reason)

    async def _back(self, ticket: Ticket, cargo: _Cargo) -> None:
        life, loop = self._life, asyncio.get_running_loop()
        give_up_s = loop.time() + PLACE_S
        while True:
            member = life.roster.record(ticket.sender)
            if member is None:
                self._undelivered(ticket, "the server that waits for the gradient is gone")
                return
            push = replace(
                ticket.push,
                work=Work.BACKWARD,
                stage=life.desk.stage - 1,
                tensors=(await cargo.meta(),),
            )
            try:
                await self._carrier.hand_ahead(member, push, cargo.parcels)
            except Busy as error:
                if loop.time() + error.retry_after_s < give_up_s:
                    await asyncio.sleep(error.retry_after_s)
                    continue
                self._undelivered(ticket, str(error))
            except SwarmError as error:
                self._undelivered(ticket, str(error))
            return

    def _note_handed(self, push: Push, to: MemberRecord) -> None:
        self._life.note(Handed(push.step, push.microbatch, push.attempt, to.peer, to.incarnation))

    def _undelivered(self, ticket: Ticket, reason: str) -> None:
        push = ticket.push
        log.info("microbatch %d attempt %d: %s", push.microbatch, push.attempt, reason)
        self._life.note(
            Undelivered(push.step, push.microbatch, push.attempt, reason[:REASON_CHARS])
        )
