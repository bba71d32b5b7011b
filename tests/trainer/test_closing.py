"""The coordinator on the end of a step, and of the run: reductions, commits, lost stages."""

import dataclasses
import math

from trainer.harness import CONFIG, Play

from p2pswarm.progress.events import HeldOut
from p2pswarm.run.messages.field_limits import Work
from p2pswarm.run.messages.microbatch import Evaluated
from p2pswarm.settings.config import BatchConfig, RunConfig
from p2pswarm.trainer.balance.stage_coverage import UNSERVED_STAGE_S
from p2pswarm.trainer.coordinator.admission import COMMIT_S
from p2pswarm.trainer.reports import actions as act
from p2pswarm.trainer.reports.reports import RunFinished, StepDone, WeightsSought
from p2pswarm.trainer.step.in_flight import FENCE_S


def test_a_member_whose_weights_differ_after_a_commit_is_out_and_the_step_is_void():
    play = Play()
    ann, bob = play.averaged("a", "b")
    play.commit(ann, b"w1")

    play.commit(bob, b"other")

    assert [d.incarnation for d in play.seen(act.Evict)] == [bob, ann]


def test_one_that_averaged_to_other_bytes_is_out_and_its_work_is_done_again():
    play = Play()
    ann, bob = play.serve("a"), play.serve("b")
    play.count(ann, 0)
    play.count(bob, 1)
    generation = play.seen(act.SendReduce)[0].message.generation
    play.told_reduced(ann, generation)

    play.told_reduced(bob, generation, b"h")
    play.wait(1.0)

    actions = play.coordinator.drain()
    assert [a.incarnation for a in actions if isinstance(a, act.Evict)] == [bob]
    assert [a.microbatch for a in actions if isinstance(a, act.Launch)] == [1]


def test_a_gradient_that_is_not_finite_ends_the_run():
    play = Play()
    ann = play.serve("a")
    play.count(ann, 0, 1)
    play.told_reduced(ann, 1, norm=None)

    (ended,) = play.seen(RunFinished)
    assert ended.failed
    assert "lower the learning rate" in ended.reason


def test_a_reduction_that_fails_is_tried_anew_and_then_blamed():
    play = Play()
    ann, bob = play.serve("a"), play.serve("b")
    play.count(ann, 0)
    play.count(bob, 1)
    play.coordinator.on_reduction_failure(bob, 1, "no road", play.now_s)
    play.promise(ann, bob)
    assert play.seen(act.Evict) == []

    play.coordinator.on_reduction_failure(bob, 2, "no road", play.now_s)

    assert [d.incarnation for d in play.seen(act.Evict)] == [bob]


def test_after_a_failed_reduction_the_dead_are_found_before_anybody_is_blamed():
    play = Play()
    ann, bob = play.serve("a"), play.serve("b")
    play.count(ann, 0)
    play.count(bob, 1)
    play.seen(object)
    play.coordinator.on_reduction_failure(ann, 1, "bob does not answer", play.now_s)

    fences = play.seen(act.SendFence)
    assert [(f.incarnation, f.message.work) for f in fences] == [(ann, ()), (bob, ())]
    play.promise(ann)
    play.wait(FENCE_S)

    assert [d.incarnation for d in play.seen(act.Evict)] == [bob]
    assert play.coordinator.members.alive(ann)


def test_words_about_a_former_generation_are_ignored():
    play = Play()
    ann, bob = play.serve("a"), play.join("b")
    play.count(ann, 0, 1)
    play.seen(object)

    play.told_reduced(ann, 99)
    play.coordinator.on_reduction_failure(ann, 99, "no road", play.now_s)
    play.coordinator.on_reduction_failure(bob, 1, "a newcomer only listens", play.now_s)

    assert play.seen(object) == []


def test_who_does_not_acknowledge_a_commit_is_out():
    play = Play()
    ann, bob = play.averaged("a", "b")
    play.commit(ann, b"w1")

    play.wait(COMMIT_S)

    assert bob in [d.incarnation for d in play.seen(act.Evict)]


def test_a_stage_without_servers_ends_the_run_after_a_while():
    play = Play(dataclasses.replace(CONFIG, on_stage_lost="end"))
    ann = play.serve("a")
    play.lose(ann)
    assert play.coordinator.next_deadline_s() is not None

    play.wait(UNSERVED_STAGE_S - 1)
    assert play.seen(RunFinished) == []
    play.wait(1)

    (ended,) = play.seen(RunFinished)
    assert ended.reason == "stage 0 has no server left that holds its weights"
    assert play.coordinator.next_deadline_s() is None


