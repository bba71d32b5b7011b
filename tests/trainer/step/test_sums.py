"""Tests of `trainer/step/sums.py`."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trainer.harness import CONFIG, RUN
from trainer.step.test_in_flight import flight_of
from trainer.test_kept_sums import Play

from p2pswarm.run.chain.record import first_number
from p2pswarm.run.member_view import Incarnation
from p2pswarm.run.messages.membership import HeldSum, Join
from p2pswarm.trainer.coordinator.decision import CoordinatorStart, DecidedStep
from p2pswarm.trainer.reports import actions as act
from p2pswarm.trainer.reports.reports import SumKept, SumVoided
from p2pswarm.trainer.step.ledger import StepLedger
from p2pswarm.trainer.step.sums import (
    ANOTHER_SUM_S,
    ANSWERED_S,
    FORMER_SUMS_MAX_S,
    FORMER_SUMS_S,
    REDO_SHARE,
    STAY_SHARE,
    SUSPENDED_MAX_S,
    SUSPENDED_S,
    TIMES_MAX,
    FormerSums,
    StepSums,
    Suspensions,
)

ANN, BOB = Incarnation(b"a" * 32, 1), Incarnation(b"b" * 32, 2)


def served(*stages: int):
    return stages.__contains__


def test_a_stage_that_waits_for_one_server_would_count_again_at_the_pace_that_it_had():
    """Else what a stalled server has counted seems the dearer, the longer it holds all up."""
    in_flight, ledger = flight_of(4), StepLedger(0, 4, stages=1)
    sums = StepSums(0, ledger, in_flight)
    assert sums.redo_s(ANN, 0) == 0.0
    in_flight.launch(4, 10.0)

    for microbatch, one, now_s in ((0, ANN, 11.0), (1, BOB, 11.5), (2, BOB, 13.0)):
        ledger.count(microbatch, 0, one)
        sums.counted_s[0] = now_s

    assert sums.redo_s(ANN, 0) == pytest.approx(1.0)
    assert sums.redo_s(BOB, 0) == pytest.approx(2.0)


def test_it_is_waited_for_as_long_as_nobody_else_serves_its_stage():
    suspensions = Suspensions()
    assert suspensions.begin(ANN, 3, silent=False)

    suspensions.watch(served(), 10.0)
    assert suspensions.next_deadline_s() is None
    assert suspensions.overdue(1000.0) == []

    suspensions.watch(served(3), 1000.0)
    assert suspensions.next_deadline_s() == 1000.0 + SUSPENDED_S
    assert suspensions.overdue(1000.0) == []
    assert suspensions.overdue(1000.0 + SUSPENDED_S) == [ANN]

    suspensions.watch(served(), 1000.5)
    suspensions.watch(served(3), 1000.6)
    assert suspensions.next_deadline_s() == 1000.6 + SUSPENDED_S


def test_one_that_answers_has_longer_and_one_that_was_silent_has_no_time():
    suspensions = Suspensions()
    suspensions.begin(ANN, 0, silent=False)
    suspensions.begin(BOB, 0, silent=True)
    suspensions.watch(served(0), 5.0)

    assert suspensions.overdue(5.0) == [BOB]
    suspensions.on_probe_answer(ANN)
    suspensions.on_probe_answer(Incarnation(ANN.peer, 7))
    assert suspensions.end(BOB) == 0
    assert suspensions.overdue(5.0 + ANSWERED_S - 0.1) == []
    assert suspensions.overdue(5.0 + ANSWERED_S) == [ANN]


def test_one_that_was_silent_has_time_if_its_whole_stage_was_lost():
    """Both were behind one cut: the second is back a moment after the first."""
    suspensions = Suspensions()
    suspensions.begin(ANN, 0, silent=True)
    suspensions.watch(served(), 5.0)

    suspensions.watch(served(0), 9.0)

    assert suspensions.overdue(9.0) == []
    assert suspensions.overdue(9.0 + SUSPENDED_S) == [ANN]


@given(st.floats(0.0, 1000.0))
def test_one_that_answers_has_no_more_than_a_share_of_the_time_that_it_was_there(stay_s: float):
    suspensions = Suspensions()
    suspensions.begin(ANN, 0, silent=False, stay_s=stay_s)
    suspensions.watch(served(0), 5.0)

    suspensions.on_probe_answer(ANN)

    waits_s = suspensions.next_deadline_s() - 5.0
    assert waits_s == pytest.approx(max(SUSPENDED_S, min(STAY_SHARE * stay_s, ANSWERED_S)))


@given(st.integers(1, 20))
def test_no_peer_is_suspended_more_often_than_that_in_one_step(tries: int):
    suspensions = Suspensions()

    def tried(number: int) -> bool:
        one = Incarnation(ANN.peer, number)
        begun = suspensions.begin(one, 0, silent=False)
        if begun:
            assert one in suspensions
            assert suspensions.of_peer(ANN.peer) == (one, 0)
            suspensions.end(one)
        return begun

    assert sum(map(tried, range(tries))) == min(tries, TIMES_MAX)
    suspensions.next_step()
    assert tried(99)


@given(st.floats(0.0, 100.0))
def test_it_is_waited_for_as_long_as_its_work_would_take_within_limits(redo_s: float):
    suspensions = Suspensions()
    suspensions.begin(ANN, 0, silent=False, redo_s=redo_s)
    suspensions.begin(BOB, 0, silent=True, redo_s=redo_s)
    suspensions.watch(served(0), 5.0)

    assert suspensions.overdue(5.0) == [BOB]
    suspensions.end(BOB)
    waits_s = suspensions.next_deadline_s() - 5.0
    assert waits_s + 1e-9 >= SUSPENDED_S
    assert waits_s - 1e-9 <= SUSPENDED_MAX_S
    assert waits_s >= min(REDO_SHARE * redo_s, SUSPENDED_MAX_S) - 1e-9
    suspensions.on_probe_answer(ANN)
    assert suspensions.next_deadline_s() >= 5.0 + max(ANSWERED_S, waits_s) - 1e-9


THREE = dataclasses.replace(CONFIG.batch, microbatches=3)
FIRST, SECOND, BOTH, NONE = b"\x01", b"\x02", b"\x03", b"\x00"
TERM = 3
OLD = first_number(TERM - 1) + 4
"""A number of the term before."""


class Takeover(Play):
    """The coordinator of step 1 of a run of one stage; the record names the servers a and b."""

    def __init__(self, *, named: str = "ab", stages: int = 1, **changes) -> None:
        peers = tuple(name.encode() * 32 for name in named)
        members = dict.fromkeys(range(stages), peers)
        last = DecidedStep(0, 1.0, 0.1, {}, {}, members)
        config = dataclasses.replace(CONFIG, stages=stages, steps=4, **changes)
        super().__init__(config, start=CoordinatorStart(TERM, 1, last, gathers=False))

    def come(
        self,
        name: str,
        counted: bytes | None = NONE,
        *,
        number: int = OLD,
        digest: bytes = b"w1",
        stage: int = 0,
        **told,
    ) -> Incarnation:
        """A server joins with the weights of the step, and with what it had counted before."""
        held = None if counted is None else HeldSum(number, told.pop("step", 1), counted, **told)
        join = dataclasses.replace(self.join_message(stage, 1, digest), sum=held)
        self.coordinator.on_join(name.encode() * 32, join, self.now_s)
        member = self.coordinator.members.of_peer(name.encode() * 32)
        assert member is not None, "it is out at once"
        self.states[member.incarnation] = digest
        return member.incarnation

    def launched(self) -> list[int]:
        return [action.microbatch for action in self.seen(act.Launch)]

    def orders(self) -> dict[Incarnation, bytes]:
        return {a.incarnation: a.message.counted for a in self.seen(act.SendReduce)}


def test_what_is_in_the_sums_is_not_launched():
    play = Takeover()
    ann = play.come("a", FIRST)
    assert play.assigned()
    bob = play.come("b", SECOND)
    assert play.assigned()

    assert play.launched() == []
    assert play.orders() == {ann: FIRST, bob: SECOND}


def test_where_no_record_names_those_who_have_sums_anyone_may_bring_one_in_a_moment():
    play = Takeover(named="")
    ann = play.come("a", FIRST)
    play.wait(FORMER_SUMS_S / 2)
    bob = play.come("b", SECOND)

    assert play.launched() == []
    assert play.orders() == {ann: FIRST, bob: SECOND}


def test_one_that_comes_late_with_a_sum_gives_others_behind_its_cut_a_moment():
    play = Takeover(named="", stages=2)
    play.come("a", FIRST)
    play.wait(2 * FORMER_SUMS_S)  # nothing can be launched while nobody serves the last stage
    play.come("z", FIRST, stage=1)
    play.wait(ANOTHER_SUM_S / 2)
    bob = play.come("b", SECOND)

    assert play.launched() == []
    assert play.coordinator._step.ledger.counted_by_one(bob) == 1


def test_after_a_launch_nobody_is_waited_for():
    play = Takeover(named="ab")
    play.come("a", FIRST)
    play.wait(FORMER_SUMS_S)
    assert play.launched() != []

    play.come("b", SECOND)

    assert not play.coordinator._former_sums.awaited(play.now_s)


def test_however_many_come_one_after_another_the_wait_has_an_end():
    sums = FormerSums(TERM, 0, ())
    for number in range(100):
        now_s = number * ANOTHER_SUM_S / 2
        held = HeldSum(OLD, 1, NONE)
        sums.on_join(bytes([number]) * 32, Join(RUN, "h:1", 0, 1, b"w", (), sum=held), now_s)

    assert not sums.awaited(FORMER_SUMS_MAX_S)


def test_where_no_record_names_anybody_the_rest_is_launched_after_that_moment():
    play = Takeover(named="")
    play.come("a", FIRST)
    play.wait(FORMER_SUMS_S / 2)
    early = play.launched()
    play.wait(FORMER_SUMS_S / 2)

    assert early == []
    assert play.launched() == [3]


def test_only_what_is_missing_is_launched():
    play = Takeover()
    play.come("a", FIRST)
    play.come("b", NONE)

    assert play.launched() == [3]


def test_nothing_is_launched_until_those_are_here_that_the_record_names():
    play = Takeover()
    play.come("a")
    play.wait(FORMER_SUMS_S - 0.01)
    assert play.launched() == []

    play.come("b", BOTH)
    assert play.assigned()
    assert play.launched() == []


def test_whoever_does_not_come_is_not_waited_for():
    play = Takeover()
    ann = play.come("a", FIRST)
    assert play.is_ready(ann)
    assert play.coordinator.next_deadline_s() <= FORMER_SUMS_S

    play.wait(FORMER_SUMS_S)

    assert play.launched() == [3]


def test_who_comes_late_keeps_a_sum_of_which_nothing_was_launched_and_no_other():
    play = Takeover(batch=dataclasses.replace(CONFIG.batch, microbatches=10))
    ann = play.come("a", NONE + NONE)
    play.ready(ann, 1, b"w1")
    play.wait(2.5)
    launched = play.launched()
    assert launched
    assert 19 not in launched

    play.come("b", b"\x00\x02")
    assert play.assigned()

    play.come("c", b"\x01\x00")
    assert not play.assigned()


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"counted": FIRST}, "another sum holds it"),
        ({"counted": b"\x07"}, "a microbatch that the step does not have"),
        ({"counted": SECOND, "step": 0}, "of another step"),
        ({"counted": SECOND, "number": first_number(TERM) + 1}, "of this term"),
        ({"counted": SECOND, "number": first_number(TERM + 1) + 1}, "of a term to come"),
        ({"counted": None}, "none"),
        ({"counted": SECOND, "digest": b"w2"}, "with other weights than its stage's"),
    ],
)
def test_a_sum_that_does_not_fit_is_void(changes: dict, why: str):
    play = Takeover(named="a")
    play.come("a", FIRST)

    play.come("b", **changes)

    assert not play.assigned(), why
    assert len(play.seen(SumKept)) == 1


def test_a_sum_of_another_era_is_void():
    play = Takeover()
    join = dataclasses.replace(play.join_message(0, 1, b"w1"), sum=HeldSum(OLD, 1, FIRST), era=1)
    play.coordinator.on_join(b"a" * 32, join, play.now_s)

    assert not play.assigned()


def test_with_spot_checks_no_sum_is_taken():
    play = Takeover(spot_check_share=0.5)
    play.come("a", FIRST)

    assert not play.assigned()


def test_who_never_heard_that_its_sum_was_taken_says_it_again():
    """Its `Assigned` was lost: what it has is of the former term still."""
    play = Takeover()
    first = play.come("a", FIRST)
    again = play.come("a", FIRST)

    assert play.assigned()
    kept = play.seen(SumKept)
    assert [one.incarnation for one in kept] == [first, again]
    assert [one.microbatches for one in play.seen(SumVoided)] == [1]


def test_who_served_on_with_it_says_it_under_its_new_number():
    play = Takeover()
    first = play.come("a", FIRST)
    play.come("a", FIRST, number=first.number)

    assert play.assigned()
    assert play.seen(SumVoided) == []


def test_a_server_that_keeps_its_sum_does_not_wait_for_the_digest_of_its_stage():
    play = Takeover(named="abcd")
    ann = play.come("a", FIRST)
    bob = play.come("b", NONE)  # two of four are no majority

    assert play.is_ready(ann)
    assert not play.is_ready(bob)


def test_a_stranger_that_claims_a_sum_is_not_ready_for_that():
    play = Takeover()
    carl = play.come("c", FIRST)

    assert play.assigned()
    assert not play.is_ready(carl)


def gone(play: Takeover) -> set[Incarnation]:
    return {action.incarnation for action in play.seen(act.Evict)}


def test_if_a_server_that_served_was_wrong_all_sums_are_void():
    """What it gave may be in them, though it has no sum itself."""
    play = Takeover(named="abc", batch=THREE)
    ann, bob = play.come("a", FIRST), play.come("b", SECOND)

    play.come("c", None, digest=b"x")

    assert gone(play) == {ann, bob}


def test_it_is_so_too_if_its_digest_is_known_to_be_wrong_only_later():
    play = Takeover(named="abcd", batch=THREE)
    ann, wrong = play.come("a", FIRST), play.come("b", NONE, digest=b"x")

    bob = play.come("c", SECOND)
    with pytest.raises(AssertionError, match="out at once"):
        play.come("d", NONE)  # now three of four say the same

    assert {ann, wrong, bob} < gone(play)


def test_after_that_no_sum_of_the_step_is_taken():
    play = Takeover(named="abcd", batch=THREE)
    play.come("b", NONE), play.come("c", NONE), play.come("d", NONE)
    play.come("a", None, digest=b"x")

    play.come("e", FIRST)

    assert not play.assigned()


def test_a_stranger_with_other_weights_voids_nothing():
    play = Takeover(batch=THREE)
    ann, bob = play.come("a", FIRST), play.come("b", SECOND)

    play.come("c", None, digest=b"x")  # it has to fetch the weights of its stage

    assert play.is_ready(ann)
    assert play.is_ready(bob)
    assert play.seen(act.Evict) == []


def test_no_step_is_decided_while_it_is_not_known_which_weights_are_right():
    play = Takeover(named="abc")
    ann = play.come("a", BOTH)
    play.wait(0.0)
    play.reduce(ann)
    assert play.seen(act.Decide) == []

    play.wait(2.0)

    assert len(play.seen(act.Decide)) == 1


def test_the_last_stage_tells_the_losses_of_what_it_had_counted():
    play = Takeover(named="a")
    play.come("a", BOTH, losses=(2.0, None))

    assert play.coordinator._step.loss == 2.0


def test_losses_without_sense_are_no_loss():
    play = Takeover(named="a")
    play.come("a", FIRST, losses=(2.0, 3.0, 4.0))

    assert play.coordinator._step.loss == 2.0


def test_the_next_step_begins_with_empty_sums():
    play = Takeover(named="a")
    ann = play.come("a", BOTH)
    play.reduce(ann)
    play.commit(ann, b"w2", step=1)

    assert play.launched() == [4, 5]
    assert not play.coordinator._former_sums.taken


def test_with_a_delay_a_former_coordinators_sums_of_both_steps_are_taken():
    play = Takeover(named="ab", delay=1)
    ann = play.come("a", FIRST, ahead=FIRST)
    assert play.assigned()
    bob = play.come("b", SECOND, ahead=SECOND)
    assert play.assigned()
    assert play.launched() == []

    play.reduce(ann, bob)
    for one in (ann, bob):
        play.commit(one, b"w2", step=1)

    assert play.orders() == {ann: FIRST, bob: SECOND}
    assert play.coordinator._former_sums.taken  # a wrong state would still void them
    play.coordinator._former_sums.next_step()
    assert not play.coordinator._former_sums.taken


@given(
    st.lists(st.tuples(st.integers(0, 7), st.floats(0, 3)), max_size=20),
    st.sets(st.integers(0, 7)),
)
def test_nobody_is_waited_for_longer_than_a_moment_after_the_first(comes, named):
    peers = [bytes([number]) * 32 for number in range(8)]
    sums = FormerSums(TERM, 0, [peers[number] for number in named])
    now_s, first_s, here = 10.0, None, set()
    for number, wait_s in comes:
        now_s += wait_s
        first_s = now_s if first_s is None else first_s
        sums.on_join(peers[number], Join(RUN, "h:1", 0, 1, b"w", ()), now_s)
        here.add(number)
        awaited = bool(not named or named - here) and now_s < first_s + FORMER_SUMS_S
        assert sums.awaited(now_s) == awaited
        due_s = sums.next_deadline_s(now_s)
        assert (due_s is not None) == awaited
        assert due_s is None or now_s < due_s <= first_s + FORMER_SUMS_S
    sums.next_step()
    assert not sums.awaited(now_s)
