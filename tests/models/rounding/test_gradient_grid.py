"""Gradients on a grid: sums with the same bits in any order, no bias, a grid of the state alone."""
# ruff: noqa: N803, N806  shapes are written at the end of names

import dataclasses
import itertools
import math

import pytest
import torch
from core import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from p2pswarm.models.rounding import gradient_grid
from p2pswarm.models.rounding.gradient_grid import (
    BLOCK,
    FINEST,
    NOISE,
    UNKNOWN_POWER,
    GradientGrid,
    Leaf,
    power_below_root,
    sum_by_halves,
)
from p2pswarm.settings.config import (
    BatchConfig,
    CodecConfig,
    ModelConfig,
    OptimizerConfig,
    RunConfig,
)
from p2pswarm.tensors.flat_layout import flat_layout

B = 8
RUN = RunConfig(
    batch=BatchConfig(microbatches=B),
    codecs=CodecConfig(averaging="int-grid"),
    optimizer=OptimizerConfig(beta2=0.0),
)
SHAPES = [("blocks.1.a", (3, 300)), ("blocks.1.b", (7,)), ("blocks.1.c", (256, 2))]


class Stage:
    """The memory of a stage, and gradients for it."""

    def __init__(self, run=RUN, shapes=SHAPES, square=1e-4, dtype="float32"):
        self.layout = flat_layout((dtype,) * 3, shapes)
        kind = getattr(torch, dtype)
        self.square_N = torch.zeros(self.layout.length, dtype=kind)
        rng = torch.Generator().manual_seed(9)
        for t in self.layout.tensors:
            draw = torch.rand(t.stop - t.start, generator=rng).to(kind)
            self.square_N[t.start : t.stop] = draw * 2 * square
        self.grid = GradientGrid(run, self.layout, self.square_N)
        self.sum_N = torch.zeros_like(self.square_N)

    def gradients(self, microbatch, size=1e-3):
        rng = torch.Generator().manual_seed(microbatch)
        return [
            (torch.randn(t.shape, generator=rng) * size).to(self.square_N.dtype)
            for t in self.layout.tensors
        ]

    def add(self, microbatch, parts=None, step=1, sum_N=None, targets=1):
        sum_N = self.sum_N if sum_N is None else sum_N
        parts = self.gradients(microbatch) if parts is None else parts
        totals = [sum_N[t.start : t.stop].view(t.shape) for t in self.layout.tensors]
        leaves = [Leaf(1, place) for place in range(len(totals))]
        squares = [x.double().square().sum().item() for x in parts]
        self.grid.add(leaves, parts, totals, squares, (step, microbatch), targets)
        return sum_N

    def steps(self, number):
        """The step of each value of a parameter."""
        t = self.layout.tensors[number]
        return self.grid._step_B1[number].view(-1).repeat_interleave(BLOCK)[: t.stop - t.start]


@settings(max_examples=examples(60))
@given(
    st.permutations(range(B)),
    st.lists(st.integers(0, 2), min_size=B, max_size=B),
    st.sampled_from([1e-6, 1e-3, 0.1, 1e6]),
)
def test_sums_have_the_same_bits_in_any_order_and_grouping(order, members, size):
    one = Stage()
    for microbatch in range(B):
        one.add(microbatch, one.gradients(microbatch, size))

    other = Stage()
    sums = [torch.zeros_like(other.sum_N) for _ in range(3)]
    for microbatch in order:
        parts = other.gradients(microbatch, size)
        other.add(microbatch, parts, sum_N=sums[members[microbatch]])

    for group in itertools.permutations(sums):
        assert torch.equal(
            (group[0] + group[1] + group[2]).view(torch.int32), one.sum_N.view(torch.int32)
        )


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_sum_is_of_whole_steps_near_the_true_one(dtype):
    stage = Stage(dtype=dtype)
    true = [torch.zeros(t.shape, dtype=torch.float64) for t in stage.layout.tensors]
    for microbatch in range(B):
        stage.add(microbatch)
        for total, part in zip(true, stage.gradients(microbatch), strict=True):
            total.add_(part)

    for number, (t, total) in enumerate(zip(stage.layout.tensors, true, strict=True)):
        found = stage.sum_N[t.start : t.stop].double()
        units = found / stage.steps(number)
        assert torch.equal(units, units.round())
        assert ((found - total.view(-1)).abs() < B * stage.steps(number)).all()
    assert not stage.sum_N[900:912].any()  # between parameters


def test_roundings_have_no_error_on_average():
    stage = Stage(shapes=[("blocks.1.a", (600,))])
    part = torch.linspace(-3e-3, 3e-3, 600)
    draws = 4000

    error = torch.zeros(600, dtype=torch.float64)
    for microbatch in range(draws):
        sum_N = stage.add(microbatch, [part], sum_N=torch.zeros(stage.layout.length))
        error += sum_N[:600].double() - part.double()

    up = (part.double() / stage.steps(0)).frac().abs()  # how often a value becomes the farther one
    sigma = (up * (1 - up) * draws).sqrt()
    assert ((error / stage.steps(0)).abs() <= 4 * sigma + 2 + draws * 2.0**-16).all()


