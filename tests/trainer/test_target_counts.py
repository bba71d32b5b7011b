"""The coordinator asks its own text how many targets a step has, and decides nothing before."""

import dataclasses
import math

import pytest
from trainer.harness import CONFIG, Play

from p2pswarm.progress.events import HeldOut
from p2pswarm.run.messages.microbatch import Counted, Evaluated
from p2pswarm.settings.config import BatchConfig
from p2pswarm.trainer.coordinator.decision import CoordinatorStart
from p2pswarm.trainer.reports import actions as act
from p2pswarm.trainer.reports.reports import StepDone
from p2pswarm.trainer.step.in_flight import EVALUATION_BASE

MARKED = dataclasses.replace(
    CONFIG, batch=BatchConfig(microbatches=2, evaluate_every=0, samples="whole")
)
TOKENS = MARKED.tokens_per_microbatch


def told(play: Play, targets: dict[int, int], step: int = 0) -> None:
    play.coordinator.on_targets(step, targets, play.now_s)


def lose(play: Play, by, losses: dict[int, float]) -> None:
    for microbatch, loss in losses.items():
        play.coordinator.on_count(by, Counted(0, microbatch, 0, counted=True, loss=loss), 0.0)


def test_each_step_is_counted_once_as_soon_as_it_begins():
    play = Play(MARKED)
    ann = play.serve("a")

    assert play.seen(act.CountTargets) == [act.CountTargets(0, (0, 1))]

    told(play, {0: 9, 1: 4})
    play.count(ann, 0, 1)
    play.told_reduced(ann, 1)
    play.commit(ann, b"w1")
    assert play.seen(act.CountTargets) == [act.CountTargets(1, (2, 3))]


def test_a_step_is_not_averaged_before_its_targets_are_known():
    play = Play(MARKED)
    ann = play.serve("a")
    play.count(ann, 0, 1)
    assert play.seen(act.SendReduce) == []

    told(play, {0: 9})
    assert play.seen(act.SendReduce) == []

    told(play, {1: 4})
    assert len(play.seen(act.SendReduce)) == 1


def test_targets_of_another_step_are_nothing():
    play = Play(MARKED)
    play.count(play.serve("a"), 0, 1)

    told(play, {0: 9, 1: 4}, step=1)

    assert play.seen(act.SendReduce) == []


def test_losses_weigh_by_targets_and_the_sum_is_scaled_to_them():
    play = Play(MARKED)
    ann = play.serve("a")
    told(play, {0: 30, 1: 10})
    lose(play, ann, {0: 2.0, 1: 4.0})
    play.told_reduced(ann, 1, norm=1e-4)

    actions = play.coordinator.drain()
    (decide,) = [each for each in actions if isinstance(each, act.Decide)]
    per_target = 2 * TOKENS / 40
    assert decide.stages[-1].targets == 40
    assert decide.loss == pytest.approx((2.0 * 30 + 4.0 * 10) / 40)
    assert decide.gradient_norm == pytest.approx(per_target * 1e-2)
    assert decide.scale == pytest.approx(per_target * min(1.0, 1 / (per_target * 1e-2 + 1e-6)))
    (commit,) = [each for each in actions if isinstance(each, act.SendCommit)]
    assert commit.message.scale == decide.scale


def test_a_step_without_a_target_changes_nothing_and_has_no_loss():
    play = Play(MARKED)
    ann = play.serve("a")
    told(play, {0: 0, 1: 0})
    lose(play, ann, {0: 0.0, 1: 0.0})
    play.told_reduced(ann, 1, norm=0.0)

    actions = play.coordinator.drain()
    (decide,) = [each for each in actions if isinstance(each, act.Decide)]
    assert (decide.scale, decide.loss, decide.stages[-1].targets) == (0.0, None, 0)
    (done,) = [each for each in actions if isinstance(each, StepDone)]
    assert math.isnan(done.loss)


def test_a_coordinator_that_takes_over_counts_in_its_own_text():
    start = CoordinatorStart(term=1, version=1, gathers=False)

    play = Play(MARKED, start=start)
    ann = play.join("a", stage=0, version=1, digest=b"w1")
    play.ready(ann, 1, b"w1")

    assert play.seen(act.CountTargets) == [act.CountTargets(1, (2, 3))]


def test_held_out_batches_weigh_by_their_targets():
    batch = dataclasses.replace(MARKED.batch, evaluate_every=1, evaluate_microbatches=2)
    play = Play(dataclasses.replace(MARKED, batch=batch))
    ann = play.serve("a")
    held_out = EVALUATION_BASE, EVALUATION_BASE + 1
    assert play.seen(act.CountTargets) == [act.CountTargets(0, (0, 1, *held_out))]

    told(play, {0: 9, 1: 4, held_out[0]: 10, held_out[1]: 90})
    for number, loss in zip(held_out, (3.0, 1.0), strict=True):
        play.coordinator.on_evaluation(ann, Evaluated(0, number, loss), play.now_s)
    play.count(ann, 0, 1)
    play.told_reduced(ann, 1)

    assert play.seen(HeldOut) == [HeldOut(0, pytest.approx(1.2))]


def test_a_run_in_which_every_token_is_a_target_asks_nothing():
    play = Play()
    ann = play.serve("a")
    play.count(ann, 0, 1)

    assert play.seen(act.CountTargets | act.SendReduce)[0].incarnation == ann
