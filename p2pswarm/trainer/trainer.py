"""The trainer: keeps every member's stream, and does what the coordinator decides.

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
from p2pswarm.ids import Address, Contact
from p2pswarm.rpc.base import Stream
from p2pswarm.state.download import fetch
from p2pswarm.state.snapshot import Snapshot
from p2pswarm.swarm.messages.membership import Join, Leaving, Load, Ready
from p2pswarm.swarm.messages.microbatch import Counted, Evaluated, Handed, Undelivered
from p2pswarm.swarm.messages.run import Finished
from p2pswarm.swarm.messages.state import FetchState
from p2pswarm.swarm.messages.types import REASON_CHARS
from p2pswarm.swarm.view import Incarnation, contact
from p2pswarm.trainer import actions as act
from p2pswarm.trainer.context import TrainerContext
from p2pswarm.trainer.coordinator import Coordinator
from p2pswarm.trainer.dispatch import Dispatcher
from p2pswarm.wire.message import Message

log = logging.getLogger(__name__)

NOTES_WAITING_MAX = 4096  # orders that a member has not taken: beyond, it is as good as gone
FAREWELL_S = 2.0  # for the last word to reach the members
WEIGHTS_S = 3600.0  # to download the trained weights of one stage


@dataclass(slots=True)
class _MemberConnection:
    """A member's stream."""

    stream: Stream
    said: asyncio.Queue[Message | None] = field(
        default_factory=lambda: asyncio.Queue(NOTES_WAITING_MAX)
    )
    """What is to be sent; None ends the stream."""
    incarnation: Incarnation | None = None


class Trainer:
    """One run; use it in an `async with`, whose end says goodbye to the members."""

    def __init__(self, context: TrainerContext) -> None:
        self._context = context
        self._coordinator = Coordinator(context.run, context.run_id)
        self._connections: dict[bytes, _MemberConnection] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._empty = asyncio.Event()
        self._empty.set()
        self._stack = AsyncExitStack()
        self._ended: asyncio.Future[act.RunFinished]
        self._dispatcher: Dispatcher
        self._pumping = False

    async def __aenter__(self) -> Self:
        self._ended = asyncio.get_running_loop().create_future()
        tasks = await self._stack.enter_async_context(asyncio.TaskGroup())
        self._dispatcher = Dispatcher(self._context, self._coordinator, tasks, self._pump)
        self._context.rpc.serve_stream(Join, self._attend)
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
        self._dispatcher.stop()
        ended = self._ended.result() if self._ended.done() else None
        self._tell_all(Finished((ended.reason if ended else "the trainer leaves")[:REASON_CHARS]))
        for connection in self._connections.values():
            self._tell(connection, None)
        try:
            async with asyncio.timeout(FAREWELL_S):
                await self._empty.wait()
        except TimeoutError:
            log.info("%d members did not take their leave", len(self._connections))
        await self._stack.__aexit__(kind, error, trace)

    async def run(self) -> act.RunFinished:
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

            request = FetchState(self._context.run_id, stage, self._coordinator.step)
            async with asyncio.timeout_at(loop.time() + WEIGHTS_S):
                snapshots.append(await fetch(self._context.rpc, donors, request, nbytes))
        return snapshots

    async def _attend(self, stream: Stream, join: Join) -> None:
        """One member, from its `Join` to the end of its stream."""
        if join.run != self._context.run_id:
            raise NotServing("that run is not trained here; look up the runs again")
        try:
            Address.parse(join.address)
        except ValueError as error:
            raise BadMessage(f"a member without an address: {error}") from error
        if self._ended.done():
            await stream.send(Finished(self._ended.result().reason[:REASON_CHARS]))
            return
        peer, connection = stream.peer.raw, _MemberConnection(stream)
        self._connections[peer] = connection
        self._empty.clear()
        self._coordinator.joined(peer, join, self._now_s())
        self._pump()
        reason = "it ended its exchange"
        try:
            await self._converse(connection)
        except SwarmError as error:
            reason = str(error) or type(error).__name__
        finally:
            self._disconnected(peer, connection, reason)

    async def _converse(self, connection: _MemberConnection) -> None:
        """Send and hear notes until either side has enough."""
        hearing = asyncio.ensure_future(self._hear(connection))
        saying = asyncio.ensure_future(self._say(connection))
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

    async def _hear(self, connection: _MemberConnection) -> None:
        while (note := await connection.stream.receive()) is not None:
            if isinstance(note, Leaving):
                return
            if connection.incarnation is None:
                raise BadMessage(f"a {type(note).__name__} before Assigned")
            self._hear_note(connection.incarnation, note)

    async def _say(self, connection: _MemberConnection) -> None:
        while (message := await connection.said.get()) is not None:
            await connection.stream.send(message)

    def _disconnected(self, peer: bytes, connection: _MemberConnection, reason: str) -> None:
        if self._connections.get(peer) is connection:
            del self._connections[peer]
            self._coordinator.withdrawn(peer)
        if not self._connections:
            self._empty.set()
        if connection.incarnation is not None:
            self._coordinator.lost(connection.incarnation, reason, self._now_s())
            self._pump()

    def _hear_note(self, by: Incarnation, note: Message) -> None:
        """One note of a member, given to the coordinator."""
        coordinator, now_s = self._coordinator, self._now_s()
        match note:
            case Handed():
                coordinator.handed(Incarnation(note.peer, note.incarnation), note, now_s)
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
                    self._context.report(act.Loaded(by, member.stage, note))
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
                if connection := self._connections.get(action.incarnation.peer):
                    connection.incarnation = action.incarnation
                    self._tell(connection, action.message)
            case act.Publish():
                self._tell_all(action.view)
                self._dispatcher.follow_view()
            case act.Evict():
                connection = self._connections.get(action.incarnation.peer)
                if connection is not None and connection.incarnation == action.incarnation:
                    log.warning("%s is out: %s", action.incarnation, action.reason)
                    self._tell(connection, None)
            case act.Launch() | act.SendFence() | act.SendReduce() | act.SendCommit():
                self._dispatcher.begin(action)
            case act.RunFinished():
                if not self._ended.done():
                    self._ended.set_result(action)
                self._context.report(action)
            case _:
                self._context.report(action)

    def _tell(self, connection: _MemberConnection, message: Message | None) -> None:
        if connection.said.full():  # it has not taken a word for thousands of them
            log.warning("%s takes no orders", connection.stream.peer.short)
            connection.said.get_nowait()
            message = None
        connection.said.put_nowait(message)

    def _tell_all(self, message: Message) -> None:
        for connection in self._connections.values():
            if connection.incarnation is not None:
                self._tell(connection, message)
