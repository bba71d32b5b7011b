"""A commit that was decided and not delivered: it is sent again to those that hold its gradient."""

import dataclasses

import pytest
from trainer.harness import CONFIG, RUN, Play

from p2pswarm.run.messages.membership import HeldReduction, Join
from p2pswarm.run.messages.step import Committed
from p2pswarm.trainer.coordinator.admission import COMMIT_S
from p2pswarm.trainer.coordinator.decision import DecidedStep
from p2pswarm.trainer.reports import actions as act
from p2pswarm.trainer.reports.reports import MemberReady, RunFinished
from p2pswarm.trainer.step.stage_digests import as_recorded

HELD = (HeldReduction(0, 1, b"g"),)


def decided(*names: str) -> Play:
    """A run whose step 0 is decided, and whose servers were all lost before the commit came."""
    play = Play()
    servers = [play.serve(name) for name in names]
    play.count(servers[0], 0)
    play.count(servers[-1], 1)
    play.reduce(*servers)
    play.lose(*servers)
    play.seen(object)
    return play


def rejoin(play: Play, name: str, *, held=HELD, version=0, digest=b"w0"):
    return play.join(name, stage=0, version=version, digest=digest, held=held)


def test_a_server_that_holds_the_gradient_keeps_it_and_gets_the_commit_again():
    play = decided("a")

    ann = rejoin(play, "a")

    actions = play.seen(object)
    (assign,) = [a for a in actions if isinstance(a, act.Assign)]
    (commit,) = [a for a in actions if isinstance(a, act.SendCommit)]
    assert (assign.message.since, assign.message.keep) == (1, True)
    assert commit.incarnation == ann
    assert (commit.message.step, commit.message.generation) == (0, 1)
    assert commit.message.incarnation == ann.number
    assert commit.message.scale == pytest.approx(1.0, abs=1e-5)
    assert commit.message.learning_rate == CONFIG.optimizer.learning_rate / 20


def test_it_is_ready_once_it_has_applied_the_commit_and_the_run_goes_on():
    play = decided("a")
    ann = rejoin(play, "a")
    assert play.seen(MemberReady) == []

    play.commit(ann, b"w1")

    assert play.coordinator.members.ready(0)[0].incarnation == ann
    for microbatch in (2, 3):
        play.count(ann, microbatch, step=1)
    assert [order.message.step for order in play.seen(act.SendReduce)] == [1]


def test_a_whole_stage_may_come_back_so():
    play = decided("a", "b", "c")
    servers = [rejoin(play, name) for name in "abc"]

    for server in servers:
        play.commit(server, b"w1")

    assert [m.incarnation for m in play.coordinator.members.ready(0)] == servers


def test_one_that_comes_back_to_a_stage_that_has_committed_joins_it():
    play = Play()
    ann, bob = play.averaged("a", "b")
    play.lose(bob)
    play.commit(ann, b"w1")

    again = rejoin(play, "b")
    play.commit(again, b"w1")

    assert [m.incarnation for m in play.coordinator.members.ready(0)] == [ann, again]


def test_one_that_makes_other_weights_of_it_is_out():
    play = Play()
    ann, bob = play.averaged("a", "b")
    play.lose(bob)
    play.commit(ann, b"w1")

    play.commit(rejoin(play, "b"), b"other")

    assert [m.incarnation for m in play.coordinator.members.ready(0)] == [ann]


def test_the_commit_names_the_generation_that_the_server_holds():
    """A later generation made the same bytes; the server knows them by its own number."""
    play = decided("a")

    rejoin(play, "a", held=(HeldReduction(0, 9, b"g"),))

    assert play.seen(act.SendCommit)[0].message.generation == 9


@pytest.mark.parametrize(
    "what",
    [
        {"held": ()},
        {"held": (HeldReduction(0, 1, b"another"),)},
        {"held": (HeldReduction(1, 1, b"g"),)},
        {"version": 1, "digest": b"w1", "held": (HeldReduction(1, 1, b"g"),)},
        {"version": None, "digest": b""},
        {"digest": b"other weights"},
    ],
)
def test_one_that_holds_anything_else_gets_no_commit(what):
    play = decided("a")

    rejoin(play, "a", **what)

    assert play.seen(act.SendCommit) == []


