"""A stage that only takes time: how long, and what its sums tell of who was counted."""

import math

import pytest
import torch
from core import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from p2pswarm.base.errors import BadMessage, NotServing
from p2pswarm.models.compute.base import BackwardSpec, NotFiniteHere
from p2pswarm.models.compute.stage_emulator import emulated_engine, gradient_place
from p2pswarm.settings.config import BatchConfig, ModelConfig, RunConfig

RUN = RunConfig(
    stages=3,
    emulated=True,
    model=ModelConfig(d_model=8, layers=2, heads=2, sequence_length=12),
    batch=BatchConfig(microbatches=8, rows=1),
)
ALL = BackwardSpec(counting=True, returning=True)
KEY = (0, 0)


def engine(stage: int, rested: list[float] | None = None, forward_s: float = 0.5):
    rest = (lambda _seconds: None) if rested is None else rested.append
    made = emulated_engine(RUN, stage, forward_s, rest)
    made.weights.reset(draw=True)
    return made


def tokens(number: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(number)
    return torch.randint(0, 256, (1, 13), dtype=torch.uint8, generator=generator)


def test_each_call_takes_the_stated_time_and_a_backward_twice_that():
    rested: list[float] = []
    first, last = engine(0, rested).stage, engine(2, rested).stage

    x = first.forward(KEY, tokens(0), {})
    finished = last.finish(tokens(0), x, ALL)
    first.backward(KEY, finished.gradient, ALL)
    first.evaluate(tokens(0), {})

    assert rested == [0.5, 1.5, 1.0, 0.5]


def test_all_servers_of_a_stage_give_the_same_bytes():
    """Or spot checks would find every one of them wrong."""
    one, other = engine(1).stage, engine(1).stage

    given_one = one.forward(KEY, tokens(0), {})
    given_other = other.forward(KEY, tokens(1), {})

    assert torch.equal(given_one["x"], given_other["x"])
    assert given_one["x"].std() == pytest.approx(1.0, abs=0.2), "noise, which no codec shrinks"


@settings(max_examples=examples(25), deadline=None)
@given(st.permutations(range(8)), st.integers(0, 8))
def test_sums_of_any_split_in_any_order_are_the_same_bits(order: list[int], split: int):
    whole, (one, other) = engine(1), (engine(1), engine(1))
    for number in range(8):
        count(whole, number)
    for place, number in enumerate(order):
        count(one if place < split else other, number)

    assert torch.equal(sum_of(whole), sum_of(one) + sum_of(other))


@settings(max_examples=examples(25), deadline=None)
@given(st.lists(st.integers(0, 7), max_size=12))
def test_the_sum_tells_if_a_microbatch_was_left_out_or_counted_twice(numbers: list[int]):
    whole, made = engine(1), engine(1)
    for number in range(8):
        count(whole, number)
    for number in numbers:
        count(made, number)

    assert torch.equal(sum_of(whole), sum_of(made)) == (sorted(numbers) == list(range(8)))


def test_microbatches_of_the_test_above_have_places_of_their_own():
    length = sum_of(engine(1)).numel()

    assert len({gradient_place(tokens(number), length) for number in range(8)}) == 8


def test_the_loss_is_that_of_a_guess():
    assert engine(2).stage.finish(tokens(0), {}, ALL).loss == pytest.approx(math.log(256))


def test_what_is_not_finite_or_no_token_is_refused_and_the_sum_stays_as_it_was():
    made = engine(1)
    x = made.stage.forward(KEY, tokens(0), {})
    bad = {"x": x["x"].clone()}
    bad["x"][0, 0, 0] = math.nan

    with pytest.raises(NotFiniteHere):
        made.stage.backward(KEY, bad, ALL)
    with pytest.raises(BadMessage):
        made.stage.forward(KEY, torch.full((1, 13), 256, dtype=torch.int64), {})

    assert not sum_of(made).any()
    with pytest.raises(NotServing):
        made.stage.backward(KEY, x, ALL)


def count(made, number: int) -> None:
    made.stage.forward((number, 0), tokens(number), {})
    made.stage.backward((number, 0), {"x": torch.zeros(1, 12, 8)}, ALL)


def sum_of(made) -> torch.Tensor:
    return made.weights.reduction()._sum_N