def test_all_roundings_of_a_step_add_no_more_than_the_noise():
    stage = Stage(shapes=[("blocks.1.a", (512, 64))], square=1.0)
    share = torch.randn(B, 512, 64, generator=torch.Generator().manual_seed(3)) / B**0.5
    for microbatch in range(B):
        stage.add(microbatch, [share[microbatch]])

    off = stage.sum_N.view(512, 64) - share.sum(0)

    assert off.square().mean().sqrt() <= 1.05 * NOISE  # the sum is about 1
    assert off.square().mean().sqrt() >= 0.45 * NOISE  # steps are rounded down, up to a half


MARKED = dataclasses.replace(
    RUN,
    model=ModelConfig(sequence_length=64),
    batch=BatchConfig(microbatches=B, rows=8, samples="whole"),
)
TOKENS = MARKED.tokens_per_microbatch


@pytest.mark.parametrize("share", [1.0, 0.3, 0.05, 0.035])
def test_of_few_targets_the_noise_is_the_same(share):
    """Moments are of gradients of a mean over targets; what is rounded is weighed by all tokens."""
    counts = [round(share * TOKENS * (1 + uneven)) for uneven in (-0.3, 0.0, -0.1, -0.2) * 2]
    stage = Stage(MARKED, [("blocks.1.a", (512, 64))])
    per_target = B * TOKENS / sum(counts)
    parts = torch.randn(B, 512, 64, generator=torch.Generator().manual_seed(3)) / B**0.5
    parts *= torch.tensor(counts).sqrt().view(B, 1, 1) / TOKENS
    stage.square_N[:] = (parts.sum(0).square().mean() * per_target**2).item()
    for microbatch in range(B):
        stage.add(microbatch, [parts[microbatch]], targets=counts[microbatch])

    off = stage.sum_N.view(512, 64) - parts.sum(0)

    noise = (off.square().mean() / parts.sum(0).square().mean()).sqrt()
    assert 0.2 * NOISE <= noise <= 1.1 * NOISE  # two powers of two are rounded down


@settings(max_examples=examples(30))
@given(
    st.permutations(range(B)),
    st.lists(st.integers(0, TOKENS), min_size=B, max_size=B),
    st.sampled_from([1e-6, 1e-3, 0.1, 1e6]),
    st.sampled_from([0.0, 1e-4]),
)
def test_steps_of_microbatches_with_unequal_targets_add_up_exactly(order, targets, size, square):
    one, other = Stage(MARKED, square=square), Stage(MARKED, square=square)
    exact = torch.zeros_like(one.sum_N, dtype=torch.float64)
    for microbatch in range(B):
        parts = one.gradients(microbatch, size)
        one.add(microbatch, parts, targets=targets[microbatch])
        alone = torch.zeros_like(one.sum_N)
        exact += one.add(microbatch, parts, sum_N=alone, targets=targets[microbatch])
    for microbatch in order:
        parts = other.gradients(microbatch, size)
        other.add(microbatch, parts, targets=targets[microbatch])

    assert torch.equal(one.sum_N.double(), exact)
    assert torch.equal(one.sum_N.view(torch.int32), other.sum_N.view(torch.int32))


@pytest.mark.parametrize("microbatches", [1, 8, 512, 4096, 1 << 16])
def test_a_microbatch_of_targets_alone_has_room_among_others_with_few(microbatches):
    batch = dataclasses.replace(MARKED.batch, microbatches=microbatches)
    stage = Stage(dataclasses.replace(MARKED, batch=batch), [("w", (4,))], square=1e-12)
    stage.square_N[:] = 1e-12
    part = torch.full((4,), 1e9)
    full = stage.add(0, [part], sum_N=torch.zeros(stage.layout.length), targets=TOKENS)[0]
    few = stage.add(0, [part], sum_N=torch.zeros(stage.layout.length), targets=1)[0]
    step = stage.grid._step_B1[0][0, 0]

    assert full == few  # both are clamped to what all may add
    assert full / step >= min(gradient_grid.UNITS_LEAST, stage.grid.units_max)
    assert microbatches * full <= 2**23 * step * 2.0**-stage.grid._lower


def test_a_step_is_a_power_of_two_of_the_usual_gradient_of_its_block():
    stage = Stage(shapes=[("blocks.1.a", (2, 256))])
    stage.square_N[:256] = 4e-6
    stage.square_N[256:] = 1e-20
    stage.add(0)

    large, small = stage.grid._step_B1[0].view(-1).tolist()

    wanted = 2e-3 * gradient_grid.grid_share(B)
    assert large == 2.0 ** math.floor(math.log2(wanted))
    assert small == 2.0 ** math.floor(math.log2(wanted * FINEST / 2**0.5))


