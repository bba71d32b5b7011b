"""Compiled loops of sums on a grid: every bit is that of torch's functions."""
# ruff: noqa: N806

import math
from types import SimpleNamespace

import pytest
import torch
from core import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from p2pswarm.base.errors import BadMessage
from p2pswarm.models.rounding import gradient_grid
from p2pswarm.models.rounding.gradient_grid import GradientGrid, Leaf, grid_of, kernels_for
from p2pswarm.settings.config import BatchConfig, CodecConfig, OptimizerConfig, RunConfig
from p2pswarm.tensors.codecs import int_grid, self_test
from p2pswarm.tensors.codecs.base import DTYPES
from p2pswarm.tensors.codecs.int_grid import BLOCK, CHUNK_BLOCKS, IntGrid
from p2pswarm.tensors.codecs.meta import TensorLayout
from p2pswarm.tensors.codecs.tensor_pool import TensorPool
from p2pswarm.tensors.flat_layout import flat_layout

grid_kernels = pytest.importorskip("p2pswarm.kernels.grid_kernels")

POOL = TensorPool()
RUN = RunConfig(
    batch=BatchConfig(microbatches=8, samples="whole"),
    codecs=CodecConfig(averaging="int-grid"),
    optimizer=OptimizerConfig(beta2=0.0),
)


def both():
    """The codec by torch's functions, and by compiled loops."""
    plain, fast = IntGrid(), IntGrid()
    fast.kernels = grid_kernels
    return plain, fast


def decoded(codec, x, data):
    layout = TensorLayout(DTYPES[x.dtype], tuple(x.shape))
    place = codec.decoder(layout, len(data), POOL)
    place.buffer[:] = data
    return place.finish()


def expect_equal(x):
    plain, fast = both()
    data = bytes(plain.encode(x, POOL))
    assert bytes(fast.encode(x, POOL)) == data
    for codec in (plain, fast):
        assert torch.equal(decoded(codec, x, data).view(torch.uint8), x.view(torch.uint8))
    return data[0]