def test_an_evaluation_counts_nothing_and_is_told_with_its_step():
    config = RunConfig(
        stages=1,
        steps=1,
        batch=BatchConfig(microbatches=1, evaluate_every=1, evaluate_microbatches=1),
    )
    play = Play(config)
    ann = play.serve("a")
    held_out = next(x for x in play.seen(act.Launch) if x.work is Work.EVALUATE)
    assert held_out.counting == ()

    play.coordinator.on_evaluation(ann, Evaluated(0, held_out.microbatch, 3.5), play.now_s)
    play.count(ann, 0)
    play.told_reduced(ann, 1)

    assert play.seen(HeldOut) == [HeldOut(0, 3.5)]


def test_after_the_end_nothing_is_asked_for():
    play = Play(dataclasses.replace(CONFIG, on_stage_lost="end"))
    ann = play.serve("a")
    play.lose(ann)
    play.wait(UNSERVED_STAGE_S)
    play.seen(object)

    assert play.join("b") is None
    play.lose(ann)

    assert play.seen(object) == []


def test_a_step_that_is_whole_waits_for_a_stage_that_has_nobody():
    """Its only server left with an empty ledger; the weights may still come back."""
    config = RunConfig(stages=2, steps=2, batch=BatchConfig(microbatches=1, evaluate_every=0))
    play = Play(config)
    ann, bob, cid = play.serve("a"), play.serve("b"), play.serve("c")
    play.count(ann, 0)
    play.lose(cid)
    play.count(bob, 0)

    assert len(play.seen(act.SendReduce)) == 2


def test_who_refuses_a_commit_is_out_but_a_newcomer_may_skip_some():
    """A newcomer may not have the reduction; it fetches later weights instead."""
    play = Play()
    ann, bob = play.serve("a"), play.join("b")
    play.count(ann, 0, 1)
    play.reduce(ann)

    play.coordinator.on_commit_failure(bob, 0, "no reduction", play.now_s)
    assert play.seen(act.Evict) == []
    play.coordinator.on_commit_failure(ann, 0, "no reduction", play.now_s)

    assert [d.incarnation for d in play.seen(act.Evict)] == [ann]


def test_only_who_was_told_to_reduce_is_told_to_commit():
    play = Play()
    ann, bob = play.serve("a"), play.join("b")
    play.count(ann, 0, 1)
    orders = play.seen(act.SendReduce)
    play.join("c")
    play.lose(bob)
    play.told_reduced(ann, 1)

    assert [order.incarnation for order in orders] == [ann, bob]
    assert [commit.incarnation for commit in play.seen(act.SendCommit)] == [ann]


def test_a_step_of_which_only_fences_tell_is_done_without_a_loss():
    play = Play()
    ann = play.serve("a")
    play.stuck(0)
    play.promise(ann, counted=(0,))
    play.stuck(1)
    play.promise(ann, counted=(1,))

    play.reduce(ann)

    (done,) = play.seen(StepDone)
    assert math.isnan(done.loss)
    assert done.microbatches == 2


def test_the_loss_of_a_step_is_the_mean_of_those_that_were_told():
    play = Play()
    ann = play.serve("a")
    play.stuck(0)
    play.promise(ann, counted=(0,))
    play.count(ann, 1)

    play.reduce(ann)

    assert play.seen(StepDone)[0].loss == 1.0


def test_an_evaluation_that_nobody_tells_of_is_done_again_and_the_step_waits_for_it():
    batch = BatchConfig(microbatches=1, evaluate_every=1, evaluate_microbatches=1)
    play = Play(RunConfig(stages=1, steps=1, batch=batch))
    ann = play.serve("a")
    held_out = next(x for x in play.seen(act.Launch) if x.work is Work.EVALUATE).microbatch
    play.stuck(held_out)
    play.stuck(0)
    play.promise(ann)
    play.promise(ann, counted=(0,))
    assert play.seen(act.SendReduce) == []

    play.wait(1.0)
    play.coordinator.on_evaluation(ann, Evaluated(0, held_out, 3.5), play.now_s)

    assert len(play.seen(act.SendReduce)) == 1


def test_people_are_told_where_the_weights_of_a_lost_stage_were_last():
    play = Play()
    ann, bob = play.serve("a"), play.join("b")
    play.lose(ann, bob)

    assert play.seen(WeightsSought) == [WeightsSought(0, 0, ann, "h:1")]
