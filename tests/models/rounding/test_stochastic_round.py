"""Rounding by chance: to a neighbour, without a drift, by the same chances everywhere."""
# ruff: noqa: N803, N806  shapes are written at the end of names

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from p2pswarm.models.rounding.stochastic_round import (
    CHANCES,
    LARGE,
    ChanceRounding,
    chances,
    key_of,
    rounded,
)
from p2pswarm.tensors.flat_layout import flat_layout

CPU = torch.device("cpu")
BITS = st.integers(0, (1 << 32) - 1)
LARGEST = torch.finfo(torch.bfloat16).max
MASK = (1 << 64) - 1


def floats(bits) -> torch.Tensor:
    return torch.tensor([x - (x >> 31 << 32) for x in bits], dtype=torch.int32).view(torch.float32)


def bits_of(x: torch.Tensor) -> list[int]:
    return [bits & 0xFFFF for bits in x.view(torch.int16).tolist()]


def each(chance: int, count: int) -> torch.Tensor:
    return torch.full((count,), chance, dtype=torch.int16)


def split_mix(seed: int, count: int) -> list[int]:
    """The words of SplitMix64, as the paper writes it."""
    words = []
    for _ in range(count):
        seed = seed + 0x9E3779B97F4A7C15 & MASK
        z = seed
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & MASK
        z = (z ^ z >> 27) * 0x94D049BB133111EB & MASK
        words.append(z ^ z >> 31)
    return words


@pytest.mark.parametrize("key", [0, 1234567, -(1 << 63), (1 << 63) - 1])
def test_the_words_are_those_of_splitmix64(key):
    words = split_mix(key & MASK, 5)
    expected = [word >> 16 * k & 0xFFFF for word in words for k in range(4)]

    assert [x & 0xFFFF for x in chances(key, (0, 20), CPU).tolist()] == expected


def test_a_public_vector_of_splitmix64():
    """Of seed 1234567, as in many implementations' tests."""
    assert split_mix(1234567, 2) == [6457827717110365317, 3203168211198807973]


@given(st.integers(0, 50), st.integers(0, 50), st.integers(-(1 << 63), (1 << 63) - 1))
def test_a_span_has_the_chances_that_its_elements_have_in_the_whole(start, count, key):
    whole = chances(key, (0, 100), CPU)

    assert torch.equal(chances(key, (start, start + count), CPU), whole[start : start + count])


def test_every_name_step_and_seed_has_chances_of_its_own():
    keys = [
        key_of(seed, step, name)
        for seed, step, name in itertools.product((1, 2), (1, 2), ("blocks.1.a", "blocks.2.a"))
    ]

    assert len(set(keys)) == len(keys)


def test_chances_are_spread_evenly_and_their_bits_are_independent():
    count = 1 << 18
    x = (chances(key_of(1, 1, "blocks.1.qkv"), (0, count), CPU).to(torch.int64) & 0xFFFF).double()
    top = x.long() >> 8
    sure = 6.0  # standard deviations

    assert abs(x.mean().item() - (CHANCES - 1) / 2) < sure * CHANCES / math.sqrt(12 * count)
    counts = torch.bincount(top, minlength=256).double()
    squares = ((counts - count / 256).square() / (count / 256)).sum().item()
    assert abs(squares - 255) < sure * math.sqrt(2 * 255)
    neighbours = torch.corrcoef(torch.stack((x[:-1], x[1:])))[0, 1].item()
    assert abs(neighbours) < sure / math.sqrt(count)


@given(st.lists(BITS, min_size=1), st.integers(-(1 << 15), (1 << 15) - 1))
def test_each_result_is_one_of_the_two_neighbours(bits, chance):
    x = floats(bits)
    found = rounded(x.clone(), each(chance, len(x)))

    for value, low, result in zip(x.tolist(), bits, bits_of(found), strict=True):
        below, sign = low >> 16, low >> 31 << 15
        if math.isnan(value):
            assert result == 0x7FC0
        elif math.isinf(value) or not low & 0xFFFF:
            assert result == below
        elif below & 0x7FFF == 0x7F7F:
            assert result == below  # the largest of its sign
        else:
            assert result in (below, below + 1)
            assert result & 0x8000 == sign


def test_a_value_goes_up_as_often_as_the_lower_neighbour_is_far():
    """Of all 65,536 chances: exactly."""
    low = 0x1234
    every = torch.arange(-(1 << 15), 1 << 15).to(torch.int16)
    for sign in (0, 1 << 31):
        x = floats([sign | 0x3F80 << 16 | low] * CHANCES)

        found = bits_of(rounded(x, every))

        assert found.count((sign >> 16) + 0x3F81) == low
        assert found.count((sign >> 16) + 0x3F80) == CHANCES - low


@pytest.mark.parametrize("chance", [-(1 << 15), 0, (1 << 15) - 1])
def test_what_a_bfloat16_has_stays(chance):
    kept = torch.tensor(
        [0.0, -0.0, 1.0, -0.5, LARGEST, -LARGEST, torch.inf, -torch.inf, 1e-40],
    ).to(torch.bfloat16)

    found = rounded(kept.float(), each(chance, len(kept)))

    assert bits_of(found) == bits_of(kept)


