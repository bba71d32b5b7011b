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
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from p2pswarm.errors import BadMessage, NoRoute, NotServing, SwarmError, Unusable
from p2pswarm.flow.signal import Signal
from p2pswarm.ids import Address, Contact, PeerId
from p2pswarm.rpc.base import Stream
from p2pswarm.state.download import Download
from p2pswarm.state.host_state import HostState, StateSize
from p2pswarm.state.snapshot import Snapshot
from p2pswarm.swarm.messages.membership import Join, Leaving
from p2pswarm.swarm.messages.run import OtherVersion
from p2pswarm.swarm.messages.state import FetchPieces
from p2pswarm.swarm.view import contact
from p2pswarm.trainer import actions as act
from p2pswarm.trainer.connections import Connections, MemberConnection
from p2pswarm.trainer.context import TrainerContext
from p2pswarm.trainer.coordinator import Coordinator
from p2pswarm.trainer.dispatch import Dispatcher
from p2pswarm.trainer.notes import take_note
from p2pswarm.trainer.version_refusals import VersionRefusals
from p2pswarm.trainer.views import Views

log = logging.getLogger(__name__)

FAREWELL_S = 2.0  # for the last words to reach a member
WEIGHTS_S = 3600.0  # to download the trained weights of one stage


@dataclass(frozen=True, slots=True)
class _MemberStream:
    """What wakes and what ends the talk with one member."""

    waker: asyncio.Event
    """There is something to say."""
    scope: asyncio.Timeout
    """Passes when the last words have not been taken in time."""


