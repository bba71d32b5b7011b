"""The coordinator on newcomers: when they are answered, where they go, when they are ready."""

from trainer.harness import Play

from p2pswarm.run.member_view import Incarnation
from p2pswarm.settings.config import BatchConfig, RunConfig
from p2pswarm.trainer.coordinator.admission import READY_S
from p2pswarm.trainer.reports import actions as act
from p2pswarm.trainer.reports.reports import MemberReady


def test_nobody_becomes_ready_while_a_fence_is_open():
    """A server that has not answered could still hand a fenced attempt to the newcomer."""
    play = Play()
    ann = play.serve("a")
    play.stuck(0)
    assert [f.incarnation for f in play.seen(act.SendFence)] == [ann]

    bob = play.serve("b")
    assert play.seen(MemberReady) == []
    play.promise(ann)

    assert [r.incarnation for r in play.seen(MemberReady)] == [bob]


def test_one_that_joins_while_a_step_closes_is_answered_after_it():
    play = Play()
    ann = play.serve("a")
    play.count(ann, 0, 1)
    orders = play.seen(act.SendReduce)
    assert play.join("b") is None

    generation = orders[0].message.generation
    play.told_reduced(ann, generation)

    (assign,) = play.seen(act.Assign)
    assert assign.message.since == 1


def test_one_that_leaves_before_it_is_answered_is_forgotten():
    play = Play()
    ann = play.serve("a")
    play.count(ann, 0, 1)
    play.join("b")
    play.coordinator.on_withdrawal(b"b" * 32)

    play.reduce(ann)

    assert play.seen(act.Assign) == []


def test_a_newcomer_that_caught_up_while_a_step_closes_is_ready_if_the_closing_fails():
    """Its stage may have nobody else any more."""
    play = Play()
    ann, bob = play.serve("a"), play.join("b")
    play.count(ann, 0, 1)
    play.ready(bob)
    assert [r.incarnation for r in play.seen(MemberReady)] == [ann]

    play.lose(ann)

    assert [r.incarnation for r in play.seen(MemberReady)] == [bob]


def test_ready_in_the_middle_of_a_commit_is_said_again_later():
    play = Play()
    ann, bob = play.serve("a"), play.join("b")
    play.count(ann, 0, 1)
    play.ready(bob)
    assert [r.incarnation for r in play.seen(MemberReady)] == [ann]

    play.told_reduced(ann, 1)
    play.commit(ann, b"w1")
    play.ready(bob, version=1, digest=b"w1")

    assert [r.incarnation for r in play.seen(MemberReady)] == [bob]


def test_a_newcomers_word_is_not_believed_before_a_members():
    """The first to speak of a version must not be one that has just downloaded it."""
    play = Play()
    ann, bob = play.serve("a"), play.join("b")
    play.count(ann, 0, 1)
    play.reduce(ann)
    play.ready(bob, version=1, digest=b"wrong")
    assert play.seen(MemberReady) == []

    play.commit(ann, b"w1")

    assert [d.incarnation for d in play.seen(act.Evict)] == [bob]


def committed_once(play: Play) -> Incarnation:
    ann = play.serve("a")
    play.count(ann, 0, 1)
    play.reduce(ann)
    return ann


def test_one_that_rejoins_with_the_current_weights_keeps_them():
    play = Play()
    ann = committed_once(play)
    play.commit(ann, b"w1")
    play.seen(object)

    play.join("a", stage=0, version=1, digest=b"w1")

    assert play.seen(act.Assign)[0].message.keep


def test_one_with_other_weights_keeps_nothing():
    play = Play()
    ann = committed_once(play)
    play.commit(ann, b"w1")
    play.seen(object)

    play.join("b", stage=0, version=1, digest=b"other")
    play.join("c", stage=7, version=1, digest=b"w1")
    play.join("d", stage=0, version=0, digest=b"w1")

    assert [a.message.keep for a in play.seen(act.Assign)] == [False, False, False]


def test_the_only_one_who_knows_the_new_weights_is_believed():
    """Its link broke between the commit and its word about it."""
    play = Play()
    committed_once(play)
    play.seen(object)

    again = play.join("a", stage=0, version=1, digest=b"w1")

    assert play.seen(act.Assign)[0].message.keep
    assert play.coordinator.members.ready(0)[0].incarnation == again


def test_newcomers_go_where_the_fewest_serve():
    config = RunConfig(stages=3, steps=2, batch=BatchConfig(microbatches=2))
    play = Play(config)

    incarnations = [play.join(name) for name in "abcdef"]

    stages = [play.coordinator.members.alive(incarnation).stage for incarnation in incarnations]
    assert stages == [0, 1, 2, 0, 1, 2]


def test_a_newcomer_that_never_becomes_ready_loses_its_place_and_has_longer_the_next_time():
    """The others send it all that they reduce, and a stage has only so many places."""
    play = Play()
    play.coordinator.hold()  # nothing is launched, so nothing is late
    play.serve("a")
    slow = play.join("b")

    play.wait(READY_S - 1.0)
    assert play.seen(act.Evict) == []
    play.wait(1.0)
    assert [evict.incarnation for evict in play.seen(act.Evict)] == [slow]

    again = play.join("b")
    play.wait(1.5 * READY_S)
    assert play.seen(act.Evict) == []
    play.ready(again)
    assert [one.incarnation for one in play.seen(MemberReady)][-1] == again
    play.wait(10 * READY_S)
    assert again in [member.incarnation for member in play.coordinator.members.ready(0)]


def test_a_newcomer_keeps_its_place_while_nobody_else_has_its_stages_weights():
    play = Play(RunConfig(stages=2, steps=2, batch=BatchConfig(microbatches=2)))
    play.serve("a")
    play.join("b")

    play.wait(3 * READY_S)

    assert play.seen(act.Evict) == []


def test_a_newcomer_that_has_caught_up_and_waits_for_others_is_not_too_slow():
    play = Play()
    play.serve("a")
    play.stuck(0)
    bob = play.join("b")
    play.ready(bob)  # while a fence is open, nobody becomes ready

    assert play.coordinator.admission.overdue(READY_S) == []
