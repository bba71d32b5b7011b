"""Sums that outlive their links: who keeps one, and what is done again when nobody does."""

import dataclasses

import pytest
from trainer import harness
from trainer.harness import CONFIG, PromptCoordinator

from p2pswarm.run.chain.record import first_number
from p2pswarm.run.member_view import Incarnation
from p2pswarm.run.messages.membership import HeldSum
from p2pswarm.run.messages.step import Reduced
from p2pswarm.trainer.coordinator.decision import CoordinatorStart
from p2pswarm.trainer.coordinator.silence import SILENT_S
from p2pswarm.trainer.reports import actions as act
from p2pswarm.trainer.reports.reports import MemberLost, StepDone, SumKept, SumVoided
from p2pswarm.trainer.step.in_flight import RETRY_MAX_S
from p2pswarm.trainer.step.sums import ANSWERED_S, REDO_SHARE, STAY_SHARE, SUSPENDED_S, TIMES_MAX

ANN, BOB = Incarnation(b"a" * 32, 1), Incarnation(b"b" * 32, 2)
FIRST, SECOND, BOTH, NONE = b"\x01", b"\x02", b"\x03", b"\x00"


class Play(harness.Play):
    """A coordinator with two microbatches a step; what members say of their sums."""

    def __init__(self, *args, **kinds) -> None:
        super().__init__(*args, **kinds)
        self.unseen: list = []

    def seen(self, kind: type) -> list:
        """The actions of a kind since the last look at that kind."""
        self.unseen += self.coordinator.drain()
        found = [a for a in self.unseen if isinstance(a, kind)]
        self.unseen = [a for a in self.unseen if not isinstance(a, kind)]
        return found

    def rejoin(self, name: str, former: Incarnation, counted: bytes, **changes) -> Incarnation:
        told = {"incarnation": former.number, "step": 0, "counted": counted, **changes}
        return self.rejoin_with(name, HeldSum(**told))

    def rejoin_with(self, name: str, told: HeldSum | None, *, digest=b"w0") -> Incarnation:
        join = dataclasses.replace(self.join_message(0, 0, digest), sum=told)
        self.coordinator.on_join(name.encode() * 32, join, self.now_s)
        back = self.coordinator.members.of_peer(name.encode() * 32).incarnation
        self.states[back] = digest
        return back

    def reduce_again(self, *members: Incarnation) -> None:
        """The members of the newest generation have averaged."""
        generation = self.coordinator._step_end._reductions.numbered
        for one in members:
            self.told_reduced(one, generation)

    def assigned(self) -> bool:
        """Whether the one that joined last keeps its sum."""
        return self.seen(act.Assign)[-1].message.keep_sum

    def is_ready(self, one: Incarnation) -> bool:
        member = self.coordinator.members.alive(one)
        return member is not None and member.ready


def two(after_s=0.0, **changes) -> tuple[Play, Incarnation, Incarnation]:
    """Ann and Bob serve one stage; Ann has counted the first of two microbatches, Bob runs one."""
    play = Play(dataclasses.replace(CONFIG, **changes))
    ann, bob = play.serve("a"), play.serve("b")
    for one in (ann, bob):
        play.coordinator.silence.on_word(one, play.now_s)
    play.hand(ann, 0)
    play.hand(bob, 1)
    play.now_s += after_s
    play.count(ann, 0)
    play.seen(object)
    return play, ann, bob


def test_a_server_that_is_back_at_once_keeps_what_it_had_counted():
    play, ann, bob = two()

    play.lose(ann)
    assert play.coordinator.holds(ann)
    assert [a.voided for a in play.seen(MemberLost)] == [0]
    back = play.rejoin("a", ann, FIRST)

    assert play.assigned()
    assert not play.coordinator.holds(ann)
    assert play.is_ready(back)
    play.count(bob, 1)
    reduce = {a.incarnation: a.message.counted for a in play.seen(act.SendReduce)}
    assert reduce == {back: FIRST, bob: SECOND}


def test_much_work_is_waited_for_longer_than_little():
    """Ann has counted all of what the stage has counted, which took ten seconds."""
    play, ann, bob = two(after_s=10.0)
    play.coordinator.silence.on_word(ann, play.now_s)
    play.coordinator.silence.on_word(bob, play.now_s)

    play.lose(ann)
    play.wait(REDO_SHARE * 10.0 - 0.1)
    assert play.seen(SumVoided) == []
    play.wait(0.1)

    assert [a.incarnation for a in play.seen(SumVoided)] == [ann]


