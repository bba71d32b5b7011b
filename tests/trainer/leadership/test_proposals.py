"""Tests of `trainer/leadership/proposals.py`."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st
from run.chain.harness import MICROBATCHES, RUN, STAGES, key, peer, revote, stage_commit, voter
from run.chain.town import Town, begun
from run.chain.world import Node

from p2pswarm.base.ids import Address, Contact, PeerId
from p2pswarm.progress.events import Report
from p2pswarm.run.chain.messages import Propose
from p2pswarm.run.chain.record import RecordKind, VoterId, first_number
from p2pswarm.run.member_view import Incarnation
from p2pswarm.settings.config import BatchConfig, RunConfig
from p2pswarm.trainer.leadership.known_trainers import KnownTrainers
from p2pswarm.trainer.leadership.proposals import AGAIN_S, AT_ONCE, SPARE_S, Proposals, VoterChanges
from p2pswarm.trainer.leadership.rollback import Rollback
from p2pswarm.trainer.members.membership import Membership
from p2pswarm.trainer.reports import actions as act
from p2pswarm.trainer.reports.leadership import VotesAlone
from p2pswarm.trainer.reports.reports import CannotGoBack


@dataclass
class Place:
    identity: object = field(default_factory=lambda: key("a"))


@dataclass
class Context:
    """As much of a trainer's context as proposals need."""

    reports: list
    run_id: bytes = RUN
    run: RunConfig = field(
        default_factory=lambda: RunConfig(
            stages=STAGES, batch=BatchConfig(microbatches=MICROBATCHES)
        )
    )
    chain: Place = field(default_factory=Place)
    strangers: tuple[bytes, ...] = ()

    def may_vote(self, server: bytes) -> bool:
        return server not in self.strangers

    def report(self, report: Report) -> None:
        self.reports.append(report)


@dataclass
class Coordination:
    """The members, and whether the run may go back; it is its own coordinator."""

    members: Membership = field(default_factory=lambda: Membership(STAGES))
    may_go_back: bool = True
    held: bool = False
    keeper: None = None

    @property
    def coordinator(self) -> "Coordination":
        return self

    def hold(self) -> None:
        self.held = True


class Play:
    """Trainers a and b, of which a leads; c votes with them, d and e are servers that may."""

    def __init__(self, *servers: str, strangers: str = "", voters: str = "abc") -> None:
        self.town: Town = begun("ab", voters)
        for name in "cde":
            if name not in self.town.nodes:
                self.town.nodes[name] = Node(name)
                self.town.start(name)
        self.seat = self.town.seats["a"]
        self.roll = KnownTrainers(contact("a"))
        self.roll.on_standby(contact("b"))
        self.reports: list = []
        self.coordination = Coordination()
        self.joins("c", *servers)
        barred = tuple(peer(name) for name in strangers)
        self.proposals = Proposals(Context(self.reports, strangers=barred), self.seat, self.roll)
        self.proposals.propose_step(self.step(), self.coordination, self.town.now_s)
        self.run(1.0)
        assert self.head.height == 1

    @property
    def head(self):
        return self.seat.leader.head

    @property
    def names(self) -> list[str]:
        return [self.town.named(one.peer) for one in self.head.voters]

    def joins(self, *names: str) -> None:
        for name in names:
            member = self.coordination.members.admit(peer(name), "10.0.0.1:1", 0, 0)
            self.coordination.members.make_ready(member.incarnation)

    def leaves(self, name: str) -> None:
        member = self.coordination.members.of_peer(peer(name))
        self.coordination.members.end(Incarnation(peer(name), member.incarnation.number))

    def dies(self, name: str) -> None:
        """Its process is gone, and each call to it fails."""
        self.town.kill(name)
        self.seat.doubt(peer(name))
        self.seat.on_silence(peer(name))
        self.seat.actions()

    def step(self) -> act.Decide:
        version, term = self.seat.leader.head.version, self.seat.leader.attempt.term
        stages = tuple(stage_commit(version, term, stage) for stage in range(STAGES))
        return act.Decide(version, first_number(term), 1.0, 0.1, 2.5, 1.5, stages)

    def voters(self) -> None:
        """The trainer looks who should vote, and what it proposes is decided."""
        self.looks()
        self.run(0.2)

    def looks(self) -> None:
        self.proposals.propose_voters(self.coordination, self.town.now_s)

    def run(self, seconds: float) -> None:
        before = self.head
        self.town.carry_out("a")
        self.town.run(self.town.now_s + seconds)
        if self.head != before:
            self.proposals.on_decision(self.town.now_s)
            self.town.carry_out("a")


def contact(name: str) -> Contact:
    return Contact(PeerId(peer(name)), Address("10.0.0.1", 4000))


