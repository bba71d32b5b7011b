"""The trainer: keeps every member's exchange, and does what the coordinator decides.

It feeds one event at a time to the coordinator and carries out every action before the next. Its
own link carries tokens, notes and orders; activations and gradients go between the servers.

Units:   seconds on the loop's clock.
Errors:  none of the network's: they are events for the coordinator. `weights` raises NoRoute where
         nobody has them.
"""

import asyncio
import logging
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from p2pswarm.errors import BadMessage, NoRoute, NotServing, SwarmError
from p2pswarm.ids import Address, Contact, PeerId
from p2pswarm.rpc.base import Exchange
from p2pswarm.state.service import Snapshot, fetch
from p2pswarm.swarm.messages import (
    REASON_CHARS,
    Counted,
    Describe,
    Evaluated,
    FetchState,
    Finished,
    Handed,
    Join,
    Leaving,
    Load,
    Ready,
    Undelivered,
)
from p2pswarm.swarm.view import Life, contact
from p2pswarm.train import actions as act
from p2pswarm.train.coordinator import Coordinator
from p2pswarm.train.errands.service import Errands
from p2pswarm.train.setting import TrainSetting
from p2pswarm.wire.codec import Message

log = logging.getLogger(__name__)

NOTES_WAITING_MAX = 4096  # orders that a member has not taken: beyond, it is as good as gone
FAREWELL_S = 2.0  # for the last word to reach the members
WEIGHTS_S = 3600.0  # to download the trained weights of one stage


@dataclass(slots=True)
class _Seat:
    """A member's exchange."""

    exchange: Exchange
    said: asyncio.Queue[Message | None] = field(
        default_factory=lambda: asyncio.Queue(NOTES_WAITING_MAX)
    )
    """What is to be sent; None ends the exchange."""
    life: Life | None = None