def on_a_grid(length, spread, seed, powers):
    rng = torch.Generator().manual_seed(seed)
    whole = (torch.randn(length, generator=rng) * spread).round()
    of_block = torch.tensor(powers)[torch.arange(length) // BLOCK % len(powers)]
    return (whole.double() * 2.0 ** of_block.double()).to(torch.float32) + 0.0


@settings(max_examples=examples(60))
@given(
    st.integers(0, 3 * BLOCK + 1),
    st.sampled_from([0.0, 0.5, 20.0, 3e3, 2e5, 2e6, 3e8]),
    st.integers(0, 2**32),
    st.lists(st.integers(-149, 100), min_size=1, max_size=4),
)
def test_whole_multiples_have_the_same_bytes_and_arrive(n, spread, seed, powers):
    expect_equal(on_a_grid(n, spread, seed, powers))


@settings(max_examples=examples(60))
@given(st.integers(0, 700), st.integers(0, 2**32), st.booleans())
def test_any_bits_have_the_same_bytes_and_arrive(n, seed, finite):
    rng = torch.Generator().manual_seed(seed)
    x = torch.randint(0, 256, (4 * n,), generator=rng, dtype=torch.uint8).view(torch.float32)

    expect_equal(x.nan_to_num(1.0, 2.0, 3.0) if finite else x)


@pytest.mark.parametrize(
    "value", [-0.0, math.nan, math.inf, 1e-45, 2.0**-126, 2.0**127, 3.4e38, -3.4e38, math.pi]
)
def test_a_value_of_another_kind_has_the_same_bytes_and_arrives(value):
    x = on_a_grid(700, 20.0, 1, (-14,))
    x[300] = value

    expect_equal(x)
    expect_equal(torch.where(torch.arange(512) == 300, value, 0.0))


def test_chunks_and_planes_join_without_a_seam():
    x = on_a_grid(2 * CHUNK_BLOCKS * BLOCK + 300, 20.0, 2, (-14, -20, -3))
    x[-1] = 0.5  # 2**13 of its steps

    assert expect_equal(x) > 1
    assert expect_equal(x.double()) > 1


@settings(max_examples=examples(40))
@given(st.integers(1, 4), st.integers(1, 600), st.integers(0, 2**32), st.integers(0, 255))
def test_any_planes_of_a_peer_become_the_same_values_or_the_same_error(planes, n, seed, power):
    rng = torch.Generator().manual_seed(seed)
    found = []
    for kernels in (None, grid_kernels):
        whole, x = int_grid._WholeNumbers(n, POOL, planes), torch.zeros(n)
        rng.manual_seed(seed)
        for column in (whole._power_B, *whole._planes_N):
            column.random_(0, 256, generator=rng)
        whole._power_B.clamp_(max=power)
        try:
            whole.restore(x, kernels)
            found.append(x.view(torch.int32).tolist())
        except BadMessage as error:
            found.append(str(error))

    assert found[0] == found[1]


# Gradients


def sums(kernels, shapes, seed, size, square):
    layout = flat_layout(("float32",) * 3, shapes)
    rng = torch.Generator().manual_seed(seed)
    square_N = torch.rand(layout.length, generator=rng) * square
    grid, sum_N = GradientGrid(RUN, layout, square_N, kernels), torch.zeros_like(square_N)
    every = RUN.tokens_per_microbatch
    for step, microbatch, targets in ((1, 0, every), (1, 5, every // 9), (2, 7, 1), (2, 8, 0)):
        parts = [torch.randn(t.shape, generator=rng) * size for t in layout.tensors]
        totals = [sum_N[t.start : t.stop].view(t.shape) for t in layout.tensors]
        squares = [x.double().square().sum().item() for x in parts]
        leaves = [Leaf(number, number) for number in range(len(parts))]
        grid.add(leaves, parts, totals, squares, (step, microbatch), targets)
        square_N.mul_(0.5)
    return sum_N.view(torch.int32).tolist(), grid.clamped, grid.values


@settings(max_examples=examples(40))
@given(
    st.lists(st.sampled_from([(1,), (7,), (256, 2), (3, 300), (70, 1000)]), min_size=1, max_size=3),
    st.integers(0, 2**32),
    st.sampled_from([0.0, 1e-38, 1e-6, 1e-3, 1.0, 1e8]),
    st.sampled_from([0.0, 1e-30, 1e-6, 1.0]),
)
def test_sums_of_gradients_have_the_same_bits_and_clamp_the_same(shapes, seed, size, square):
    shapes = [(f"blocks.1.{place}", shape) for place, shape in enumerate(shapes)]

    assert sums(grid_kernels, shapes, seed, size, square) == sums(None, shapes, seed, size, square)


def test_only_float32_of_a_cpu_has_kernels_and_only_where_it_is_asked_for():
    assert kernels_for(torch.zeros(3)) is grid_kernels
    assert kernels_for(torch.zeros(3, dtype=torch.float64)) is None
    assert kernels_for(torch.zeros(3, device="meta")) is None
    layout = flat_layout(("float32",) * 3, [("blocks.0.a", (3,))])
    assert grid_of(RUN, range(1), layout, torch.zeros(layout.length))._kernels is None


def test_loops_that_round_to_other_bits_are_not_used(monkeypatch, caplog):
    def other(*given):
        clamped = grid_kernels.add_rounded(*given)
        given[-1][0] += given[4][0]
        return clamped

    monkeypatch.setattr(
        gradient_grid.loader, "kernels", lambda name: SimpleNamespace(add_rounded=other)
    )

    assert gradient_grid._tried_kernels.__wrapped__() is None
    assert "torch rounds them, slower" in caplog.text


def test_the_codec_is_tried_out_too(caplog):
    names = ("read_multiples", "take_bytes", "restore_multiples", "NO_MULTIPLES")
    same = {name: getattr(grid_kernels, name) for name in names}

    def other(*given):
        grid_kernels.restore_multiples(*given)
        given[-1][-1] += 1

    assert self_test.kernels_agree(IntGrid(), SimpleNamespace(**same))
    broken = SimpleNamespace(**same | {"restore_multiples": other})
    assert not self_test.kernels_agree(IntGrid(), broken)
    assert "torch runs int-grid, slower" in caplog.text


def test_numbers_are_those_of_the_files_that_define_them():
    for name in ("BLOCK", "WORK_BITS", "SHIFT_MIN", "SHIFT_MAX", "POWER_MAX", "POWER_BIAS"):
        assert getattr(grid_kernels, name) == getattr(int_grid, name)
    for name in ("FRACTION_BITS", "EXPONENT_BIAS"):
        assert getattr(grid_kernels, name) == getattr(int_grid, name)
    assert gradient_grid.BLOCK == grid_kernels.BLOCK
    assert gradient_grid.PERIOD == grid_kernels.PERIOD
