"""Microbatches that are not finite on any path: set aside, recorded, and not too many of them."""

import pytest
from trainer.harness import Play

from p2pswarm.run.messages.step import Fenced
from p2pswarm.run.messages.types import Obstacle, Work
from p2pswarm.run.view import Incarnation
from p2pswarm.settings.config import BatchConfig, RunConfig
from p2pswarm.trainer.blame.blame import NOT_FINITE_MIN
from p2pswarm.trainer.reports import actions as act
from p2pswarm.trainer.step.quarantine import STEPS_MAX, Quarantine, most_in_step

WHY = "a gradient is not finite"


def config(microbatches: int, **batch: int) -> RunConfig:
    sizes = {"microbatches": microbatches, "evaluate_every": 0, **batch}
    return RunConfig(stages=2, steps=2, batch=BatchConfig(**sizes))


def fail(play: Play, microbatch: int, by: Incarnation, *, counted=()) -> None:
    """Every attempt of a microbatch is not finite; `counted`: who tells so when it is fenced."""
    for attempt in range(NOT_FINITE_MIN):
        play.now_s += 1.0
        play.stuck(microbatch, attempt, by=by, obstacle=Obstacle.NOT_FINITE)
        for member in play.coordinator.members.ready():
            one = member.incarnation
            answer = Fenced((microbatch,) if one in counted else ())
            play.coordinator.fenced(one, answer.counted, play.now_s)
        play.wait(2.0)


def test_a_step_goes_on_without_a_microbatch_that_no_server_has_a_finite_gradient_of():
    play = Play(config(2))
    ann, bob = play.serve("a"), play.serve("b")
    fail(play, 0, by=bob)
    (aside,) = play.seen(act.Quarantined)
    assert aside == act.Quarantined(0, 0, "no road", held_out=False)

    for one in (ann, bob):
        play.count(one, 1)
    orders = play.seen(act.SendReduce)
    assert [order.message.counted for order in orders] == [b"\x02", b"\x02"]
    for one in (ann, bob):
        play.told_reduced(one, orders[0].message.generation)

    (done,) = play.seen(act.StepDone)
    assert (done.microbatches, done.quarantined, done.loss) == (2, (0,), 1.0)


def test_a_sum_that_holds_a_microbatch_that_is_set_aside_is_void():
    play = Play(config(2))
    ann, bob = play.serve("a"), play.serve("b")
    for microbatch in (0, 1):
        play.count(bob, microbatch)
    play.count(ann, 1)
    play.seen(object)

    fail(play, 0, by=ann)

    actions = play.coordinator.actions()
    evicted = [one.incarnation for one in actions if isinstance(one, act.Evict)]
    launched = [(one.microbatch, one.counting) for one in actions if isinstance(one, act.Launch)]
    assert evicted == [bob]
    assert (1, (1,)) not in launched  # stage 1 has nobody
    again = play.join("b", stage=1, version=0, digest=b"w0")
    play.promise(ann, again)
    play.wait(2.0)
    launched = [(one.microbatch, one.counting) for one in play.seen(act.Launch)]
    assert launched == [(1, (1,))]


def test_one_that_a_fence_finds_in_a_sum_is_not_left_there():
    play = Play(config(2))
    ann, bob = play.serve("a"), play.serve("b")

    fail(play, 0, by=ann, counted=(bob,))

    assert [one.incarnation for one in play.seen(act.Evict)] == [bob]


def test_who_counts_a_microbatch_that_was_set_aside_is_out():
    play = Play(config(2))
    ann, bob = play.serve("a"), play.serve("b")
    fail(play, 0, by=bob)
    play.seen(object)

    play.count(ann, 0, attempt=NOT_FINITE_MIN - 1)

    assert [one.incarnation for one in play.seen(act.Evict)] == [ann]


def test_one_that_all_stages_have_counted_after_all_is_not_set_aside():
    play = Play(config(2))
    ann, bob = play.serve("a"), play.serve("b")

    fail(play, 0, by=bob, counted=(ann, bob))

    assert play.seen(act.Quarantined) == []
    for one in (ann, bob):
        play.count(one, 1)
    assert {order.message.counted for order in play.seen(act.SendReduce)} == {b"\x03"}


def test_a_held_out_batch_without_a_loss_does_not_hold_the_run_up():
    play = Play(config(1, evaluate_every=1, evaluate_microbatches=1))
    ann, bob = play.serve("a"), play.serve("b")
    held_out = next(x for x in play.seen(act.Launch) if x.work is Work.EVALUATE).microbatch

    fail(play, held_out, by=bob)

    (aside,) = play.seen(act.Quarantined)
    assert aside.held_out
    for one in (ann, bob):
        play.count(one, 0)
    assert play.seen(act.SendReduce) != []


def test_too_many_in_one_step_end_the_run_and_say_what_to_do():
    play = Play(config(16, window=16))
    _, bob = play.serve("a"), play.serve("b")
    for microbatch in range(most_in_step(16)):
        fail(play, microbatch, by=bob)
    assert play.seen(act.RunFinished) == []

    fail(play, most_in_step(16), by=bob)

    (ended,) = play.seen(act.RunFinished)
    assert ended.failed
    text = "3 of the 16 microbatches of step 0 are not finite on any server: no road"
    assert ended.reason == text


@pytest.mark.parametrize(("microbatches", "most"), [(1, 1), (8, 1), (15, 1), (16, 2), (800, 100)])
def test_an_eighth_of_a_step_may_be_set_aside_and_one_at_least(microbatches, most):
    assert most_in_step(microbatches) == most


def aside(step: int, microbatch: int, *, held_out: bool = False) -> act.Quarantined:
    return act.Quarantined(step, microbatch, WHY, held_out)


def test_steps_in_a_row_with_one_set_aside_end_the_run():
    quarantine = Quarantine(8)
    for step in range(STEPS_MAX):
        quarantine.add(aside(step, 8 * step))
        assert quarantine.hopeless is None
        assert quarantine.decided() == (8 * step,)

    quarantine.add(aside(STEPS_MAX, 8 * STEPS_MAX))

    assert quarantine.hopeless == f"6 steps in a row have a microbatch that is not finite: {WHY}"


def test_a_step_without_any_begins_the_row_anew():
    quarantine = Quarantine(8)
    for step in range(3 * STEPS_MAX):
        if step % STEPS_MAX:
            quarantine.add(aside(step, 8 * step))
        quarantine.decided()

    assert quarantine.hopeless is None


def test_held_out_batches_do_not_count_against_a_run():
    quarantine = Quarantine(8)
    for number in range(20):
        quarantine.add(aside(0, number, held_out=True))

    assert quarantine.hopeless is None
    assert quarantine.decided() == ()
