"""Proposals of the leading trainer, one record at a time: steps, rollbacks, and who votes."""

from collections.abc import Callable, Container
from dataclasses import replace

from p2pswarm.base.token_bucket import TokenBucket
from p2pswarm.run.chain.chain import BrokenRecord
from p2pswarm.run.chain.leader import Leader
from p2pswarm.run.chain.participant import ChainParticipant
from p2pswarm.run.chain.record import CommitRecord, RecordKind, VoterId, sign
from p2pswarm.trainer.coordinator.decision import (
    as_back,
    as_voters,
    back_to,
    unsigned_record,
    voters_only,
)
from p2pswarm.trainer.coordinator_io.coordinator_io import CoordinatorIo
from p2pswarm.trainer.coordinator_io.trainer_context import TrainerContext
from p2pswarm.trainer.leadership.known_trainers import KnownTrainers, longest_serving
from p2pswarm.trainer.leadership.rollback import Rollback
from p2pswarm.trainer.reports import actions as act
from p2pswarm.trainer.reports.leadership import VotesAlone
from p2pswarm.trainer.reports.reports import CannotGoBack

SPARE_S = 5.0  # servers join a new coordinator within a second, most of them: wait for a spare
AT_ONCE = 4  # a takeover takes two: dead voters are replaced, then missing ones added; and twice
AGAIN_S = 10.0  # a voter that comes and goes adds 360 records an hour, less than half a megabyte


class VoterChanges:
    """Limits of records that only change the voters.

    A step may take minutes, and each voter that dies meanwhile brings the run nearer to where
    nobody can decide. So a dead voter is replaced at once, and missing ones are added at once.
    """

    def __init__(self) -> None:
        self._since_s: float | None = None
        """Time since which a voter is lost."""
        self._purse = TokenBucket(AGAIN_S, AT_ONCE)

    def due(
        self,
        voters: tuple[VoterId, ...],
        following: tuple[VoterId, ...],
        lost: Container[bytes],
        now_s: float,
    ) -> bool:
        """Return whether to change `voters` into `following` now; `lost` do not answer."""
        dead = sum(voter.peer in lost for voter in voters)
        if 2 * dead >= len(voters):
            self.reset()
            return False  # nothing is decided until some are back, and they may be all back then
        if not dead:
            self.reset()
            return len(following) > len(voters) and self._purse.left(now_s)
        if self._since_s is None:
            self._since_s = now_s
        if following == voters:
            return False
        patient = len(following) >= len(voters) or now_s >= self._since_s + SPARE_S
        return patient and self._purse.left(now_s)

    def reset(self) -> None:
        """No voter is to be waited for."""
        self._since_s = None

    def on_proposal(self, now_s: float) -> None:
        """Such a record was proposed."""
        self._purse.take(now_s)


