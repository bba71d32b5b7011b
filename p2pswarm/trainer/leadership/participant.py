"""A trainer takes part in a run: it stands by, or leads a term, until the run is over."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from types import TracebackType
from typing import Self

from p2pswarm.base.errors import BadMessage, NotServing, SwarmError
from p2pswarm.base.ids import Address, Contact, PeerId
from p2pswarm.net.rpc.base import Rpc, Stream
from p2pswarm.progress.events import Report
from p2pswarm.run.chain.actions import (
    Deposed,
    Followed,
    Leading,
    RecordDecided,
    StoreFailed,
    VotesChanged,
    VotesMissing,
)
from p2pswarm.run.chain.chain_node import ChainNode, Told
from p2pswarm.run.chain.participant import ChainParticipant
from p2pswarm.run.chain.record import CommitRecord, RecordKind, VoterId, digest
from p2pswarm.run.member_cards import with_cards
from p2pswarm.run.member_view import contact
from p2pswarm.run.messages.field_limits import REASON_CHARS
from p2pswarm.run.messages.membership import Join, StandsBy
from p2pswarm.run.messages.run import Finished, OtherVersion, RunOver
from p2pswarm.run.messages.state import FetchSaved
from p2pswarm.run.messages.trainers import (
    REFERENCES_MAX,
    Enlist,
    FetchReferences,
    ReferencePart,
    Whereabouts,
    WhoLeads,
)
from p2pswarm.run.state.base import Snapshot
from p2pswarm.run.state.host_state import StateSize
from p2pswarm.trainer.coordinator.coordinator import Coordinator
from p2pswarm.trainer.coordinator.decision import CoordinatorStart, report_of_inherited
from p2pswarm.trainer.coordinator_io.checkpoints import SavedChain
from p2pswarm.trainer.coordinator_io.coordinator_io import (
    CoordinatorIo,
    CoordinatorOwner,
    download_weights,
)
from p2pswarm.trainer.coordinator_io.server_reports import VersionRefusals, references_of
from p2pswarm.trainer.coordinator_io.trainer_context import TrainerContext
from p2pswarm.trainer.leadership.handover_io import HandoverIo
from p2pswarm.trainer.leadership.known_trainers import KnownTrainers
from p2pswarm.trainer.leadership.proposals import Proposals
from p2pswarm.trainer.leadership.rollback import Rollback
from p2pswarm.trainer.leadership.rollback_io import RollbackIo
from p2pswarm.trainer.leadership.standby_streams import CoordinatorStream, StandbyStreams
from p2pswarm.trainer.reports import actions as act
from p2pswarm.trainer.reports.leadership import Leads, SteppedDown, TrainerEnlisted, VotesLacking
from p2pswarm.trainer.reports.reports import ChainGrown, RunFinished, WentBack


class RefusalNotices:
    """Serves those calls from the start on."""

    def __init__(self, rpc: Rpc, report: Callable[[Report], None]) -> None:
        self._refusals = VersionRefusals()
        self._report = report
        self._timer: asyncio.TimerHandle | None = None
        rpc.serve_unary(OtherVersion, self._refused)

    def close(self) -> None:
        """The run is over: nothing more is told."""
        self._refusals.close()
        self._plan()

    def _refused(self, peer: PeerId, notice: OtherVersion) -> OtherVersion:
        self._refusals.on_notice(peer, notice.speaks, asyncio.get_running_loop().time())
        self._plan()
        return OtherVersion(self._refusals.ours)

    def _plan(self) -> None:
        for report in self._refusals.drain():
            self._report(report)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if (due_s := self._refusals.next_deadline_s()) is not None:
            self._timer = asyncio.get_running_loop().call_at(due_s, self._due)

    def _due(self) -> None:
        self._refusals.on_deadline(asyncio.get_running_loop().time())
        self._plan()


log = logging.getLogger(__name__)

LEAVES = "the trainer leaves"


class Trainer:
    """One run; use it in an `async with`, whose end says goodbye, or leaves the run to others.

    Voters decide which trainer leads (`run/chain/`). The one that does has a `CoordinatorIo`;
    others keep a stream with it, learn from it where everybody is, and take over when it is gone.
    """

    def __init__(self, context: TrainerContext) -> None:
        self._context = context
        self._roll = KnownTrainers(context.rpc.contact)
        for trainer in context.trainers:
            self._roll.on_trainer(trainer)
        self._standbys = StandbyStreams(self._roll, self._announce)
        self._coordination: CoordinatorIo | None = None
        """The run under this trainer, also when it is over; None while another one leads."""
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        context, place = self._context, self._context.chain
        self._ended: asyncio.Future[RunFinished] = asyncio.get_running_loop().create_future()
        self._tasks = await self._stack.enter_async_context(asyncio.TaskGroup())
        voter = VoterId(self._me, place.store.memory)
        self._seat = ChainParticipant(voter, place.restored, context.rng, self._now_s())
        accepted = place.restored.register.accepted
        ours = accepted is not None and accepted.key == place.identity.public_key
        self._told = accepted if ours else None
        """The record that its former life proposed last."""
        self._past = SavedChain(place.restored.learner.chain, place.store)
        self._proposals = Proposals(context, self._seat, self._roll)
        self._rollback = RollbackIo(context, self._past, self._go_back, self._tasks)
        self._node = ChainNode(
            context.rpc, self._seat, place.store, self._find, self._on_chain_event, self._tasks
        )
        self.watch = CoordinatorStream(
            context, self._seat, self._node, self._roll, self._on_finished, self._tasks
        )
        """Its stream with the coordinator, while it stands by."""
        self._handover = HandoverIo(
            context, self._seat, self._node, self._roll, self._find, self._tasks
        )
        context.rpc.serve_stream(Join, self._attend)
        context.rpc.serve_stream(Enlist, self._enlist)
        context.rpc.serve_unary(WhoLeads, self._who_leads)
        context.rpc.serve_stream(FetchSaved, self._give_saved)
        context.rpc.serve_unary(FetchReferences, self._give_references)
        self._refusals = RefusalNotices(context.rpc, context.report)
        self._stack.callback(context.cards.watch(self._on_card))
        if place.leads_at_once:
            self._seat.standby.start(self._now_s())
            self._seat.on_deadline(self._now_s())
        else:
            self.watch.start()
        self._node.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._refusals.close()
        self.watch.stop()
        self._handover.close()
        self._rollback.close()
        ended = self._ended.result() if self._ended.done() else None
        over = ended is not None or not (self._roll.standbys or self._context.chain.lasts)
        if self._coordination is None:
            self._standbys.close(None)
        elif over:
            reason = ended.reason if ended else LEAVES
            version = self._coordination.coordinator.step
            self._standbys.close(Finished(reason[:REASON_CHARS], version))
            await self._coordination.finish(reason)
        else:
            self._standbys.close(None)
            self._coordination.step_down(StandsBy(b"", "", self._coordination.term))
            await self._coordination.wait_ended()
        await self._standbys.wait_closed()
        self._node.close()
        await self._stack.__aexit__(kind, error, trace)

    async def run(self) -> RunFinished:
        """Take part until all steps are done or the run cannot go on; how it ended."""
        return await asyncio.shield(self._ended)

    @property
    def coordinator(self) -> Coordinator:
        """The run under this trainer; ValueError while another one leads."""
        if self._coordination is None:
            raise ValueError("another trainer leads the run")
        return self._coordination.coordinator

    @property
    def leads(self) -> bool:
        """True if this trainer coordinates the run, or has ended it."""
        return self._coordination is not None

    @property
    def term(self) -> int:
        """The highest term in which a trainer is known to have led."""
        return self._coordination.term if self._coordination else self._seat.led_by[1]

    def on_trainers(self, trainers: Sequence[Contact]) -> None:
        """Other trainers offer the run at these addresses."""
        for trainer in trainers:
            self._roll.on_trainer(trainer)

    def on_run_over(self, said_by: bytes, over: RunOver) -> bool:
        """A record says that the run is over: True if a trainer of the run has made it."""
        named = said_by in self._seat.learner.chain.head.trainers
        if self.leads or over.run != self._context.run_id or not named:
            return False
        self._on_finished(Finished(over.reason, over.version))
        return True

    async def save_state(self) -> None:
        """Begin no further step, and return when the present version is saved, or cannot be."""
        if self._coordination is None:
            return  # the one that leads goes on
        self._coordination.coordinator.hold()
        if self._coordination.keeper is not None:
            await self._coordination.keeper.finish()

    async def weights(self, sizes: Sequence[StateSize]) -> list[Snapshot]:
        """Download the state of every stage from its servers; the steps stand still meanwhile."""
        if self._coordination is None:
            raise ValueError("another trainer leads the run")
        return await download_weights(self._coordination, sizes)

    async def _attend(self, stream: Stream, join: Join) -> None:
        """A member joins: only the coordinator takes it."""
        self._check_run(join.run)
        server = Whereabouts(stream.peer.raw, join.address)
        self._on_seeker(server, join.records)
        if self._coordination is None:
            self._handover.on_knock(stream.peer.raw, join)
            await self._handover.wait_to_lead()
        if self._coordination is None:
            await stream.send(self._standing())
            return
        await self._coordination.attend(stream, join)
        if server.peer in self._seat.voters:  # by now; it may know who leads instead
            self._roll.on_voter(server)
        self._doubt(stream.peer.raw)

    def _on_seeker(self, server: Whereabouts, records: int) -> None:
        """A server seeks its coordinator: it may vote, or know more than a trainer that was away.

        A standby that was started again has this from nobody else while the coordinator is silent.
        """
        if server.peer in self._seat.voters:
            self._roll.on_voter(server)
        behind = records > self._seat.learner.chain.head.height
        if behind and self._coordination is None and (contact := server.contact) is not None:
            self._node.overhear(contact)
        if self._coordination is None:
            self._seat.on_seeker(server.peer, self._now_s())
            self._node.pump()

    async def _enlist(self, stream: Stream, enlist: Enlist) -> None:
        self._check_run(enlist.run)
        try:
            contact = Contact(stream.peer, Address.parse(enlist.address))
        except ValueError as error:
            raise BadMessage(f"a trainer without an address: {error}") from error
        if self._coordination is None:
            await stream.send(self._standing())
            return
        self._context.report(TrainerEnlisted(stream.peer.raw, str(contact.address)))
        try:
            await self._standbys.attend(stream, contact)
        except SwarmError:
            self._doubt(stream.peer.raw)
            raise
        self._doubt(stream.peer.raw)

    async def _give_saved(self, stream: Stream, asked: FetchSaved) -> None:
        self._check_run(asked.run)
        if self._coordination is None:
            raise NotServing("another trainer leads the run")
        await self._coordination.give_saved(stream, asked)

    def _give_references(self, _peer: PeerId, asked: FetchReferences) -> ReferencePart:
        self._check_run(asked.run)
        references = references_of(self._context.corpus)
        if references is None or not references.complete:
            raise NotServing("the references are not all computed yet")
        return ReferencePart(references.part(asked.first, REFERENCES_MAX))

    def _who_leads(self, peer: PeerId, question: WhoLeads) -> StandsBy:
        self._check_run(question.run)
        self._on_seeker(Whereabouts(peer.raw, question.address), question.records)
        self._handover.on_search(peer.raw, question.unheard_in)
        return self._standing()

    def _standing(self) -> StandsBy:
        """Return who coordinates the run, as far as this trainer knows."""
        leader, term = self._seat.led_by
        if self._coordination is not None:
            leader, term = self._me, self._coordination.term
        where = self._find(leader) if leader is not None else None
        if leader is None or where is None or (leader == self._me and self._coordination is None):
            return StandsBy(b"", "", term)
        return StandsBy(leader, str(where.address), term, self._context.cards.of(leader))

    def _check_run(self, run: bytes) -> None:
        if run != self._context.run_id:
            raise NotServing("that run is not trained here; look up the runs again")

    def _on_chain_event(self, event: Told) -> None:
        match event:
            case Leading(term=term):
                self._lead(term)
            case RecordDecided(record=record):
                if self._coordination is not None:
                    self._on_record(self._coordination, record)
                elif done := report_of_inherited(record, self._told):
                    self._context.report(done)
            case VotesChanged():
                self._check_voters()
            case Followed(leader=leader):
                self.watch.on_leader(leader)
            case Deposed(why=why):
                self._step_down(why)
            case VotesMissing(voters=voters):
                self._context.report(VotesLacking(tuple(map(self._located, voters))))
            case StoreFailed(reason=reason):
                self._over(RunFinished(reason, failed=True))
                self._step_down(reason)

    def _on_record(self, coordination: CoordinatorIo, record: CommitRecord) -> None:
        match record.kind:
            case RecordKind.BACK:
                self._on_rollback(coordination)
            case RecordKind.VOTERS:
                self._proposals.on_decision(self._now_s())
                self._announce()
                self._check_voters()
            case _:
                self._context.report(ChainGrown(record.height + 1, digest(record)))
                coordination.on_decision(record.step)
                self._announce()

    def _lead(self, term: int) -> None:
        self.watch.stop()
        start = self._coordinate(term)
        self._context.report(Leads(term, start.version))
        self._announce(anew=True)

    def _coordinate(self, term: int, numbered: int = 0) -> CoordinatorStart:
        """Begin to coordinate after the head; `numbered`: the highest number of the term so far."""
        leader, chain = self._seat.leader, self._seat.learner.chain
        assert leader is not None, "it leads"
        start = CoordinatorStart.of_chain(term, leader.head, chain, numbered)
        references = references_of(self._context.corpus)
        if references is not None and start.version == 0:  # else it says so when it makes a row
            due = references.due(self._context.run.batch.rows)
            start = replace(start, references=due)
        self._proposals.clear()
        owner = CoordinatorOwner(
            self._decide,
            self._over,
            self._past,
            self._rollback.begin,
            self._check_voters,
            self._roll.quarantines,
        )
        self._coordination = CoordinatorIo(self._context, start, owner, self._tasks)
        self._standbys.quiet = False
        if start.loads:
            self._rollback.find_present(self._coordination)
        self._handover.start(self._coordination)
        return start

    def _go_back(self, to: Rollback) -> None:
        if self._coordination is not None:
            self._proposals.propose_rollback(to, self._coordination, self._now_s())
            self._node.pump()

    def _on_rollback(self, before: CoordinatorIo) -> None:
        """The run goes on from an earlier version: all members come anew."""
        before.step_down()
        start = self._coordinate(before.term, before.coordinator.numbered)
        self._context.report(WentBack(start.version, before.coordinator.step))
        self._announce(anew=True)

    def _step_down(self, why: str) -> None:
        if self._coordination is None:
            return  # an attempt to lead that came to nothing
        coordination, self._coordination = self._coordination, None
        then = self._standing()
        coordination.step_down(then)
        self._handover.stop()
        self._standbys.dismiss(None)
        self._context.report(SteppedDown(why))
        self.watch.start()

    def _decide(self, decide: act.Decide) -> None:
        if self._coordination is not None:
            self._proposals.propose_step(decide, self._coordination, self._now_s())
            self._node.pump()

    def _check_voters(self) -> None:
        """Have others vote, if a voter is dead or missing; fall quiet if too many do not answer."""
        if self._coordination is not None and not self._ended.done():
            self._fall_quiet(self._coordination)
            self._proposals.propose_voters(self._coordination, self._now_s())
            self._node.pump()

    def _fall_quiet(self, coordination: CoordinatorIo) -> None:
        """Let members and standbys look for another coordinator while this one decides nothing."""
        leader = self._seat.leader
        self._standbys.quiet = quiet = leader is not None and leader.quiet
        coordination.fall_quiet(quiet=quiet)

    def _doubt(self, peer: bytes) -> None:
        """The stream of a member or of a standby has ended: it may be dead, and a voter."""
        self._seat.doubt(peer)
        self._node.pump()

    def _announce(self, *, anew: bool = False) -> None:
        """Tell standbys and members who may lead and who votes, if that is news, or `anew`."""
        leader, coordination = self._seat.leader, self._coordination
        if leader is None or coordination is None:
            return
        self._proposals.meet(coordination)
        run = self._context.run_id
        said = self._roll.say(run, coordination.term, leader.head, self._find)
        trainers = with_cards(self._context.cards, said)
        if self._standbys.announce(trainers) or anew:
            coordination.announce(trainers)

    def _on_card(self, peer: bytes) -> None:
        if self._roll.find(peer) is not None:
            self._announce()

    def _located(self, voter: VoterId) -> tuple[bytes, str]:
        where = self._find(voter.peer)
        return voter.peer, str(where.address) if where else ""

    def _find(self, peer: bytes) -> Contact | None:
        if (known := self._roll.find(peer)) is not None:
            return known
        member = (
            self._coordination.coordinator.members.of_peer(peer) if self._coordination else None
        )
        return contact(member.record) if member else None

    def _on_finished(self, finished: Finished) -> None:
        """The coordinator says that the run is over; its last record may not have come here."""
        version = max(finished.version or 0, self._seat.learner.chain.head.version)
        failed = version < self._context.run.steps
        self._over(RunFinished(finished.reason, failed, version))

    def _over(self, finished: RunFinished) -> None:
        self._refusals.close()
        self._handover.close()
        if not self._ended.done():
            self._ended.set_result(finished)
            self._context.report(finished)

    @property
    def _me(self) -> bytes:
        return self._context.chain.identity.peer_id.raw

    def _now_s(self) -> float:
        return asyncio.get_running_loop().time()
