"""Tests of `server/scheduler.py`."""

import dataclasses

import pytest
import torch
from server.pushes import (
    ABOVE,
    BELOW,
    META,
    OTHER,
    TOKENS,
    B,
    backward,
    compute,
    evaluation,
    expected,
    forwarded,
    push,
    queue,
    scheduler,
)

from p2pswarm.base.errors import BadMessage, Busy, NotServing
from p2pswarm.models.compute.bundle_spec import StageCodecs
from p2pswarm.models.compute.torch_weights import torch_engine
from p2pswarm.run.messages.field_limits import Work
from p2pswarm.server.scheduler import (
    EVALUATIONS_MAX,
    HELD_MAX,
    QUEUE_MAX,
    RETRY_FIRST_S,
    RETRY_MAX_S,
    RETRY_MIN_S,
    expected_tensors,
)
from p2pswarm.settings.config import BatchConfig, ModelConfig, RunConfig
from p2pswarm.tensors.codecs.meta import Dtype


@pytest.mark.parametrize(
    ("stage", "work", "metas"),
    [
        (0, Work.FORWARD, (TOKENS,)),
        (0, Work.EVALUATE, (dataclasses.replace(TOKENS, dtype=Dtype.INT64),)),
        (1, Work.FORWARD, (TOKENS, META)),
        (2, Work.EVALUATE, (TOKENS, META)),
        (0, Work.BACKWARD, (META,)),
        (1, Work.BACKWARD, (META,)),
    ],
)
def test_what_the_model_and_the_manifest_say_is_taken(stage, work, metas):
    expected(stage).check(push(work=work, stage=stage, tensors=metas))


@pytest.mark.parametrize(
    ("stage", "work", "metas"),
    [
        (0, Work.FORWARD, ()),
        (0, Work.FORWARD, (TOKENS, META)),
        (1, Work.FORWARD, (TOKENS,)),
        (1, Work.FORWARD, (META, META)),
        (1, Work.EVALUATE, (TOKENS, TOKENS)),
        (1, Work.FORWARD, (dataclasses.replace(TOKENS, shape=(2, 4)), META)),
        (1, Work.FORWARD, (dataclasses.replace(TOKENS, dtype=99), META)),
        (1, Work.BACKWARD, ()),
        (1, Work.BACKWARD, (TOKENS,)),
        (1, Work.BACKWARD, (TOKENS, META)),
        (2, Work.BACKWARD, (META,)),
    ],
)
def test_anything_else_is_the_senders_fault(stage, work, metas):
    with pytest.raises(BadMessage):
        expected(stage).check(push(work=work, stage=stage, tensors=metas))


def test_tensors_get_the_names_of_the_bundle():
    tokens, x = torch.zeros(1, 4), torch.ones(1)

    forward = expected(1).inputs(push(), [tokens, x])
    gradient = expected(1).inputs(backward(), [x])

    assert forward.tokens is tokens
    assert forward.bundle == {"x": x}
    assert gradient.tokens is None
    assert gradient.bundle == {"x": x}
    assert expected(0).inputs(evaluation(), [tokens]).bundle == {}


def test_a_stage_expects_what_its_engine_says():
    model = ModelConfig(d_model=16, layers=1, heads=2, sequence_length=8)
    run = RunConfig(stages=2, model=model, batch=BatchConfig(rows=3))
    engines = [torch_engine(run, stage, torch.device("cpu"), 0) for stage in (0, 1)]
    first, last = (
        expected_tensors(run, StageCodecs(run, stage, engine.takes, engine.gives))
        for stage, engine in enumerate(engines)
    )

    assert first.tokens_shape == last.tokens_shape == (3, 9)
    assert first.gradient(5).spec.names == last.takes(5).spec.names == ("x",)
    assert first.takes(5).names == last.gradient(5).names == ()


def test_a_gradient_goes_before_a_microbatch_and_that_before_an_evaluation():
    one = scheduler()
    forwarded(one)
    last = queue(one, evaluation())
    second, third = queue(one, push(1)), queue(one, push(2))
    first = queue(one, backward(), ABOVE)

    for item in (first, second, third, last):
        assert compute(one, item)


def test_nothing_is_taken_up_while_something_is_in_hand():
    one = scheduler()
    item = queue(one, push())
    queue(one, push(1))

    assert one.take(0.0) is item
    assert one.in_hand is item
    assert one.take(0.0) is None


@pytest.mark.parametrize(
    "changes",
    [
        {"stage": 2},
        {"incarnation": 4},
        {"step": 2, "microbatch": 2 * B},
    ],
)
def test_another_stage_incarnation_or_step_is_not_served(changes):
    with pytest.raises(NotServing):
        scheduler().admit(push(**changes), BELOW)


def test_nothing_is_served_before_the_weights_are_here():
    with pytest.raises(NotServing):
        scheduler(version=None).admit(push(), BELOW)


def test_a_former_step_is_not_served():
    with pytest.raises(NotServing):
        scheduler(version=1).admit(push(), BELOW)