class Proposals:
    """The records of one trainer, whenever it leads.

    A record that only changes the voters may be under way when a step is done. Then the step waits
    for it, a round trip, and names what it follows.
    """

    def __init__(
        self, context: TrainerContext, seat: ChainParticipant, roll: KnownTrainers
    ) -> None:
        self._context = context
        self._seat = seat
        self._roll = roll
        self._changes = VoterChanges()
        self._told = False
        """True if people know that only this trainer votes though others stand by."""
        self._next: Callable[[float], None] | None = None
        """Proposal that waits until the record under way is decided."""

    def clear(self) -> None:
        """Another trainer leads, or members begin anew: what waited is void."""
        self._next = None

    def on_decision(self, now_s: float) -> None:
        """A record of voters is decided: what waited for it may follow."""
        following, self._next = self._next, None
        if following is not None:
            following(now_s)

    def propose_step(self, decide: act.Decide, coordination: CoordinatorIo, now_s: float) -> None:
        """Have the record of a step decided."""
        leader = self._leading
        if leader is None:
            return  # deposed: the next coordinator does the step anew
        if self._changing(leader):
            self._next = lambda later_s: self.propose_step(decide, coordination, later_s)
            return
        record = self._following(decide, leader, coordination)
        if (keeper := coordination.keeper) is not None:
            record = replace(record, saved=max(record.saved, keeper.saved))
        self._seat.propose(self._signed(record), now_s)

    def propose_rollback(self, to: Rollback, coordination: CoordinatorIo, now_s: float) -> None:
        """Have it decided that the run goes back, unless a step is being decided."""
        leader = self._leading
        if leader is None or not coordination.coordinator.may_go_back:
            return
        if leader.pending is not None:
            if self._changing(leader):
                self._next = lambda later_s: self.propose_rollback(to, coordination, later_s)
            return
        decide = back_to(to.version, to.states)
        record = self._signed(as_back(self._following(decide, leader, coordination)))
        try:
            self._seat.learner.chain.check(record)
        except BrokenRecord as error:
            self._context.report(CannotGoBack(str(error)))
            return
        coordination.hold()  # no step is decided beside it
        self._seat.propose(record, now_s)

    def propose_voters(self, coordination: CoordinatorIo, now_s: float) -> None:
        """Have others vote from now on, if a voter is dead or one is missing."""
        leader = self._leading
        if leader is None or leader.pending is not None:
            return
        voters, lost = leader.head.voters, leader.votes.lost
        trainers = self._roll.next_trainers(leader.head.trainers)
        wanted = self._roll.wanted_voters(trainers, leader.votes)
        if len(voters) >= wanted and not any(voter.peer in lost for voter in voters):
            self._changes.reset()
            return  # the usual case, in which nobody has to be met
        decide = voters_only(leader.head, self._context.run.stages)
        record = as_voters(self._following(decide, leader, coordination))
        if record.voters == voters and len(voters) == 1:
            self._tell_alone(coordination)
        if self._changes.due(voters, record.voters, lost, now_s):
            self._changes.on_proposal(now_s)
            self._seat.propose(self._signed(record), now_s)

    def _tell_alone(self, coordination: CoordinatorIo) -> None:
        """Tell people, once, that a standby can take over only if more may vote."""
        ready = coordination.coordinator.members.ready()
        barred = not all(self._context.may_vote(member.incarnation.peer) for member in ready)
        if barred and self._roll.standbys and not self._told:
            self._told = True
            self._context.report(VotesAlone())

    def meet(self, coordination: CoordinatorIo) -> list[bytes]:
        """Let those hear of us who may become voters; the servers among them, best ones first."""
        leader = self._leading
        assert leader is not None, "it leads"
        members, voters = coordination.coordinator.members, leader.head.voters
        servers = [
            peer
            for some in (members.ready(), members.waiting())
            for peer in longest_serving(
                [(m.incarnation.number, m.incarnation.peer) for m in some], voters
            )
            if self._context.may_vote(peer)
        ]
        self._seat.meet((*self._roll.standbys, *servers))
        return servers

    @property
    def _leading(self) -> Leader | None:
        leader = self._seat.leader
        return leader if leader is not None and leader.leads else None

    def _changing(self, leader: Leader) -> bool:
        """Return whether a record is under way that changes the voters only."""
        return leader.pending is not None and leader.pending.kind == RecordKind.VOTERS

    def _following(
        self, decide: act.Decide, leader: Leader, coordination: CoordinatorIo
    ) -> CommitRecord:
        servers = self.meet(coordination)
        trainers = self._roll.next_trainers(leader.head.trainers)
        voters = self._roll.next_voters(leader.head, trainers, leader.votes, servers)
        return unsigned_record(
            decide,
            leader.head,
            leader.attempt.term,
            self._context.run_id,
            self._context.run,
            trainers,
            voters,
        )

    def _signed(self, record: CommitRecord) -> CommitRecord:
        return sign(record, self._context.chain.identity)