def test_without_a_gradient_before_it_a_step_is_fixed():
    stage = Stage(square=0.0)
    stage.add(0, step=0)

    assert {x for step_B1 in stage.grid._step_B1 for x in step_B1.view(-1).tolist()} == {
        2.0**UNKNOWN_POWER
    }


def test_early_steps_are_corrected_as_the_optimizer_corrects_moments():
    run = dataclasses.replace(RUN, optimizer=OptimizerConfig(beta2=0.99))
    early, late = Stage(run, square=1e-4 * (1 - 0.99**3)), Stage(run, square=1e-4)
    early.add(0, step=3)
    late.add(0, step=10_000)

    for a, b in zip(early.grid._step_B1, late.grid._step_B1, strict=True):
        assert (a.log2() - b.log2()).abs().max() <= 1.0


def test_moments_that_a_former_run_has_made_are_corrected_by_their_whole_count():
    run = dataclasses.replace(RUN, optimizer=OptimizerConfig(beta2=0.99))
    begun, whole = Stage(run), Stage(run)
    begun.grid.before = 400
    for step in (0, 1, 2):
        begun.add(0, step=step)
        whole.add(0, step=400 + step)

        for a, b in zip(begun.grid._step_B1, whole.grid._step_B1, strict=True):
            assert torch.equal(a, b)


def test_the_grid_follows_the_state():
    stage = Stage()
    stage.add(0)
    before = stage.grid._step_B1[0].clone()
    stage.square_N *= 16.0
    stage.add(1)

    assert torch.equal(stage.grid._step_B1[0], before * 4.0)


def test_values_beyond_the_grid_are_clamped_counted_and_told(caplog):
    stage = Stage(square=1e-12)
    parts = [torch.zeros(t.shape) for t in stage.layout.tensors]
    parts[0][0, 0], parts[0][2, 299] = 1e9, -1e9
    stage.add(0, parts)

    first, last = stage.sum_N[0], stage.sum_N[899]
    assert (stage.grid.clamped, stage.grid.values) == (2, 900 + 7 + 512)
    assert first == stage.grid.units_max * stage.grid._step_B1[0][0]
    assert last == -stage.grid.units_max * stage.grid._step_B1[0][-1]
    stage.add(1, step=2)
    assert "values before step 2 were beyond the grid" in caplog.text
    assert stage.grid.clamped == 0


def test_the_largest_sums_are_exact():
    stage = Stage(square=1e-12)
    parts = [torch.full(t.shape, 1e9) for t in stage.layout.tensors]
    for microbatch in range(B):
        stage.add(microbatch, parts)

    units = stage.sum_N[:900] / stage.steps(0)

    assert (units == B * stage.grid.units_max).all()
    assert B * stage.grid.units_max <= 2**23


@pytest.mark.parametrize("other", [{"microbatch": 1}, {"step": 2}, {"seed": 5}, {"block": 2}])
def test_chance_is_of_seed_step_microbatch_and_block(other):
    of = {"seed": 1, "step": 1, "microbatch": 0, "block": 1}

    def summed(seed, step, microbatch, block):
        stage = Stage(dataclasses.replace(RUN, seed=seed), [("w", (4000,))])
        part = torch.full((4000,), 1e-4)
        leaf = Leaf(block, 0)
        square = float(part.square().sum())
        stage.grid.add([leaf], [part], [stage.sum_N[:4000]], [square], (step, microbatch), 1)
        return stage.sum_N

    assert torch.equal(summed(**of), summed(**of))
    assert not torch.equal(summed(**of), summed(**of | other))


def test_a_parameter_is_rounded_alike_in_whatever_stage():
    whole, part = Stage(), Stage(shapes=SHAPES[2:])
    part.square_N.copy_(whole.square_N[-512:])
    parts = whole.gradients(0)
    whole.add(0, parts)
    part.add(0, parts[2:])

    assert torch.equal(part.sum_N, whole.sum_N[-512:])


def test_chunks_of_any_size_round_alike(monkeypatch):
    whole = Stage()
    whole.add(0)
    monkeypatch.setattr(gradient_grid, "CHUNK_BLOCKS", 1)
    parts = Stage()
    parts.add(0)

    assert torch.equal(whole.sum_N, parts.sum_N)


@given(st.floats(2.0**-126, 2.0**126, width=32))
def test_a_power_below_a_root_is_the_next_one(x):
    power = power_below_root(torch.tensor([x], dtype=torch.float32)).item()

    assert 4.0**power <= x < 4.0 ** (power + 1)


@given(st.integers(1, 700), st.integers(0, 99))
def test_sums_by_halves_are_sums(length, seed):
    x_RC = torch.rand(2, length, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))

    assert torch.allclose(sum_by_halves(x_RC), x_RC.sum(1))