@pytest.mark.parametrize("chance", [-(1 << 15), 0, (1 << 15) - 1])
@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("value", [torch.finfo(torch.float32).max, 3.395e38, 3.39e38, LARGEST])
def test_beyond_the_largest_it_stays_the_largest_and_never_becomes_infinite(value, sign, chance):
    x = sign * torch.tensor([value, 1.0])

    found = rounded(x, each(chance, 2)).float()

    assert (sign * found)[0] == LARGEST
    assert found.isfinite().all()


def test_a_nan_is_one_nan_whatever_it_was():
    bits = [0x7FC00000, 0xFFC00000, 0x7F800001, 0xFFFFFFFF, 0x7FFFFFFF]

    found = rounded(floats([*bits, 0x3F800000]), each(-1, 6))

    assert bits_of(found) == [0x7FC0] * 5 + [0x3F80]


@pytest.mark.parametrize("last", [1.0, LARGE, -LARGE, torch.inf, torch.nan])
def test_the_short_way_of_a_cpu_gives_the_bits_of_the_long_one(last):
    """A value that is large takes the long way, and all that come with it."""
    x = torch.randn(4096, generator=torch.Generator().manual_seed(1))
    chance = chances(7, (0, 4097), CPU)

    found = rounded(torch.cat((x, torch.tensor([last]))), chance)

    assert bits_of(found)[:-1] == bits_of(rounded(x, chance[:-1]))


SHAPES = [("blocks.0.a", (7, 5)), ("blocks.0.empty", (0, 3)), ("blocks.0.b", (3,))]
MORE = [("blocks.1.a", (41,)), ("blocks.1.b", (16,))]
BF16 = ("bfloat16", "float32", "float32")


def stored(shapes, value_N, step=3, seed=1, edges=()) -> torch.Tensor:
    layout = flat_layout(BF16, shapes)
    place_N = torch.zeros(layout.length, dtype=torch.bfloat16)
    rounding = ChanceRounding(seed, layout.tensors, place_N)
    cut = sorted({0, *edges, layout.length})
    for start, stop in itertools.pairwise(cut):
        rounding.store(value_N[start:stop].clone(), start, step)
    return place_N


def values(shapes) -> torch.Tensor:
    """Of each parameter by its name, zero between them."""
    layout = flat_layout(BF16, shapes)
    value_N = torch.zeros(layout.length)
    for t in layout.tensors:
        generator = torch.Generator().manual_seed(sum(t.name.encode()))
        value_N[t.start : t.stop] = torch.randn(t.stop - t.start, generator=generator)
    return value_N


@given(st.sets(st.integers(0, 127)))
def test_chunks_of_any_size_round_alike(edges):
    shapes = SHAPES + MORE
    length = flat_layout(BF16, shapes).length
    value_N = values(shapes)

    assert torch.equal(
        stored(shapes, value_N, edges={e for e in edges if e < length}), stored(shapes, value_N)
    )


def test_a_cut_into_stages_rounds_alike():
    whole_N = stored(SHAPES + MORE, values(SHAPES + MORE))

    parts = [stored(shapes, values(shapes)) for shapes in (SHAPES, MORE)]

    assert torch.equal(torch.cat(parts), whole_N)


def test_what_lies_between_parameters_stays_zero():
    found_N = stored(SHAPES, values(SHAPES))

    assert not found_N[35:48].view(torch.int16).any()
    assert not found_N[51:].view(torch.int16).any()
    assert found_N[:35].all()


@pytest.mark.parametrize("other", [{"step": 4}, {"seed": 2}])
def test_another_step_or_seed_rounds_otherwise(other):
    value_N = values(SHAPES + MORE)

    assert not torch.equal(stored(SHAPES + MORE, value_N, **other), stored(SHAPES + MORE, value_N))


def test_the_mean_of_many_roundings_is_the_value():
    """Of 2,000 steps, each value within five standard deviations, and all of them together."""
    shapes, steps = [("blocks.0.a", (1001,))], 2000
    layout = flat_layout(BF16, shapes)
    value_N = torch.zeros(layout.length)
    value_N[:1001] = torch.linspace(-3.0, 3.0, 1001)
    total_N = torch.zeros(layout.length, dtype=torch.float64)
    for step in range(steps):
        total_N += stored(shapes, value_N, step)
    below_N = floats([bits & 0xFFFF0000 for bits in value_N.view(torch.int32).tolist()])
    up_N = floats([(bits & 0xFFFF0000) + 0x10000 for bits in value_N.view(torch.int32).tolist()])
    gap_N = (up_N - below_N).double().abs()
    up_share_N = (value_N.double() - below_N.double()).abs() / gap_N
    spread_N = gap_N * (up_share_N * (1 - up_share_N) / steps).sqrt()

    off_N = total_N / steps - value_N.double()

    assert (off_N.abs() <= 5 * spread_N + 1e-12).all()
    assert abs(off_N.sum()) < 5 * spread_N.square().sum().sqrt()
    assert off_N.abs().sum() > 0
