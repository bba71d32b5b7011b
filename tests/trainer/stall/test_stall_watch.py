"""When people are told of a stall, and that it is over."""

from dataclasses import replace

import pytest

from p2pswarm.progress.step_pace import STALL_STEPS
from p2pswarm.run.member_view import Incarnation
from p2pswarm.run.messages.waits import ServerWaits
from p2pswarm.trainer.reports.step_seconds import StallCause, Stalling, StallOver
from p2pswarm.trainer.stall.stall_watch import AGAIN_S, FIRST_S, LEAST_S, StallWatch
from p2pswarm.trainer.stall.trainer_view import TrainerView
from p2pswarm.trainer.step.in_flight import EVALUATION_BASE
from p2pswarm.trainer.step.stalls import HeldMicrobatch
from p2pswarm.trainer.step.step import Phase

ANN = b"a" * 32


def steps(watch: StallWatch, *took_s: float) -> float:
    """Let steps pass; the time of the last commit."""
    now_s = 0.0
    watch.begin(0, now_s)
    for step, each_s in enumerate(took_s, start=1):
        now_s += each_s
        watch.begin(step, now_s)
    return now_s


def view(step: int, *, unserved=()) -> TrainerView:
    return TrainerView(step, Phase.FILLING, {ANN: 0}, {ANN: 0.0}, unserved)


@pytest.mark.parametrize(
    ("took_s", "limit_s"),
    [((), FIRST_S), ((0.1, 0.1), LEAST_S), ((2.0, 9.0, 2.0), STALL_STEPS * 2.0)],
)
def test_a_step_may_take_three_usual_ones_and_some_seconds(took_s, limit_s):
    watch = StallWatch()
    now_s = steps(watch, *took_s)

    assert watch.next_deadline_s() == pytest.approx(now_s + limit_s)
    watch.on_deadline(now_s + limit_s - 0.01)
    assert not watch.asks
    watch.on_deadline(now_s + limit_s)
    assert watch.asks


def test_a_cause_is_told_once_and_again_when_it_is_another():
    watch = StallWatch()
    now_s = steps(watch, 2.0, 2.0) + 6.0
    watch.on_deadline(now_s)
    watch.on_answers(view(2, unserved=(1,)), {}, now_s)
    (told,) = watch.drain()
    assert (told.step, told.for_s, told.usual_s) == (2, 6.0, 2.0)
    assert (told.cause, told.stages) == (StallCause.UNSERVED, (1,))

    for again_s, unserved in ((AGAIN_S, (1,)), (3 * AGAIN_S, (2,))):
        watch.on_deadline(now_s + again_s)
        assert watch.asks
        watch.on_answers(view(2, unserved=unserved), {}, now_s + again_s)

    assert [one.stages for one in watch.drain()] == [(2,)]


def test_that_nothing_explains_it_any_more_is_no_news():
    watch = StallWatch()
    now_s = steps(watch, 2.0) + 6.0
    watch.on_deadline(now_s)
    watch.on_answers(view(1, unserved=(1,)), {}, now_s)
    watch.on_deadline(now_s + AGAIN_S)
    watch.on_answers(view(1), {ANN: ServerWaits(0, 1, "computes")}, now_s + AGAIN_S)

    assert len(watch.drain()) == 1


def test_the_end_of_a_stall_is_told_with_its_time():
    watch = StallWatch()
    now_s = steps(watch, 2.0) + 6.0
    watch.on_deadline(now_s)
    watch.on_answers(view(1, unserved=(1,)), {}, now_s)
    watch.begin(2, now_s + 1.0)

    assert watch.drain()[1:] == [StallOver(1, 7.0)]
    watch.begin(3, now_s + 2.0)
    assert watch.drain() == []


def test_answers_that_come_after_the_step_are_no_news():
    watch = StallWatch()
    now_s = steps(watch, 2.0) + 6.0
    watch.on_deadline(now_s)
    watch.begin(2, now_s + 0.5)
    watch.on_answers(view(1, unserved=(1,)), {}, now_s + 1.0)

    assert watch.drain() == []


def test_a_trainer_that_was_stopped_says_so_at_once():
    watch = StallWatch()
    now_s = steps(watch, 2.0, 2.0) + 0.5
    watch.on_stop(5.0, now_s)
    assert watch.drain() == []

    watch.on_stop(12.0, now_s)

    (told,) = watch.drain()
    assert isinstance(told, Stalling)
    assert (told.cause, told.for_s, told.peers) == (StallCause.STOPPED, 12.0, ())
    watch.begin(3, now_s + 1.0)
    assert isinstance(watch.drain()[0], StallOver)


def test_a_run_that_is_over_does_not_stall():
    watch = StallWatch()
    steps(watch, 2.0)
    watch.close()

    assert watch.next_deadline_s() is None
    watch.on_stop(99.0, 5.0)
    assert watch.drain() == []


def test_a_step_that_waits_by_plan_is_no_stall():
    """Somebody fetches the weights, or references are computed before the first step."""
    watch = StallWatch()
    now_s = steps(watch, 2.0) + 6.0
    watch.on_deadline(now_s)
    planned = replace(view(1, unserved=(1,)), waits_by_plan=True)
    watch.on_answers(planned, {}, now_s)
    assert watch.drain() == []

    watch.on_deadline(now_s + AGAIN_S)
    watch.on_answers(view(1, unserved=(1,)), {}, now_s + AGAIN_S)
    assert len(watch.drain()) == 1


def test_a_step_with_held_out_batches_takes_longer_and_is_no_stall_while_all_work():
    watch, one = StallWatch(), Incarnation(ANN, 1)
    now_s = steps(watch, 2.0) + 6.0
    held = HeldMicrobatch(EVALUATION_BASE + 3, 0, one, None, 1.0, returning=False, waits=False)
    evaluates = replace(view(1), held=(held,))
    busy = ServerWaits(0, 1, "computes", queued=9)
    watch.on_deadline(now_s)
    watch.on_answers(evaluates, {ANN: busy}, now_s)
    assert watch.drain() == []

    watch.on_deadline(now_s + AGAIN_S)
    silent = replace(evaluates, unheard_s={ANN: 9.0})
    watch.on_answers(silent, {ANN: None}, now_s + AGAIN_S)
    assert [one.cause for one in watch.drain()] == [StallCause.SILENT]