def test_it_may_be_back_before_its_loss_is_noticed():
    play, ann, _ = two()

    back = play.rejoin("a", ann, FIRST)
    play.coordinator.on_stream_end(ann, "its old link ended", play.now_s)
    play.count(ann, 1)  # a note of the old stream: whoever it names is over

    (kept,) = play.seen(SumKept)
    assert (kept.former, kept.incarnation, kept.microbatches) == (ann, back, 1)
    assert play.coordinator.members.alive(back)


def test_what_it_had_counted_without_a_word_is_entered_and_not_launched_again():
    play, ann, bob = two()
    play.hand(ann, 1)
    play.lose(ann)  # its note of microbatch 1 is lost with the stream
    play.promise(bob)

    assert play.seen(act.Launch) == []  # it may have counted it
    play.rejoin("a", ann, BOTH)
    play.wait(RETRY_MAX_S)

    assert play.seen(act.Launch) == []
    assert {a.message.counted for a in play.seen(act.SendReduce)} == {BOTH, NONE}


def test_what_it_had_not_counted_is_launched_again_when_it_is_back():
    play, ann, bob = two()
    play.hand(ann, 1)
    play.lose(ann)
    play.promise(bob)
    assert play.seen(act.Launch) == []

    play.rejoin("a", ann, FIRST)
    play.wait(RETRY_MAX_S)

    assert [(a.microbatch, a.attempt) for a in play.seen(act.Launch)] == [(1, 1)]


@pytest.mark.parametrize(
    ("told", "why"),
    [
        (None, "a process that was started again"),
        (HeldSum(1, 0, NONE), "it lacks what it had told"),
        (HeldSum(7, 0, FIRST), "of another incarnation"),
        (HeldSum(2, 0, FIRST), "of another peer's"),
        (HeldSum(1, 1, FIRST), "of another step"),
        (HeldSum(1, 0, b"\x05"), "of a microbatch that the step does not have"),
        (HeldSum(1, 0, b"\x01\x01"), "of one far beyond"),
    ],
)
def test_a_sum_that_does_not_fit_is_void(told: HeldSum | None, why: str):
    play, ann, bob = two()
    play.lose(ann)

    play.rejoin_with("a", told)

    assert not play.assigned(), why
    (void,) = play.seen(SumVoided)
    assert (void.incarnation, void.microbatches) == (ann, 1)
    play.count(bob, 1)
    play.promise(bob)
    play.wait(RETRY_MAX_S)
    assert [a.microbatch for a in play.seen(act.Launch)] == [0]


def test_a_sum_with_what_another_has_counted_is_void():
    play, ann, bob = two()
    play.count(bob, 1)
    play.lose(ann)

    play.rejoin("a", ann, BOTH)

    assert not play.assigned()
    assert play.coordinator.members.alive(bob)


def test_a_sum_with_what_was_never_launched_is_void():
    config = dataclasses.replace(
        CONFIG, batch=dataclasses.replace(CONFIG.batch, microbatches=8, window=1)
    )
    play = Play(config)
    ann = play.serve("a")
    launched = [a.microbatch for a in play.seen(act.Launch)]
    play.count(ann, 0)
    play.lose(ann)

    play.rejoin("a", ann, b"\x81")

    assert 7 not in launched
    assert not play.assigned()


def test_weights_that_are_not_the_stages_leave_no_sum():
    play, ann, _ = two()
    play.lose(ann)

    back = play.rejoin_with("a", HeldSum(ann.number, 0, FIRST), digest=b"other")

    assert not play.assigned()
    assert not play.coordinator.holds(ann)
    assert not play.is_ready(back)


def test_nobody_waits_longer_than_that_if_another_server_can_do_the_work():
    play, ann, bob = two()
    play.lose(ann)
    play.count(bob, 1)
    play.wait(SUSPENDED_S - 0.01)
    assert play.seen(SumVoided) == []

    play.wait(0.01)

    assert [a.incarnation for a in play.seen(SumVoided)] == [ann]
    play.wait(RETRY_MAX_S)
    assert [a.microbatch for a in play.seen(act.Launch)] == [0]
    play.rejoin("a", ann, FIRST)
    assert not play.assigned()  # what is void stays void


def test_the_only_server_of_a_stage_is_waited_for():
    play = Play()
    ann = play.serve("a")
    play.count(ann, 0)
    play.lose(ann)

    play.wait(100.0)
    back = play.rejoin("a", ann, FIRST)

    assert play.assigned()
    assert play.is_ready(back)