class Trainer:
    """One run; use it in an `async with`, whose end says goodbye to the members."""

    def __init__(self, setting: TrainSetting) -> None:
        self._setting = setting
        self._coordinator = Coordinator(setting.run, setting.run_id)
        self._seats: dict[bytes, _Seat] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._empty = asyncio.Event()
        self._empty.set()
        self._stack = AsyncExitStack()
        self._ended: asyncio.Future[act.Ended]
        self._errands: Errands
        self._pumping = False

    async def __aenter__(self) -> Self:
        self._ended = asyncio.get_running_loop().create_future()
        tasks = await self._stack.enter_async_context(asyncio.TaskGroup())
        self._errands = Errands(self._setting, self._coordinator, tasks, self._pump)
        self._setting.rpc.attend(Join, self._attend)
        self._setting.rpc.answer(Describe, self._describe)
        self._pump()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._errands.stop()
        ended = self._ended.result() if self._ended.done() else None
        self._tell_all(Finished((ended.reason if ended else "the trainer leaves")[:REASON_CHARS]))
        for seat in self._seats.values():
            self._tell(seat, None)
        try:
            async with asyncio.timeout(FAREWELL_S):
                await self._empty.wait()
        except TimeoutError:
            log.info("%d members did not take their leave", len(self._seats))
        await self._stack.__aexit__(kind, error, trace)

    async def run(self) -> act.Ended:
        """Train until all steps are done or the run cannot go on; how it ended."""
        return await asyncio.shield(self._ended)

    @property
    def coordinator(self) -> Coordinator:
        """Who is in the run, and how far it has come."""
        return self._coordinator

    async def weights(self, sizes: Sequence[int]) -> list[Snapshot]:
        """Download the state of every stage from its servers; `sizes` in bytes, by stage."""
        loop = asyncio.get_running_loop()
        snapshots = []
        for stage, nbytes in enumerate(sizes):

            async def donors(of: int = stage) -> tuple[Contact, ...]:
                members = self._coordinator.members.ready(of)
                if not members:
                    raise NoRoute(f"stage {of} has no server left that holds its weights")
                return tuple(contact(m.record) for m in members)

            request = FetchState(self._setting.run_id, stage, self._coordinator.step)
            async with asyncio.timeout_at(loop.time() + WEIGHTS_S):
                snapshots.append(await fetch(self._setting.rpc, donors, request, nbytes))
        return snapshots

    async def _describe(self, _: PeerId, __: Describe) -> Message:
        return self._setting.manifest

    async def _attend(self, exchange: Exchange, join: Join) -> None:
        """One member, from its `Join` to the end of its exchange."""
        if join.run != self._setting.run_id:
            raise NotServing("that run is not trained here; look up the runs again")
        try:
            Address.parse(join.address)
        except ValueError as error:
            raise BadMessage(f"a member without an address: {error}") from error
        if self._ended.done():
            await exchange.send(Finished(self._ended.result().reason[:REASON_CHARS]))
            return
        peer, seat = exchange.peer.raw, _Seat(exchange)
        self._seats[peer] = seat
        self._empty.clear()
        self._coordinator.joined(peer, join, self._now_s())
        self._pump()
        reason = "it ended its exchange"
        try:
            await self._converse(seat)
        except SwarmError as error:
            reason = str(error) or type(error).__name__
        finally:
            self._vacate(peer, seat, reason)

    async def _converse(self, seat: _Seat) -> None:
        """Send and hear notes until either side has enough."""
        hearing = asyncio.ensure_future(self._hear(seat))
        saying = asyncio.ensure_future(self._say(seat))
        try:
            await asyncio.wait((hearing, saying), return_when=asyncio.FIRST_COMPLETED)
        finally:
            both = [hearing, saying]
            done = [task for task in both if task.done()]
            for task in both:
                task.cancel()
            await asyncio.gather(*both, return_exceptions=True)
        for task in done:
            task.result()

    async def _hear(self, seat: _Seat) -> None:
        while (note := await seat.exchange.receive()) is not None:
            if isinstance(note, Leaving):
                return
            if seat.life is None:
                raise BadMessage(f"a {type(note).__name__} before Assigned")
            self._hear_note(seat.life, note)

    async def _say(self, seat: _Seat) -> None:
        while (message := await seat.said.get()) is not None:
            await seat.exchange.send(message)

    def _vacate(self, peer: bytes, seat: _Seat, reason: str) -> None:
        if self._seats.get(peer) is seat:
            del self._seats[peer]
            self._coordinator.withdrawn(peer)
        if not self._seats:
            self._empty.set()
        if seat.life is not None:
            self._coordinator.lost(seat.life, reason, self._now_s())
            self._pump()

    def _hear_note(self, by: Life, note: Message) -> None:
        """One note of a member, given to the coordinator."""
        coordinator, now_s = self._coordinator, self._now_s()
        match note:
            case Handed():
                coordinator.handed(Life(note.peer, note.incarnation), note, now_s)
            case Counted():
                coordinator.counted(by, note, now_s)
            case Undelivered():
                log.info("microbatch %d at %s: %s", note.microbatch, by, note.reason)
                coordinator.undelivered(note, now_s)
            case Evaluated():
                coordinator.evaluated(note, now_s)
            case Ready():
                coordinator.ready(by, note, now_s)
            case Load():
                if member := coordinator.members.alive(by):
                    self._setting.report(act.Loaded(by, member.stage, note))
            case _:
                raise BadMessage(f"a {type(note).__name__} where a note is due")
        self._pump()

    def _now_s(self) -> float:
        return asyncio.get_running_loop().time()

    def _pump(self) -> None:
        """Carry out all that the coordinator asks, and wake it when it wants."""
        if self._pumping:
            return  # the loop below will see to it
        self._pumping = True
        try:
            while actions := self._coordinator.actions():
                for action in actions:
                    self._carry_out(action)
        finally:
            self._pumping = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due_s = self._coordinator.next_deadline_s(self._now_s())
        if due_s is not None:
            self._timer = asyncio.get_running_loop().call_at(due_s, self._due)

    def _due(self) -> None:
        self._timer = None
        self._coordinator.on_deadline(self._now_s())
        self._pump()

    def _carry_out(self, action: act.Action) -> None:
        match action:
            case act.Assign():
                if seat := self._seats.get(action.life.peer):
                    seat.life = action.life
                    self._tell(seat, action.message)
            case act.Publish():
                self._tell_all(action.view)
                self._errands.follow_view()
            case act.Dismiss():
                seat = self._seats.get(action.life.peer)
                if seat is not None and seat.life == action.life:
                    log.warning("%s is out: %s", action.life, action.reason)
                    self._tell(seat, None)
            case act.Launch() | act.SendFence() | act.SendReduce() | act.SendCommit():
                self._errands.begin(action)
            case act.Ended():
                if not self._ended.done():
                    self._ended.set_result(action)
                self._setting.report(action)
            case _:
                self._setting.report(action)

    def _tell(self, seat: _Seat, message: Message | None) -> None:
        if seat.said.full():  # it has not taken a word for thousands of them
            log.warning("%s takes no orders", seat.exchange.peer.short)
            seat.said.get_nowait()
            message = None
        seat.said.put_nowait(message)

    def _tell_all(self, message: Message) -> None:
        for seat in self._seats.values():
            if seat.life is not None:
                self._tell(seat, message)