def test_a_dead_voter_is_replaced_without_a_step():
    play = Play("d")
    assert play.names == ["a", "b", "c"]

    play.dies("c")
    play.leaves("c")
    play.voters()

    assert play.names == ["a", "b", "d"]
    assert (play.head.height, play.head.version) == (2, 1)
    play.voters()
    assert play.head.height == 2


def test_a_server_that_the_owner_has_not_invited_is_never_named_as_a_voter():
    play = Play("d", "e", strangers="d")

    play.dies("c")
    play.leaves("c")
    play.voters()

    assert play.names == ["a", "b", "e"]
    play.dies("e")
    play.leaves("e")
    for _ in range(3):
        play.run(SPARE_S)
        play.voters()
    assert "d" not in play.names


@pytest.mark.parametrize(("strangers", "told"), [("c", 1), ("", 0)])
def test_people_hear_once_that_a_standby_could_not_take_over(strangers, told):
    play = Play("d", strangers=strangers + "d", voters="a")
    for _ in range(3):
        play.voters()

    assert play.reports.count(VotesAlone()) == told
    assert len(play.names) == (1 if told else 3)


def test_while_all_voters_live_nothing_is_proposed():
    play = Play("d", "e")

    play.voters()
    play.leaves("c")
    play.voters()

    assert play.head.height == 1


def test_a_server_that_never_answered_is_no_spare():
    play = Play("d")
    play.town.away.add("e")
    play.leaves("d")
    play.joins("e")

    play.dies("c")
    play.voters()

    assert play.head.height == 1


def test_without_a_spare_two_voters_are_removed_after_a_while():
    play = Play()

    play.dies("c")
    play.voters()
    assert play.head.height == 1

    play.run(SPARE_S)
    play.voters()
    assert play.names == ["a"]


def test_before_the_first_step_there_is_no_such_record():
    play = Play("d")
    play.town = begun("ab", "abc")
    play.seat = play.town.seats["a"]
    proposals = Proposals(Context([]), play.seat, play.roll)
    play.seat.on_silence(peer("c"))

    proposals.propose_voters(play.coordination, play.town.now_s)

    assert play.seat.leader.pending is None


def test_a_step_waits_for_the_record_of_voters_and_follows_it():
    play = Play("d")
    play.dies("c")
    play.looks()
    first = play.seat.leader.pending

    play.proposals.propose_step(play.step(), play.coordination, play.town.now_s)
    assert play.seat.leader.pending is first
    play.run(0.2)

    following = play.seat.leader.pending
    assert (first.kind, following.kind) == (RecordKind.VOTERS, RecordKind.COMMIT)
    assert following.voters_before == first.voters
    play.run(0.2)
    assert (play.head.height, play.head.version) == (3, 2)


def test_what_waited_is_void_when_members_begin_anew():
    play = Play("d")
    play.dies("c")
    play.looks()
    play.proposals.propose_step(play.step(), play.coordination, play.town.now_s)

    play.proposals.clear()
    play.run(0.2)

    assert play.seat.leader.pending is None
    assert play.head.version == 1


def test_going_back_waits_for_the_record_of_voters_too_and_holds_the_steps_then():
    play = Play("d")
    play.dies("c")
    play.looks()

    play.proposals.propose_rollback(back_to_the_first(), play.coordination, play.town.now_s)
    assert not play.coordination.held
    play.run(0.2)

    assert play.seat.leader.pending.kind == RecordKind.BACK
    assert play.coordination.held


def back_to_the_first() -> Rollback:
    return Rollback(0, (stage_commit(0, 1).state,), None, "the first weights")


def test_a_stage_that_came_back_meanwhile_lets_the_run_go_on():
    play = Play("d")
    play.dies("c")
    play.looks()
    play.proposals.propose_rollback(back_to_the_first(), play.coordination, play.town.now_s)

    play.coordination.may_go_back = False
    play.run(0.2)

    assert play.seat.leader.pending is None
    assert not play.coordination.held


def test_while_a_step_is_decided_the_run_does_not_go_back_and_voters_stay():
    play = Play("d")
    play.proposals.propose_step(play.step(), play.coordination, play.town.now_s)
    pending = play.seat.leader.pending
    play.dies("c")

    play.looks()
    play.proposals.propose_rollback(back_to_the_first(), play.coordination, play.town.now_s)

    assert play.seat.leader.pending is pending
    assert not play.coordination.held


def test_a_state_that_was_another_one_cannot_be_gone_back_to():
    play = Play("d")
    other = Rollback(0, (b"x" * 32,), None, "another one")

    play.proposals.propose_rollback(other, play.coordination, play.town.now_s)

    assert [type(report) for report in play.reports] == [CannotGoBack]
    assert play.seat.leader.pending is None