def test_a_server_that_is_dialled_and_is_not_there_is_not_waited_for():
    play, ann, _ = two()
    play.lose(ann)
    (probe,) = play.seen(act.Probe)
    assert (probe.member.peer, probe.member.incarnation) == (ann.peer, ann.number)

    play.coordinator.on_probe_answer(ann, "nobody listens there", play.now_s)

    assert not play.coordinator.holds(ann)
    assert len(play.seen(SumVoided)) == 1
    play.coordinator.on_probe_answer(ann, "nobody listens there", play.now_s)
    assert play.seen(SumVoided) == []


def test_one_that_answers_is_given_more_time_if_it_was_there_for_long():
    play, ann, bob = two()
    play.now_s += ANSWERED_S / STAY_SHARE
    play.coordinator.silence.on_word(ann, play.now_s)
    play.lose(ann)
    play.coordinator.on_probe_answer(ann, None, play.now_s)
    play.promise(bob)

    play.wait(ANSWERED_S - 0.01)
    assert play.coordinator.holds(ann)
    play.wait(0.01)
    assert not play.coordinator.holds(ann)


@pytest.mark.parametrize("how", ["it leaves", "it has counted nothing", "spot checks"])
def test_who_is_not_suspended(how: str):
    play, ann, bob = two(spot_check_share=0.5 if how == "spot checks" else 0.0)
    one = bob if how == "it has counted nothing" else ann
    returns = how != "it leaves"

    play.coordinator.on_stream_end(one, how, play.now_s, returns=returns)

    assert not play.coordinator.holds(one)
    assert play.seen(act.Probe) == []


def test_an_averaging_that_lost_a_member_goes_on_with_the_same_sums():
    play, ann, bob = two()
    play.count(bob, 1)
    play.seen(object)
    play.lose(ann)
    assert play.seen(act.SendReduce) == []
    back = play.rejoin("a", ann, FIRST)
    assert play.seen(act.SendReduce) == []  # the fence finds out first who still answers

    play.promise(bob)

    assert {a.incarnation for a in play.seen(act.SendReduce)} == {back, bob}


def test_while_a_step_is_decided_a_loss_changes_nothing():
    play = Play(kind=harness.Coordinator)
    ann, bob = play.serve("a"), play.serve("b")
    play.count(ann, 0)
    play.count(bob, 1)
    generation = play.seen(act.SendReduce)[-1].message.generation
    for one in (ann, bob):
        answer = Reduced(b"g", 1.0, state=b"w0")
        play.coordinator.on_reduction(one, generation, answer, play.now_s)

    play.lose(ann)
    assert not play.coordinator.holds(ann)
    play.coordinator.on_decision(0, play.now_s)

    assert [a.step for a in play.seen(StepDone)] == [0]


def test_who_was_silent_before_its_link_ended_was_waited_for_already():
    play, ann, bob = two()
    for _ in range(3):
        play.now_s += SILENT_S / 3  # its link ends before the coordinator looks at who is silent
        play.coordinator.silence.on_word(bob, play.now_s)

    play.lose(ann)
    assert play.coordinator.holds(ann)
    play.wait(0.0)

    assert [a.incarnation for a in play.seen(SumVoided)] == [ann]


def test_a_coordinator_that_leads_no_more_asks_nobody():
    play, ann, _ = two()
    play.coordinator.close()

    play.lose(ann)

    assert play.seen(act.Probe) == []
    assert not play.coordinator.holds(ann)


def test_a_coordinator_takes_no_sum_of_its_own_term_that_it_knows_nothing_of():
    play = Play(start=CoordinatorStart(term=2, numbered=first_number(2) + 7))
    play.rejoin("a", Incarnation(ANN.peer, first_number(2) + 5), FIRST)

    assert not play.assigned()


def test_who_comes_back_before_its_stages_digest_stands_serves_on():
    """Its report was never in, and the step cannot be reduced without it: nobody waits for both."""
    play = Play(kind=PromptCoordinator)
    ann, bob = play.serve("a"), play.serve("b")
    play.count(ann, 0)
    play.count(bob, 1)
    play.reduce(ann, bob)
    play.commit(ann, b"w1")  # bob has not told the digest of what it made
    play.coordinator.on_commit_answer(bob, 0, harness.Committed(1, applied=True), play.now_s)
    play.hand(ann, 2)
    play.count(ann, 2, step=1)
    play.lose(ann)
    assert play.coordinator.admission.digests.known(0, 1) is None
    play.promise(bob)

    told = HeldSum(ann.number, 1, FIRST)
    join = dataclasses.replace(play.join_message(0, 1, b"w1"), sum=told)
    play.coordinator.on_join(ann.peer, join, play.now_s)

    back = play.coordinator.members.of_peer(ann.peer).incarnation
    assert play.is_ready(back)


