"""The schedule: warm-up, decay, clipping as torch does it."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from p2pswarm.run.schedule import clip_scale, learning_rate
from p2pswarm.settings.config import OptimizerConfig, RunConfig

OPTIMIZER = OptimizerConfig(
    learning_rate=1.0, warmup_steps=10, decay_steps=110, final_share=0.1, clip_norm=0.5
)


def test_the_rate_climbs_to_its_peak_and_falls_to_its_share():
    run = RunConfig(optimizer=OPTIMIZER)

    rates = [learning_rate(run, step) for step in range(200)]

    assert rates[:10] == pytest.approx([0.1 * n for n in range(1, 11)])
    assert rates[10] == 1.0
    assert rates[60] == pytest.approx(0.55)
    assert rates[110:] == pytest.approx([0.1] * 90)


def test_without_warmup_the_first_step_has_the_whole_rate():
    run = RunConfig(optimizer=OptimizerConfig(learning_rate=2.0, warmup_steps=0))

    assert learning_rate(run, 0) == 2.0


def test_the_decay_ends_with_the_run_unless_the_settings_say_otherwise():
    optimizer = OptimizerConfig(learning_rate=1.0, warmup_steps=0, final_share=0.1)

    short, long = (RunConfig(steps=steps, optimizer=optimizer) for steps in (100, 10_000))

    assert learning_rate(short, 100) == pytest.approx(0.1)
    assert learning_rate(long, 5_000) == pytest.approx(0.55)


def run_with(schedule: str, **changes: object) -> RunConfig:
    return RunConfig(steps=110, optimizer=replace(OPTIMIZER, schedule=schedule, **changes))


def test_a_linear_schedule_falls_by_the_same_each_step():
    run = run_with("linear")

    assert learning_rate(run, 10) == 1.0
    assert learning_rate(run, 35) == pytest.approx(0.775)
    assert learning_rate(run, 60) == pytest.approx(0.55)
    assert learning_rate(run, 110) == pytest.approx(0.1)


def test_a_stable_rate_falls_in_the_last_share_of_the_steps():
    run = run_with("warmup-stable-decay", decay_share=0.2)

    assert [learning_rate(run, step) for step in (10, 50, 90)] == [1.0, 1.0, 1.0]
    assert learning_rate(run, 100) == pytest.approx(0.55)
    assert learning_rate(run, 110) == pytest.approx(0.1)


def test_a_rate_without_a_decay_stays():
    assert learning_rate(run_with("constant"), 10**6) == 1.0
    assert learning_rate(run_with("warmup-stable-decay", decay_share=0.0), 110) == 1.0


def test_a_decay_of_less_than_a_step_does_not_fall_below_its_end():
    run = run_with("warmup-stable-decay", final_share=0.5, decay_share=1e-16)
    assert learning_rate(run, 110) == 0.5


@given(
    st.sampled_from(["cosine", "linear", "warmup-stable-decay", "constant"]),
    st.floats(0.0, 1.0),
    st.floats(0.0, 1.0),
    st.integers(0, 50),
    st.integers(0, 200),
)
def test_a_rate_never_rises_after_the_warm_up_and_keeps_its_bounds(
    schedule, final, decay, warmup, step
):
    run = run_with(schedule, final_share=final, decay_share=decay, warmup_steps=warmup)
    now, following = (learning_rate(run, warmup + one) for one in (step, step + 1))

    assert following <= now + 1e-12
    assert final - 1e-12 <= following <= 1.0 + 1e-12
    if warmup:
        assert learning_rate(run, warmup - 1) == 1.0


def test_clipping_is_torchs():
    parameter = torch.nn.Parameter(torch.zeros(3, dtype=torch.float64))
    parameter.grad = torch.tensor([3.0, 4.0, 12.0], dtype=torch.float64)

    norm = torch.nn.utils.clip_grad_norm_([parameter], OPTIMIZER.clip_norm).item()

    assert norm == 13.0
    scaled = torch.tensor([3.0, 4.0, 12.0], dtype=torch.float64) * clip_scale(OPTIMIZER, norm)
    torch.testing.assert_close(parameter.grad, scaled, rtol=0, atol=0)


def test_a_small_gradient_is_left_alone():
    assert clip_scale(OPTIMIZER, 0.1) == 1.0
