"""One term of a trainer as coordinator: keeps every member's stream, and does what is decided."""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from p2pswarm.base.errors import BadMessage, NoRoute, NotServing, SwarmError, Unusable
from p2pswarm.base.ids import Address, Contact
from p2pswarm.base.machine import Machine
from p2pswarm.base.signal import Signal
from p2pswarm.base.suspend_aware_clock import SuspendAwareClock
from p2pswarm.checkpoint.checkpoint_io import last_of
from p2pswarm.net.rpc.base import Stream
from p2pswarm.net.wire.message import Message
from p2pswarm.progress.events import Report
from p2pswarm.run.member_view import Incarnation, contact
from p2pswarm.run.messages.checkpoint import LoadState
from p2pswarm.run.messages.membership import (
    Join,
    Leaving,
    MayLeave,
    MemberFacts,
    MoveTo,
    PrepareStage,
    StandsBy,
)
from p2pswarm.run.messages.state import FetchPieces, FetchSaved
from p2pswarm.run.messages.trainers import Trainers, Unheard
from p2pswarm.run.state.base import Snapshot
from p2pswarm.run.state.host_state import HostState, StateSize
from p2pswarm.run.state.piece_download_io import Download
from p2pswarm.trainer.balance.balance_reports import OrderedMove, OrderedPreparation
from p2pswarm.trainer.balance.codec_choice import codec_tables
from p2pswarm.trainer.balance.move_preparation import StopPreparing
from p2pswarm.trainer.coordinator.coordinator import Coordinator
from p2pswarm.trainer.coordinator.decision import CoordinatorStart
from p2pswarm.trainer.coordinator_io.checkpoint_donor_io import CheckpointDonor
from p2pswarm.trainer.coordinator_io.checkpoints import SavedChain
from p2pswarm.trainer.coordinator_io.checkpoints_io import CheckpointsIo, newest_copy
from p2pswarm.trainer.coordinator_io.connections import Connections, MemberConnection
from p2pswarm.trainer.coordinator_io.dispatch import Dispatcher
from p2pswarm.trainer.coordinator_io.server_reports import on_report, references_of
from p2pswarm.trainer.coordinator_io.trainer_context import Proof, TrainerContext
from p2pswarm.trainer.coordinator_io.views import Views
from p2pswarm.trainer.members.quarantine import Quarantines
from p2pswarm.trainer.reports import actions as act
from p2pswarm.trainer.reports.reports import (
    FactsKnown,
    LastLeaves,
    ReferencesKnown,
    RunFinished,
    StepDone,
)


async def prove_states(
    proof: Proof,
    stages: int,
    disputed: Callable[[], list[int]],
    told: Callable[[int, bytes | None], None],
) -> None:
    """Tell the digest of every stage, first of those that are disputed; None: it cannot be proved.

    No record names these states yet. They follow from the seed, or from the checkpoint that the run
    goes on from, so a trainer needs no word of a server. It takes as long as drawing or reading the
    model, on a thread that lets all others go first.
    """
    left = list(range(stages))
    while left:
        stage = min(left, key=lambda one: (one not in disputed(), one))
        left.remove(stage)
        try:
            digest = await last_of(lambda stage=stage: proof(stage))  # type: ignore[misc]
        except Unusable as error:
            log.warning("what stage %d begins with cannot be proved: %s", stage, error)
            told(stage, None)
        else:
            told(stage, digest)


log = logging.getLogger(__name__)

FAREWELL_S = 2.0  # for the last words to reach a member
SECRET_BYTES = 32  # nobody can foresee then which microbatches are checked


@dataclass(frozen=True, slots=True)
class CoordinatorOwner:
    """Callbacks to the trainer whose term it is."""

    decide: Callable[[act.Decide], None]
    """Have the record of a step decided."""
    on_finish: Callable[[RunFinished], None]
    """The run is over."""
    chain: SavedChain
    """For checkpoints."""
    go_back: Callable[["CoordinatorIo"], None]
    """A stage has been without its weights for too long."""
    on_member: Callable[[], None]
    """A member has joined: it may vote."""
    quarantines: Quarantines
    """Those that it knows, whoever led when they were found."""


@dataclass(frozen=True, slots=True)
class _MemberStream:
    """The event that wakes the talk with one member, and the timeout that ends it."""

    waker: asyncio.Event
    """There is something to say."""
    scope: asyncio.Timeout
    """Passes when the last words have not been taken in time."""