class Trainer:
    """One run; use it in an `async with`, whose end says goodbye to the members."""

    def __init__(self, context: TrainerContext) -> None:
        self._context = context
        self._coordinator = Coordinator(context.run, context.run_id)
        self._refusals = VersionRefusals()
        self._connections = Connections(Views(context.run.stages))
        self._streams: dict[MemberConnection, _MemberStream] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._empty = asyncio.Event()
        self._empty.set()
        self._stack = AsyncExitStack()
        self._ended: asyncio.Future[act.RunFinished]
        self._dispatcher: Dispatcher
        self._pumping = False
        self._moved = Signal()
        """Fired whenever the coordinator was told something."""

    async def __aenter__(self) -> Self:
        self._ended = asyncio.get_running_loop().create_future()
        tasks = await self._stack.enter_async_context(asyncio.TaskGroup())
        self._dispatcher = Dispatcher(self._context, self._coordinator, tasks, self._pump)
        self._context.rpc.serve_stream(Join, self._attend)
        self._context.rpc.serve_unary(OtherVersion, self._refused)
        self._pump()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._coordinator.closed()
        self._refusals.close()
        self._dispatcher.stop(commits=True)
        ended = self._ended.result() if self._ended.done() else None
        self._connections.finish(ended.reason if ended else "the trainer leaves")
        self._pump()
        await self._empty.wait()
        await self._stack.__aexit__(kind, error, trace)

    async def run(self) -> act.RunFinished:
        """Train until all steps are done or the run cannot go on; how it ended."""
        return await asyncio.shield(self._ended)

    @property
    def coordinator(self) -> Coordinator:
        """Who is in the run, and how far it has come."""
        return self._coordinator

    async def weights(self, sizes: Sequence[StateSize]) -> list[Snapshot]:
        """Download the state of every stage from its servers; the steps stand still meanwhile."""
        self._coordinator.admission.still += 1
        try:
            async with asyncio.timeout(WEIGHTS_S * len(sizes)):
                return [await self._state(stage, size) for stage, size in enumerate(sizes)]
        finally:
            self._coordinator.admission.still -= 1
            self._pump()

    async def _state(self, stage: int, size: StateSize) -> Snapshot:
        coordinator, run = self._coordinator, self._context.run_id

        def servers() -> tuple[Contact, ...]:
            members = coordinator.members.ready(stage)
            if not members:
                raise NoRoute(f"stage {stage} has no server left that holds its weights")
            return tuple(contact(m.record) for m in members)

        while (digest := coordinator.admission.agreed(stage, step := coordinator.step)) is None:
            servers()
            await self._moved.wait()
        state = HostState(size, step, digest, self._moved)

        def donors() -> tuple[Contact, ...]:
            usable = tuple(one for one in servers() if state.usable(one))
            if not usable:
                raise NoRoute(
                    f"every server of stage {stage} gave weights that are not the stage's"
                )
            return usable

        download = Download(self._context.rpc, FetchPieces(run, stage), state)
        await download.run(donors, lambda: state.enough)
        return state.snapshot()

    async def _attend(self, stream: Stream, join: Join) -> None:
        """One member, from its `Join` to the end of its stream."""
        if join.run != self._context.run_id:
            raise NotServing("that run is not trained here; look up the runs again")
        try:
            Address.parse(join.address)
        except ValueError as error:
            raise BadMessage(f"a member without an address: {error}") from error
        connection, reason = self._connections.open(stream.peer.raw), "it ended its stream"
        self._empty.clear()
        try:
            async with asyncio.timeout(None) as scope:
                self._streams[connection] = _MemberStream(asyncio.Event(), scope)
                self._coordinator.joined(connection.peer, join, self._now_s())
                self._pump()
                await self._converse(stream, connection)
        except SwarmError as error:
            reason = str(error) or type(error).__name__
        except TimeoutError:
            reason = "it did not take what was said to it"
        finally:
            self._disconnected(connection, reason)
        if connection.declined is not None:
            raise Unusable(connection.declined)

    def _refused(self, peer: PeerId, notice: OtherVersion) -> OtherVersion:
        """A server cannot read our manifest."""
        self._refusals.receive(peer, notice.speaks, self._now_s())
        self._pump()
        return OtherVersion(self._refusals.ours)

    async def _converse(self, stream: Stream, connection: MemberConnection) -> None:
        """Send and hear notes until either side has enough."""
        hearing = asyncio.ensure_future(self._hear(stream, connection))
        saying = asyncio.ensure_future(self._say(stream, connection))
        both = [hearing, saying]
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            done = [task for task in both if task.done()]
            for task in both:
                task.cancel()
            await asyncio.gather(*both, return_exceptions=True)
        for task in done:
            task.result()

    async def _hear(self, stream: Stream, connection: MemberConnection) -> None:
        while (note := await stream.receive()) is not None:
            if isinstance(note, Leaving):
                return
            take_note(self._coordinator, connection.incarnation, note, self._now_s())
            self._pump()

    async def _say(self, stream: Stream, connection: MemberConnection) -> None:
        waker = self._streams[connection].waker
        while not connection.over:
            while (message := self._connections.next(connection)) is not None:
                await stream.send(message)
            if not connection.over:
                waker.clear()
                await waker.wait()
        if connection.dismissed:  # a socket that closes now could take the last word along
            await asyncio.Event().wait()

    def _disconnected(self, connection: MemberConnection, reason: str) -> None:
        self._streams.pop(connection, None)
        if self._connections.close(connection):
            self._coordinator.withdrawn(connection.peer)
        if not self._connections:
            self._empty.set()
        if connection.incarnation is not None:
            self._coordinator.lost(connection.incarnation, reason, self._now_s())
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
        if self._connections.published():
            self._dispatcher.follow_view()
        for report in self._refusals.events():
            self._context.report(report)
        self._moved.fire()
        for connection in self._connections.changed():
            stream = self._streams[connection]
            stream.waker.set()
            if connection.ending and stream.scope.when() is None:
                stream.scope.reschedule(self._now_s() + FAREWELL_S)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        machines = self._coordinator, self._connections, self._refusals
        due_s = [due_s for each in machines if (due_s := each.next_deadline_s()) is not None]
        if due_s:
            self._timer = asyncio.get_running_loop().call_at(min(due_s), self._due)

    def _due(self) -> None:
        self._timer = None
        self._coordinator.on_deadline(self._now_s())
        self._connections.on_deadline(self._now_s())
        self._refusals.on_deadline(self._now_s())
        self._pump()

    def _carry_out(self, action: act.Action) -> None:
        match action:
            case act.Assign() | act.Decline() | act.Publish() | act.Evict():
                self._tell_members(action)
            case act.Launch() | act.SendFence() | act.SendReduce() | act.SendCommit():
                if isinstance(action, act.SendReduce):
                    self._connections.publish_now(self._now_s())
                self._dispatcher.begin(action)
            case act.CancelLaunch():
                self._dispatcher.cancel(action)
            case act.RunFinished():
                self._dispatcher.stop(commits=action.failed)
                self._connections.refuse(action.reason)
                self._refusals.close()
                self._ended.set_result(action)
                self._context.report(action)
            case _:
                self._context.report(action)

    def _tell_members(self, action: act.Assign | act.Decline | act.Publish | act.Evict) -> None:
        match action:
            case act.Assign():
                self._connections.assign(action.incarnation, action.message)
            case act.Decline():
                self._connections.decline(action.peer, action.reason)
            case act.Publish():
                self._connections.publish(action.changes, self._now_s())
            case act.Evict():
                if self._connections.evict(action.incarnation):
                    log.warning("%s is out: %s", action.incarnation, action.reason)
