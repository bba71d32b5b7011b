"""Sketches: linear, the same on every machine, and as long as what they are of."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from p2pswarm.models.compute.sketch import SKETCH_NUMBERS, Sketcher


def vector(seed: int, count: int = 4096) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, generator=generator, dtype=torch.float64)


def length(numbers: tuple[float, ...]) -> float:
    return math.hypot(*numbers)


def test_the_signs_are_those_of_the_seed_on_every_machine():
    ones = {"x": torch.ones(40)}

    assert Sketcher(b"a").of(ones) == Sketcher(b"a").of(ones)
    assert Sketcher(b"a").of(ones) != Sketcher(b"b").of(ones)
    assert Sketcher(b"a").of(ones)[:8] == (1, -1, -3, -1, 1, -1, 1, -1)


@given(st.integers(0, 2**32), st.integers(1, 200), st.integers(1, 200))
def test_the_sketch_of_a_sum_is_the_sum_of_the_sketches(seed: int, count: int, more: int):
    one, other = vector(seed, count), vector(seed + 1, count)
    sketcher = Sketcher(b"seed")
    sketcher.of({"x": vector(0, more)})  # signs that were drawn before change nothing

    both = sketcher.of({"x": one + other})

    parts = zip(sketcher.of({"x": one}), sketcher.of({"x": other}), strict=True)
    assert both == pytest.approx([a + b for a, b in parts], abs=1e-9)


def test_whole_numbers_beside_an_activation_hide_no_difference_of_it():
    """Places in a long row are thousands, and a sketch's length is what differences count by."""
    places = torch.arange(4096, dtype=torch.int32)
    honest, doubled = vector(1), 2 * vector(1)
    one, other = (Sketcher(b"s").of({"x": x, "place": places}) for x in (honest, doubled))

    apart = length(tuple(a - b for a, b in zip(one, other, strict=True)))
    wrong = places.clone()
    wrong[7] = 10**6
    third = Sketcher(b"s").of({"x": honest, "place": wrong})

    assert apart > 0.5 * length(one)
    assert length(tuple(a - b for a, b in zip(one, third, strict=True))) > 0.5 * length(one)
    assert length(Sketcher(b"s").of({"place": places})) > 0


def test_a_sketch_is_about_as_long_as_its_tensor():
    sketcher = Sketcher(b"seed")
    ratios = [length(sketcher.of({"x": v})) / v.norm().item() for v in map(vector, range(50))]

    assert 0.9 < sum(ratios) / len(ratios) < 1.1
    assert min(ratios) > 0.4
    assert max(ratios) < 1.8


def test_one_wrong_element_shows_in_full():
    right = vector(1)
    wrong = right.clone()
    wrong[77] += 3.0
    sketcher = Sketcher(b"seed")

    pairs = zip(sketcher.of({"x": right}), sketcher.of({"x": wrong}), strict=True)

    assert length(tuple(a - b for a, b in pairs)) == pytest.approx(3.0)


@pytest.mark.parametrize("key", ["x", "marks", "y"])
def test_every_tensor_of_a_bundle_counts(key: str):
    """Whole numbers by the share of their own length that differs, of the length of the others."""
    bundle = {"x": vector(3, 33).view(3, 11), "marks": torch.arange(20), "y": vector(4, 67)}
    other = {**bundle, key: bundle[key] + 1}
    sketcher = Sketcher(b"seed")

    pairs = zip(sketcher.of(bundle), sketcher.of(other), strict=True)

    apart = length(tuple(a - b for a, b in pairs))
    if key == "marks":
        floats = math.hypot(bundle["x"].norm().item(), bundle["y"].norm().item())
        apart *= torch.arange(20.0).norm().item() / floats
    assert 0.3 < apart / math.sqrt(bundle[key].numel()) < 1.8


def test_nothing_and_what_is_not_finite_have_no_sketch():
    sketcher = Sketcher(b"seed")

    assert sketcher.of({}) == ()
    assert sketcher.of({"x": torch.zeros(0)}) == ()
    assert sketcher.of({"x": torch.tensor([1.0, math.nan])}) == ()


def test_a_sketch_has_as_many_numbers_as_its_message_takes():
    assert len(Sketcher(b"").of({"x": vector(1)})) == SKETCH_NUMBERS == 16