class CoordinatorIo:
    """One run under this trainer, until it is over or another trainer leads.

    It feeds one event at a time to the coordinator and carries out every action before the next.
    Its own link carries tokens, notes and orders; activations and gradients go between the
    servers.
    """

    def __init__(
        self,
        context: TrainerContext,
        start: CoordinatorStart,
        owner: CoordinatorOwner,
        tasks: asyncio.TaskGroup,
    ) -> None:
        self.term = start.term
        named = start.last is not None or start.states  # by a record
        start = replace(start, provable=context.proof is not None and not named)
        secret = context.rng.randbytes(SECRET_BYTES) if context.run.spot_check_share else b""
        codecs = codec_tables(context.run, start.version, start.codecs, context.codec_rule)
        self.coordinator = Coordinator(
            context.run, context.run_id, start, secret, codecs, owner.quarantines
        )
        self._context = context
        self._owner = owner
        self._connections = Connections(Views(context.run.stages, context.run.tied_ends))
        self._streams: dict[MemberConnection, _MemberStream] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._empty = asyncio.Event()
        self._empty.set()
        self._loop = asyncio.get_running_loop()
        self._clock = SuspendAwareClock(self._loop.time())
        self._dispatcher = Dispatcher(context, self.coordinator, tasks, self.pump, self.now_s)
        self.keeper: CheckpointsIo | None = None
        """Has checkpoints written, if the run has a target."""
        if (plan := context.saving) is not None:
            self.keeper = CheckpointsIo(
                context, plan, self.coordinator, owner.chain, self._say_to, self.state, tasks
            )
        self._proving: asyncio.Task[None] | None = None
        if start.provable:
            self._proving = tasks.create_task(self._prove())
        self._load: LoadState | None = None
        self._loading: list[Incarnation] = []
        self._donor = CheckpointDonor(context.run)
        self._pumping = False
        self.moved = Signal()
        """Fired whenever the coordinator was told something."""
        self._watch_no_more = context.cards.watch(self._on_card)

    def on_decision(self, step: int) -> None:
        """The voters have accepted the record of a step."""
        self.coordinator.on_decision(step, self.now_s())
        self._donor.close()  # what the run began with is of no use to anybody any more
        self.pump()

    def load_from(self, order: LoadState) -> None:
        """Tell the members that load their first state, and those that come, where it is."""
        self._load = order
        for member in self._loading:
            self._connections.say(member, order)
        self.pump()

    async def give_saved(self, stream: Stream, asked: FetchSaved) -> None:
        """Give a member the state that the run begins with; it may not open the checkpoint."""
        order, member = self._load, self.coordinator.members.of_peer(stream.peer.raw)
        if order is None or order.source.begins != self.coordinator.step:
            raise NotServing("no state is loaded now")
        if member is None or member.stage != asked.stage:
            raise NotServing("only a member of the stage may ask for its state")
        await self._donor.serve(stream, asked.stage, order)

    def _on_card(self, peer: bytes) -> None:
        self.coordinator.on_card(peer, self._context.cards.of(peer))
        self.pump()

    def announce(self, trainers: Trainers) -> None:
        """Tell all members who may lead and who votes."""
        self._connections.announce(trainers)
        self.pump()

    def fall_quiet(self, *, quiet: bool) -> None:
        """Tell members no more that this trainer coordinates, because it decides nothing; or do."""
        self._connections.quiet = quiet
        self.coordinator.silence.on_quiet(quiet=quiet)

    def step_down(self, then: StandsBy | None = None) -> None:
        """Another trainer leads, or will: tell members; None: the run goes back."""
        self._close()
        self._connections.abandon(then)
        self.pump()

    async def finish(self, reason: str) -> None:
        """Say goodbye to all members, and wait until they have heard it."""
        self._close()
        self._connections.finish(reason)
        self.pump()
        await self._empty.wait()

    async def wait_ended(self) -> None:
        """Wait until every stream has ended."""
        await self._empty.wait()

    async def attend(self, stream: Stream, join: Join) -> None:
        """One member, from its `Join` to the end of its stream."""
        try:
            Address.parse(join.address)
        except ValueError as error:
            raise BadMessage(f"a member without an address: {error}") from error
        self._context.cards.learn(stream.peer.raw, join.card, stream.peer)
        connection, reason = self._connections.open(stream.peer.raw), "it ended its stream"
        self._empty.clear()
        try:
            async with asyncio.timeout(None) as scope:
                self._streams[connection] = _MemberStream(asyncio.Event(), scope)
                self.coordinator.on_join(connection.peer, join, self.now_s())
                self.pump()
                await self._converse(stream, connection)
        except SwarmError as error:
            reason = str(error) or type(error).__name__
        except TimeoutError:
            reason = "it did not take what was said to it"
        finally:
            self._disconnected(connection, reason)
        if connection.declined is not None:
            raise Unusable(connection.declined)

    async def _converse(self, stream: Stream, connection: MemberConnection) -> None:
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
                connection.leaves = True
                return
            if self.keeper is not None and self.keeper.on_report(connection.incarnation, note):
                continue
            if isinstance(note, MemberFacts) and connection.incarnation is not None:
                self._context.report(FactsKnown(connection.incarnation, note))
                continue
            if on_report(self.coordinator, connection.incarnation, note, self.now_s()):
                self.pump()

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
            self.coordinator.on_withdrawal(connection.peer)
        if not self._connections:
            self._empty.set()
        if connection.incarnation is not None:
            if self.keeper is not None:
                self.keeper.on_end(connection.incarnation)
            returns = not connection.leaves
            self.coordinator.on_stream_end(
                connection.incarnation, reason, self.now_s(), returns=returns
            )
            self.pump()

    def on_deaf_members(self, members: Sequence[Unheard]) -> None:
        """A standby says that these members hear nothing from this trainer."""
        deaf = [Incarnation(one.peer, one.incarnation) for one in members]
        self.coordinator.silence.on_deaf_members(deaf, self.now_s())
        self.pump()

    def silent(self, member: Incarnation) -> bool:
        """Return whether nothing has come from a member for too long."""
        return self.coordinator.silence.silent(member, self.now_s())

    @contextlib.contextmanager
    def standing_still(self) -> Iterator[None]:
        """Reduce no step in this block: somebody fetches the weights of one version."""
        self.coordinator.keep_still(self.now_s(), still=True)
        try:
            yield
        finally:
            self.coordinator.keep_still(self.now_s(), still=False)
            self.pump()

    async def state(self, stage: int, size: StateSize) -> Snapshot:
        """Download the state of a stage from its servers; the steps stand still meanwhile.

        Errors: NoRoute where nobody has the weights.
        """
        with self.standing_still():
            coordinator, run = self.coordinator, self._context.run_id
            digests = coordinator.admission.digests
            while (digest := digests.known(stage, step := coordinator.step)) is None:
                self._holders(stage)
                await self.moved.wait()
            has_base = self._context.run.has_base
            state = HostState(size, step, digest, self.moved, has_base=has_base)
            download = Download(self._context.rpc, FetchPieces(run, stage), state)

            def donors() -> tuple[Contact, ...]:
                usable = tuple(one for one in self._holders(stage) if state.usable(one))
                if not usable:
                    raise NoRoute(
                        f"all servers of stage {stage} gave weights that are not the stage's"
                    )
                return usable

            await download.run(donors, lambda: state.rules.complete)
            return state.snapshot()

    def _holders(self, stage: int) -> tuple[Contact, ...]:
        members = self.coordinator.members.ready(stage)
        if not members:
            raise NoRoute(f"stage {stage} has no server left that holds its weights")
        return tuple(contact(member.record) for member in members)

    def _say_to(self, member: Incarnation, message: Message) -> None:
        self._connections.say(member, message)
        self.pump()

    async def _prove(self) -> None:
        coordinator, context = self.coordinator, self._context
        assert context.proof is not None, "else nothing is proved"

        def told(stage: int, digest: bytes | None) -> None:
            coordinator.on_proof(stage, digest, self.now_s())
            self.pump()

        disputed = coordinator.admission.digests.disputed
        await prove_states(context.proof, context.run.stages, disputed, told)

    def _close(self) -> None:
        self.coordinator.close()
        self._watch_no_more()
        self._donor.close()
        if self.keeper is not None:
            self.keeper.close()
        if self._proving is not None:
            self._proving.cancel()
        self._dispatcher.stop(commits=True)

    def now_s(self) -> float:
        """The time; it stands still while this process is stopped."""
        return self._clock.read(self._loop.time())

    def pump(self) -> None:
        """Carry out all that the coordinator asks, and wake it when it wants."""
        if self._pumping:
            return  # the loop below will see to it
        self._pumping = True
        try:
            while actions := self.coordinator.drain():
                self._connections.beside(self.coordinator.beside, self.now_s())
                for action in actions:
                    self._carry_out(action)
        finally:
            self._pumping = False
        if self._connections.published():
            self._dispatcher.follow_view()
        self.moved.fire()
        for connection in self._connections.drain():
            stream = self._streams[connection]
            stream.waker.set()
            if connection.ending and stream.scope.when() is None:
                stream.scope.reschedule(self._loop.time() + FAREWELL_S)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        machines: tuple[Machine[object], ...] = self.coordinator, self._connections
        due_s = [due_s for each in machines if (due_s := each.next_deadline_s()) is not None]
        if due_s:
            timer_s = self._clock.timer_s(min(due_s))
            self._timer = self._loop.call_at(timer_s, self._due)

    def _due(self) -> None:
        self._timer = None
        self.coordinator.on_deadline(self.now_s())
        self._connections.on_deadline(self.now_s())
        self.pump()

    def _carry_out(self, action: act.Action) -> None:
        match action:
            case act.Assign() | act.Decline() | act.Publish() | act.AnswerLeave() | act.Evict():
                self._tell_members(action)
            case (
                act.Launch()
                | act.CountTargets()
                | act.SendFence()
                | act.SendReduce()
                | act.SendCommit()
            ):
                if isinstance(action, act.SendReduce):
                    self._connections.publish_now(self.now_s())
                self._dispatcher.begin(action)
            case act.CancelLaunch():
                self._dispatcher.cancel(action)
            case act.Probe():
                self._dispatcher.probe(action)
            case act.Decide() | act.GoBack() | act.SeekCopy():
                self._ask_owner(action)
            case RunFinished():
                self._dispatcher.stop(commits=action.failed)
                self._connections.refuse(action.reason)
                self._owner.on_finish(action)
            case StepDone() | LastLeaves():
                self._report_and_save(action)
            case act.KeepReferences():
                self._keep(action)
            case _:
                self._tell_mover(action)
                self._context.report(action)

    def _keep(self, action: act.KeepReferences) -> None:
        """Write references to their file; people hear of each tenth of them."""
        references = references_of(self._context.corpus)
        assert references is not None, "they were asked for"
        before, rows = references.known, self._context.run.batch.rows
        try:
            references.keep(action.batch * rows, action.scores)
        except Unusable as reason:
            self._context.text_lost(reason)
        report = ReferencesKnown(references.known, len(references), str(references.path))
        if report.tenth > report.tenth_of(before):
            self._context.report(report)

    def _tell_mover(self, report: Report) -> None:
        """Send a server to another stage, or have it prepare for one, if that is what is said."""
        match report:
            case OrderedMove(incarnation, _, target):
                self._connections.say(incarnation, MoveTo(target, report.worth))
            case OrderedPreparation():
                self._connections.say(report.incarnation, report.order)
            case StopPreparing():
                self._connections.say(report.move.mover, PrepareStage(None))

    def _ask_owner(self, action: act.Decide | act.GoBack | act.SeekCopy) -> None:
        match action:
            case act.Decide():
                self._owner.decide(action)
            case act.GoBack():
                self._owner.go_back(self)
            case act.SeekCopy():
                self._context.report(newest_copy(action, self._context.saving, self.keeper))

    def _report_and_save(self, action: StepDone | LastLeaves) -> None:
        keeper = self.keeper
        if isinstance(action, LastLeaves):
            action = replace(action, saved=keeper is not None)
        self._context.report(action)
        if keeper is None:
            return
        if isinstance(action, StepDone):
            keeper.on_decision(action.step + 1)
        else:
            keeper.save_now()

    def _tell_members(
        self, action: act.Assign | act.Decline | act.Publish | act.AnswerLeave | act.Evict
    ) -> None:
        match action:
            case act.AnswerLeave(incarnation, may):
                self._connections.say(incarnation, MayLeave(may))
            case act.Assign():
                self._connections.assign(action.incarnation, action.message)
                self.coordinator.silence.on_word(action.incarnation, self.now_s())  # its Join
                self._owner.on_member()
                if action.message.loads:
                    self._loading.append(action.incarnation)
                    if self._load is not None:
                        self._connections.say(action.incarnation, self._load)
            case act.Decline():
                self._connections.decline(action.peer, action.reason)
            case act.Publish():
                self._connections.publish(action.changes, self.now_s())
            case act.Evict():
                if self._connections.evict(action.incarnation):
                    log.warning("%s is out: %s", action.incarnation, action.reason)


WEIGHTS_S = 3600.0  # to download the state of one stage


async def download_weights(
    coordination: CoordinatorIo, sizes: Sequence[StateSize]
) -> list[Snapshot]:
    """The state of every stage, all of one version: no step is reduced before they are here.

    Errors: NoRoute where nobody has a stage's weights; TimeoutError where they do not come.
    """
    async with asyncio.timeout(WEIGHTS_S * len(sizes)):
        with coordination.standing_still():
            return [await coordination.state(stage, size) for stage, size in enumerate(sizes)]