def test_a_voter_that_comes_and_goes_makes_few_records():
    play = Play("d", "e")
    play.joins()
    for _ in range(5 * AT_ONCE):
        for name in play.names:
            if name in "cde":
                play.seat.leader.votes.doubted(peer(name))
                play.seat.on_silence(peer(name))
        play.voters()

    assert play.head.height == 1 + AT_ONCE


@pytest.mark.parametrize("what", ["step", "voters", "go back"])
def test_one_that_leads_no_more_proposes_nothing(what):
    play = Play("d")
    decide = play.step()
    play.dies("c")
    play.seat.leader.give_up("another leads")

    if what == "step":
        play.proposals.propose_step(decide, play.coordination, 0.0)
    elif what == "voters":
        play.looks()
    else:
        play.proposals.propose_rollback(back_to_the_first(), play.coordination, 0.0)

    asked = [a for a in play.seat.actions() if isinstance(getattr(a, "message", None), Propose)]
    assert asked == []


def test_the_record_is_the_one_that_the_rules_of_the_chain_ask_for():
    play = Play("d")
    play.dies("c")
    play.looks()
    expected = (voter("a"), voter("b"), voter("d"))

    assert play.seat.leader.pending == revote(
        play.head, voters=expected, learning_rate=0.0, loss=None, gradient_norm=None
    )


A, B, C, D, E = (VoterId(bytes([n]) * 32, bytes(8)) for n in range(1, 6))
NOBODY: set[bytes] = set()


def test_a_dead_voter_is_replaced_at_once():
    assert VoterChanges().due((A, B, C), (A, B, D), {C.peer}, 1.0)


def test_missing_voters_are_added_at_once():
    assert VoterChanges().due((A, B, C), (A, B, C, D, E), NOBODY, 1.0)


def test_what_can_wait_for_the_step_waits():
    changes = VoterChanges()

    assert not changes.due((A, B, C), (A, B, D), NOBODY, 1.0)
    assert not changes.due((A, B, C), (A,), NOBODY, 1.0 + SPARE_S)
    assert not changes.due((A, B, C), (A, B, C), {C.peer}, 1.0)


def test_voters_are_removed_when_no_spare_has_come_for_a_while():
    changes = VoterChanges()

    assert not changes.due((A, B, C), (A,), {C.peer}, 1.0)
    assert not changes.due((A, B, C), (A,), {C.peer}, 0.9 + SPARE_S)
    assert changes.due((A, B, C), (A,), {C.peer}, 1.0 + SPARE_S)


def test_a_voter_that_came_back_begins_the_wait_anew():
    changes = VoterChanges()
    changes.due((A, B, C), (A,), {C.peer}, 1.0)
    changes.reset()

    assert not changes.due((A, B, C), (A,), {C.peer}, 1.0 + SPARE_S)
    changes.due((A, B, C), (A, B, C), NOBODY, 2.0 + SPARE_S)
    assert not changes.due((A, B, C), (A,), {C.peer}, 2.0 + 2 * SPARE_S)


def test_while_a_majority_is_lost_nothing_is_proposed_and_who_comes_back_is_waited_for():
    changes, two = VoterChanges(), {B.peer, C.peer}

    assert not changes.due((A, B, C), (A, D, C), two, 1.0)
    assert not changes.due((A, B, C), (A,), two, 1.0 + SPARE_S)
    assert not changes.due((A, B, C), (A,), {C.peer}, 2.0 + SPARE_S)
    assert changes.due((A, B, C), (A,), {C.peer}, 2.0 + 2 * SPARE_S)


def test_records_of_their_own_are_few():
    changes = VoterChanges()

    for _ in range(AT_ONCE):
        assert changes.due((A, B, C), (A, B, D), {C.peer}, 100.0)
        changes.on_proposal(100.0)

    assert not changes.due((A, B, C), (A, B, D), {C.peer}, 99.0 + AGAIN_S)
    assert changes.due((A, B, C), (A, B, D), {C.peer}, 100.0 + AGAIN_S)


@given(st.lists(st.floats(0.0, 30.0), max_size=200))
def test_a_voter_that_comes_and_goes_does_not_flood_the_chain(pauses_s):
    changes, now_s, records = VoterChanges(), 50.0, 0
    for pause_s in pauses_s:
        now_s += pause_s
        if changes.due((A, B, C), (A, B, D), {C.peer}, now_s):
            changes.on_proposal(now_s)
            records += 1

    assert records <= AT_ONCE + (now_s - 50.0) / AGAIN_S + 1e-6