def test_if_one_member_was_wrong_suspended_sums_are_void_too():
    play, ann, bob = two()
    carl = play.serve("c")
    play.lose(ann)
    play.seen(object)

    play.coordinator._take(play.coordinator._incarnations.void_step(carl, play.now_s, sure=True))

    assert [a.incarnation for a in play.seen(SumVoided)] == [ann]
    assert not play.coordinator.members.alive(bob)


def test_a_peer_that_drops_its_link_again_and_again_is_waited_for_no_more():
    play, ann, _ = two()
    one = ann
    for _ in range(TIMES_MAX):
        play.lose(one)
        one = play.rejoin("a", one, FIRST)
        assert play.assigned()

    play.lose(one)

    assert not play.coordinator.holds(one)


def late(**changes) -> tuple[Play, Incarnation, Incarnation]:
    """As `two`, with a delay: Ann has also counted microbatch 2, of the next step."""
    play, ann, bob = two(delay=1, steps=3, **changes)
    play.count(ann, 2, step=1)
    play.seen(object)
    return play, ann, bob


def test_with_a_delay_it_keeps_its_sums_of_both_steps():
    play, ann, bob = late()

    play.lose(ann)
    back = play.rejoin("a", ann, FIRST, ahead=BOTH)

    (kept,) = play.seen(SumKept)
    assert (kept.incarnation, kept.microbatches) == (back, 3)
    play.count(bob, 1)
    assert {a.message.counted for a in play.seen(act.SendReduce)} == {FIRST, SECOND}
    play.reduce_again(back, bob)
    play.commit(back, b"w1")
    play.commit(bob, b"w1")
    orders = {a.incarnation: a.message for a in play.seen(act.SendReduce)}
    assert {one: (order.step, order.counted) for one, order in orders.items()} == {
        back: (1, BOTH),
        bob: (1, NONE),
    }


@pytest.mark.parametrize(
    ("counted", "ahead", "why"),
    [
        (FIRST, NONE, "it lacks what it had told of the next step"),
        (NONE, FIRST, "it lacks what it had told of this one"),
        (FIRST, b"\x05", "of a microbatch that the next step does not have"),
    ],
)
def test_with_a_delay_both_sums_stand_or_fall_together(counted: bytes, ahead: bytes, why: str):
    play, ann, _ = late()
    play.lose(ann)

    play.rejoin("a", ann, counted, ahead=ahead)

    assert not play.assigned(), why
    assert [a.microbatches for a in play.seen(SumVoided)] == [2]


def test_a_sum_of_a_step_after_the_last_fits_nowhere():
    play, ann, _ = two(delay=1, steps=1)
    play.lose(ann)

    play.rejoin("a", ann, FIRST, ahead=FIRST)

    assert not play.assigned()


def three() -> tuple[Play, list[Incarnation]]:
    """Step 0 is being averaged; only Carl has counted anything of step 1."""
    play, ann, bob = two(delay=1, steps=3)
    carl = play.serve("c")
    play.count(bob, 1)
    play.count(carl, 2, step=1)
    assert len(play.seen(act.SendReduce)) == 3
    return play, [ann, bob, carl]


def test_a_step_is_not_averaged_while_a_sum_of_the_next_may_come_back():
    play, (ann, bob, carl) = three()

    play.lose(carl)
    play.promise(ann, bob)
    assert play.seen(act.SendReduce) == []
    back = play.rejoin("c", carl, NONE, ahead=FIRST)

    assert play.is_ready(back)
    assert {a.incarnation for a in play.seen(act.SendReduce)} == {ann, bob, back}


def test_it_is_averaged_without_a_server_that_does_not_come_back():
    play, (ann, bob, carl) = three()
    play.lose(carl)
    play.promise(ann, bob)

    play.wait(SUSPENDED_S)

    assert [a.incarnation for a in play.seen(SumVoided)] == [carl]
    assert {a.incarnation for a in play.seen(act.SendReduce)} == {ann, bob}