def test_a_commit_that_is_not_the_last_is_not_sent_again():
    play = Play()
    ann, bob = play.serve("a"), play.serve("b")
    for step in (0, 1):
        play.count(ann, 2 * step, step=step)
        if step == 0:
            play.count(bob, 1)
        else:
            play.count(ann, 3, step=1)
        play.reduce(*(ann, bob)[: 2 - step])
        if step == 0:
            play.lose(bob)
            play.commit(ann, b"w1")
    play.seen(object)

    rejoin(play, "b")

    assert not play.seen(act.Assign)[0].message.keep


def test_one_that_does_not_apply_it_in_time_is_out():
    play = decided("a")
    ann = rejoin(play, "a")

    play.wait(COMMIT_S)

    assert [d.incarnation for d in play.seen(act.Evict)] == [ann]


def test_one_that_has_lost_the_weights_meanwhile_is_out():
    """Its word must not stand for the stage's weights."""
    play = decided("a")
    ann = rejoin(play, "a")

    play.coordinator.on_commit_answer(ann, 0, Committed(1, applied=False), play.now_s)

    assert [d.incarnation for d in play.seen(act.Evict)] == [ann]


def test_the_run_ends_only_when_the_last_commit_has_arrived():
    play = Play()
    ann = play.serve("a")
    for step in (0, 1):
        play.count(ann, 2 * step, step=step)
        play.count(ann, 2 * step + 1, step=step)
        play.reduce(ann)
        if step == 0:
            play.commit(ann, b"w1")
    play.lose(ann)
    assert play.seen(RunFinished) == []

    again = rejoin(play, "a", version=1, digest=b"w1", held=(HeldReduction(1, 2, b"g"),))
    play.commit(again, b"w2", step=1)

    (ended,) = play.seen(RunFinished)
    assert not ended.failed


def test_a_server_with_the_current_weights_keeps_them_before_others_have_told_theirs():
    play = Play()
    ann, bob = play.averaged("a", "b")
    play.lose(bob)
    play.seen(object)

    again = play.join("b", stage=0, version=1, digest=b"w1")
    assert play.seen(act.Assign)[0].message.keep
    assert play.seen(MemberReady) == []
    play.commit(ann, b"w1")

    assert [r.incarnation for r in play.seen(MemberReady)] == [again]


def test_joins_that_wait_are_answered_when_the_averaging_fails():
    """It may hold the only copy of its stage's weights; the commit would never come."""
    play = Play()
    ann = play.serve("a")
    play.count(ann, 0, 1)
    assert play.join("b", stage=0, version=0, digest=b"w0") is None
    play.seen(object)

    play.lose(ann)

    assert [a.message.keep for a in play.seen(act.Assign)] == [True]
    assert {m.incarnation.peer for m in play.coordinator.members.ready(0)} == {b"b" * 32}


@pytest.mark.parametrize(("version", "applies"), [(4, True), (5, False), (3, False), (None, False)])
def test_where_the_digest_before_is_not_known_the_version_and_the_gradient_decide(version, applies):
    decided_step = DecidedStep(4, 1.0, 0.1, {0: as_recorded(b"g")}, {})
    join = Join(RUN, "h:1", 0, version, b"w", (HeldReduction(4, 2, b"g"),))

    assert decided_step.applies_to(join) is applies


def test_one_that_makes_an_older_version_of_it_is_no_candidate():
    play = Play(dataclasses.replace(CONFIG, steps=3))
    ann, bob = play.averaged("a", "b")
    play.lose(bob)
    play.commit(ann, b"w1")
    again = rejoin(play, "b")
    play.count(ann, 2, step=1)
    play.count(ann, 3, step=1)
    play.reduce(ann)
    play.commit(ann, b"w2", step=1)

    play.commit(again, b"w1")

    assert play.seen(act.Evict) == []
    play.ready(again, version=2, digest=b"w2")
    assert [m.incarnation for m in play.coordinator.members.ready(0)] == [ann, again]
