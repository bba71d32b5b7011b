"""Orthonormal directions: of the same space, finite, and with bits that sums in any order have."""

# ruff: noqa: N806  shapes are written at the end of names

import hashlib
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from p2pswarm.models.compute.orthonormal import (
    WEAKEST,
    directions,
    drawn_directions,
    orthonormal,
)

shapes = st.tuples(st.integers(1, 3), st.integers(1, 8), st.integers(20, 60))


def drawn(shape, seed, dtype=torch.float64):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def unit(rank):
    return torch.eye(rank, dtype=torch.float64)


@given(shapes, st.integers(0, 1000))
def test_directions_are_orthonormal_and_span_what_they_spanned(shape, seed):
    x_BRC = drawn(shape, seed)

    found_BRC = orthonormal(x_BRC)

    assert (found_BRC @ found_BRC.mT - unit(shape[1])).abs().max() <= 1e-14
    again_BRC = x_BRC @ found_BRC.mT @ found_BRC
    assert (again_BRC - x_BRC).abs().max() <= 1e-12 * x_BRC.abs().max()


@given(shapes, st.integers(0, 1000))
def test_they_are_those_of_lapack_but_for_signs(shape, seed):
    x_BRC = drawn(shape, seed)

    theirs_BRC = torch.linalg.qr(x_BRC.mT)[0].mT

    turned = (orthonormal(x_BRC) * theirs_BRC).sum(2, keepdim=True).sign()
    assert (orthonormal(x_BRC) - turned * theirs_BRC).abs().max() <= 1e-9


@pytest.mark.parametrize("spread", [1.0, 6.0, 9.0])
def test_directions_that_nearly_agree_come_out_orthonormal(spread):
    x_RC = drawn((8, 200), 1)
    x_RC[1:] *= math.exp(-spread)
    x_RC[1:] += x_RC[0]

    found_RC = orthonormal(x_RC[None])[0]

    assert (found_RC @ found_RC.mT - unit(8)).abs().max() <= 1e-14


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_zero_gradient_has_no_direction(dtype):
    found = orthonormal(torch.zeros(2, 4, 9, dtype=dtype))

    assert torch.equal(found, torch.zeros(2, 4, 9, dtype=dtype))
    assert torch.equal(directions(torch.zeros(2, 4, 9, dtype=dtype)), found)


def test_what_lies_in_the_space_of_earlier_directions_is_zeros():
    """Its last bits alone would say where it points."""
    x_RC = drawn((4, 50), 1)
    x_RC[2] = x_RC[0] - 3 * x_RC[1]
    x_RC[3] *= WEAKEST / 100

    found_RC = orthonormal(x_RC[None])[0]

    assert found_RC[2:].abs().max() == 0.0
    assert (found_RC[:2] @ found_RC[:2].mT - unit(2)).abs().max() <= 1e-15


@pytest.mark.parametrize("scale", [1e300, 1e-300, 5e-324 * 2**40])
def test_neither_large_nor_small_numbers_change_directions(scale):
    x_BRC = drawn((1, 3, 20), 2)

    found = orthonormal(x_BRC * scale)

    assert (found - orthonormal(x_BRC)).abs().max() <= 1e-9


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_makes_its_matrix_nan_and_no_other(value):
    x_BRC = drawn((2, 3, 20), 2)
    x_BRC[0, 1, 5] = value

    for found in (orthonormal(x_BRC), directions(x_BRC, lambda: x_BRC)):
        assert found[0].isnan().all()
        assert found[1].isfinite().all()


@given(st.integers(0, 1000))
def test_last_bits_of_a_sum_stay_last_bits(seed):
    x_BRC = drawn((1, 6, 40), seed)
    other_BRC = x_BRC * (1 + 2.0**-52 * drawn((1, 6, 40), seed + 1).sign())

    assert (orthonormal(x_BRC) - orthonormal(other_BRC)).abs().max() <= 1e-11


def test_a_weak_direction_begins_anew():
    x_BRC = drawn((1, 3, 20), 2)
    x_BRC[0, 1] = 0.0
    others_BRC = directions(drawn((1, 3, 20), 3))

    found_RC = directions(x_BRC, lambda: others_BRC)[0]

    assert torch.equal(found_RC[1], others_BRC[0, 1])
    assert (found_RC.norm(dim=1) - 1).abs().max() <= 1e-15
    assert torch.equal(found_RC[0] * x_BRC[0, 0].norm() / x_BRC[0, 0] > 0, torch.ones(20) > 0)


def test_first_directions_depend_on_seed_and_name_alone():
    one = drawn_directions(1, "blocks.1.qkv", (4, 96), torch.float64)

    assert (one.norm(dim=1) - 1).abs().max() <= 1e-15
    assert torch.equal(one, drawn_directions(1, "blocks.1.qkv", (4, 96), torch.float64))
    for seed, name in ((2, "blocks.1.qkv"), (1, "blocks.2.qkv")):
        assert not torch.equal(one, drawn_directions(seed, name, (4, 96), torch.float64))


def test_the_bits_are_these_on_every_processor():
    """Another digest is another arithmetic: it needs another RUN_VERSION."""
    x_BRC = torch.stack([drawn_directions(1, name, (8, 300), torch.float32) for name in "ab"])

    digest = hashlib.sha256(orthonormal(x_BRC).numpy().tobytes()).hexdigest()

    assert digest == "24498bc6ce0041b79a1754f67a8cde0de419c7c40a63862855b70b23b26dd3ac"