def test_a_push_for_the_next_step_waits_for_its_commit():
    one = scheduler()
    item = queue(one, push(B))

    assert one.take(0.0) is None
    assert one.moved_to(1).items == ()
    assert one.take(0.0) is item


def test_the_same_push_twice_is_refused():
    one = scheduler()
    one.admit(push(), BELOW)
    with pytest.raises(NotServing, match="already"):
        one.admit(push(), BELOW)


def test_a_push_of_what_is_held_is_refused():
    one = scheduler()
    forwarded(one)
    with pytest.raises(NotServing, match="already"):
        one.admit(push(), BELOW)


def test_a_push_of_what_is_in_hand_is_refused():
    one = scheduler()
    queue(one, push())
    one.take(0.0)
    with pytest.raises(NotServing, match="already"):
        one.admit(push(), BELOW)


def test_another_attempt_of_the_same_microbatch_is_another_push():
    one = scheduler()
    one.admit(push(), BELOW)
    one.admit(push(attempt=1), BELOW)

    assert one.queued() == 2


def test_a_gradient_is_taken_only_from_whom_the_microbatch_went_to():
    one = scheduler()
    forwarded(one)

    with pytest.raises(NotServing, match="due from you"):
        one.admit(backward(), OTHER)
    with pytest.raises(NotServing, match="due from you"):
        one.admit(backward(1), ABOVE)
    one.admit(backward(), ABOVE)


def test_a_microbatch_handed_on_by_a_former_step_is_forgotten():
    one = scheduler()
    one.handed((0, 0), ABOVE)

    assert one.held_from((0, 0)) is None


@pytest.mark.parametrize(
    "message",
    [
        push(tensors=(TOKENS,)),
        push(stage=1, tensors=()),
        push(B, step=0),
        backward(tensors=(TOKENS, META)),
    ],
)
def test_what_no_honest_peer_sends_is_named(message):
    with pytest.raises(BadMessage):
        scheduler().admit(message, BELOW)


def test_the_first_stage_takes_tokens_alone():
    one = scheduler(stage=0)

    with pytest.raises(BadMessage):
        one.admit(push(stage=0), BELOW)
    one.admit(push(stage=0, tensors=(TOKENS,)), BELOW)


def test_the_queue_is_bounded_and_says_when_to_come_again():
    one = scheduler(microbatches=2 * QUEUE_MAX)
    for number in range(QUEUE_MAX):
        one.admit(push(number, step=0), BELOW)

    with pytest.raises(Busy) as refusal:
        one.admit(push(QUEUE_MAX, step=0), BELOW)
    assert refusal.value.retry_after_s == RETRY_FIRST_S
    one.admit(evaluation(), BELOW)


def test_evaluations_are_bounded_apart():
    one = scheduler()
    for number in range(EVALUATIONS_MAX):
        one.admit(evaluation(number), BELOW)

    with pytest.raises(Busy):
        one.admit(evaluation(EVALUATIONS_MAX), BELOW)
    one.admit(push(), BELOW)


def test_held_microbatches_are_bounded():
    one = scheduler(microbatches=2 * HELD_MAX)
    for number in range(HELD_MAX):
        forwarded(one, push(number, step=0))

    with pytest.raises(Busy):
        one.admit(push(HELD_MAX, step=0), BELOW)
    one.admit(backward(0), ABOVE)


def test_a_server_that_leaves_takes_gradients_only():
    one = scheduler()
    forwarded(one)
    one.closing = True

    with pytest.raises(NotServing, match="leaving"):
        one.admit(push(1), BELOW)
    one.admit(backward(), ABOVE)


@pytest.mark.parametrize(
    ("compute_s", "retry_s"), [(1e-6, RETRY_MIN_S), (0.3, 0.3), (1e3, RETRY_MAX_S)]
)
def test_the_wait_that_is_told_is_the_measured_time_within_limits(compute_s, retry_s):
    one = scheduler()
    compute(one, queue(one, push()), compute_s=compute_s)

    assert one.retry_after_s() == pytest.approx(retry_s)


def test_the_measured_time_follows_slowly():
    one = scheduler()
    compute(one, queue(one, push()), compute_s=1.0)
    compute(one, queue(one, push(1)), compute_s=2.0)
    compute(one, queue(one, evaluation()), compute_s=9.0)

    assert one.retry_after_s() == pytest.approx((0.9 + 2.0) / 1.9)


def test_an_item_whose_bytes_do_not_come_leaves_the_queue():
    one = scheduler()
    item = one.admit(push(), BELOW)
    one.withdraw(item)
    one.withdraw(item)

    assert one.queued() == 0
    one.admit(push(), BELOW)


def test_a_period_tells_what_was_done_since_the_last():
    one = scheduler()
    queue(one, push(), now_s=1.0)
    item = one.take(3.0)
    one.done(item, 0.5, counted=True)
    period = one.period(4.0)

    assert (period.started_s, period.counted) == (0.0, 1)
    assert (period.waits_s, period.computes_s) == ([2.0], [0.5])
    assert one.period(5.0).started_s == 4.0
