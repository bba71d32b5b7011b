"""Muon: orthogonal updates whose bits depend neither on the order of sums nor on pieces."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from p2pswarm.compute.adamw import AdamW
from p2pswarm.compute.base import Update
from p2pswarm.compute.flat_parameters import FlatParameters
from p2pswarm.compute.muon import (
    FIFTH,
    FIRST,
    STEPS,
    THIRD,
    UNIT_BITS,
    Muon,
    orthogonal_units,
)
from p2pswarm.compute.torch_state import TorchState
from p2pswarm.config import ModelConfig, OptimizerConfig, RunConfig
from p2pswarm.tensors import flat_layout
from p2pswarm.tensors.flat_layout import row_blocks
from tests.compute.test_torch_state import CPU, PIECE, read, sums_of

UNIT = 2.0**UNIT_BITS
MUON = OptimizerConfig(name="muon", average_decay=0.9)
RUN = RunConfig(
    stages=1,
    model=ModelConfig(d_model=16, layers=2, heads=2, sequence_length=12),
    optimizer=MUON,
)

sizes = st.tuples(st.integers(1, 3), st.integers(1, 24), st.integers(1, 24))


def drawn(shape, seed, spread=0.0):
    chance = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=chance)
    return x * torch.exp(spread * torch.randn(shape[-1], generator=chance))


@given(sizes, st.integers(0, 99), st.sampled_from([0.0, 1.0]))
def test_the_order_of_sums_does_not_change_a_bit(shape, seed, spread):
    """Columns in another order are added up in another order, and so are rows."""
    x = drawn(shape, seed, spread)
    chance = torch.Generator().manual_seed(seed)
    rows, columns = (torch.randperm(n, generator=chance) for n in shape[1:])

    units = orthogonal_units(x)

    assert torch.equal(units[:, rows][:, :, columns], orthogonal_units(x[:, rows][:, :, columns]))
    assert torch.equal(units.mT, orthogonal_units(x.mT)) or shape[1] == shape[2]
    assert torch.equal(units[:1], orthogonal_units(x[:1]))


@given(st.integers(1, 6), st.integers(1, 6), st.integers(0, 99))
def test_it_is_what_whole_numbers_of_any_length_give(rows, columns, seed):
    """Python's integers round nothing: each product of matrices is exact in float64."""
    x = drawn((1, min(rows, columns), max(rows, columns)), seed)
    start = orthogonal_units_after(x, 0)
    whole = [[int(v) for v in row] for row in start[0].tolist()]

    for _ in range(STEPS):
        a = rounded(product(whole, transposed(whole)))
        square = rounded(product(a, a))
        b = [
            [round(s * FIFTH + v * THIRD) for s, v in zip(*pair, strict=True)]
            for pair in zip(square, a, strict=True)
        ]
        moved = rounded(product(b, whole))
        whole = [
            [m + round(v * FIRST) for m, v in zip(*pair, strict=True)]
            for pair in zip(moved, whole, strict=True)
        ]

    assert orthogonal_units(x)[0].tolist() == whole


def orthogonal_units_after(x, steps):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("p2pswarm.compute.muon.STEPS", steps)
        return orthogonal_units(x)


def product(x, y):
    columns = transposed(y)
    return [[sum(a * b for a, b in zip(r, c, strict=True)) for c in columns] for r in x]


def rounded(x):
    """To units, half to even, from units squared: `round` of a fraction would be of a float."""
    half = 1 << (UNIT_BITS - 1)
    found = []
    for row in x:
        parts = [divmod(v, 1 << UNIT_BITS) for v in row]
        found.append([n + (rest > half or (rest == half and n % 2)) for n, rest in parts])
    return found


def transposed(x):
    return [list(column) for column in zip(*x, strict=True)]


@pytest.mark.parametrize("size", [1e-30, 1.0, 1e30])
@pytest.mark.parametrize("shape", [(1, 1, 1), (2, 16, 16), (1, 24, 64), (1, 64, 24)])
def test_singular_values_become_about_one(shape, size):
    values = torch.linalg.svdvals(orthogonal_units(drawn(shape, 3) * size) / UNIT)

    assert values.max() < 1.21
    assert values.median() > 0.65


@given(sizes, st.integers(0, 99), st.sampled_from([0.0, 1.0, 4.0]))
def test_singular_values_never_reach_what_exact_sums_allow(shape, seed, spread):
    for steps in range(STEPS + 1):
        values = torch.linalg.svdvals(orthogonal_units_after(drawn(shape, seed, spread), steps))
        assert values.max() <= 1.21 * UNIT


def test_zeros_stay_zeros_beside_others():
    x = torch.stack((torch.zeros(4, 6), drawn((4, 6), 1)))

    units = orthogonal_units(x)

    assert not units[0].any()
    assert torch.equal(units[1:], orthogonal_units(x[1:]))


@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 60))
def test_row_blocks_are_whole_rows_nearly_equal_and_no_longer_than_a_piece(rows, columns, most):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(flat_layout, "ROW_BLOCK_VALUES", most)
        spans = row_blocks((rows, columns))

    if columns > most:
        assert spans == []
    else:
        counts = [(stop - start) // columns for start, stop in spans]
        assert [i for start, stop in spans for i in range(start, stop)] == [*range(rows * columns)]
        assert all((stop - start) % columns == 0 and stop - start <= most for start, stop in spans)
        assert max(counts) - min(counts) <= 1


def stage(run=RUN, numbers=range(4)):
    flat = FlatParameters(run, numbers, CPU)
    flat.draw()
    return flat, Muon(run.optimizer, flat)


def test_matrices_inside_move_by_the_rate_and_all_else_as_adamw_moves_it():
    flat, _ = stage()
    other = FlatParameters(RUN, range(4), CPU)
    other.draw()
    before, gradient = flat.params_N.clone(), sums_of(flat, 1).reduced_N
    still = replace(RUN.optimizer, weight_decay=0.0)

    Muon(still, flat).step(gradient, Update(1, 0.5, 1e-2))
    AdamW(still, other).step(gradient, Update(1, 0.5, 1e-2))

    matrices = 0
    for place, segment in zip(flat.layout.tensors, flat.segments, strict=True):
        one = slice(place.start, place.stop)
        if segment.inner and len(place.shape) == 2:
            moved = (flat.params_N - before)[one].square().mean().sqrt().item()
            assert 0.7 * 0.2e-2 < moved < 1.2 * 0.2e-2
            assert not flat.exp_avg_sq_N[one].any()
            matrices += 1
        else:
            assert torch.equal(flat.params_N[one], other.params_N[one])
    assert matrices


@pytest.mark.parametrize("block_values", [64, flat_layout.ROW_BLOCK_VALUES])
@pytest.mark.parametrize("scale", [0.5, 0.0])
def test_pieces_of_different_versions_become_the_state_that_a_commit_makes_of_the_whole(
    monkeypatch, scale, block_values
):
    """With small row blocks too: several in a matrix, and pieces that end between them."""
    monkeypatch.setattr(flat_layout, "ROW_BLOCK_VALUES", block_values)
    flat, optimizer = stage()
    other, following = stage()
    state, copy = TorchState(flat, optimizer, PIECE), TorchState(other, following, PIECE)
    updates = [Update(n, scale, 1e-2) for n in (1, 2, 3)]
    gradients = [sums_of(flat, n) for n in (1, 2, 3)]

    came = {}
    for version, (update, gradient) in enumerate(zip(updates, gradients, strict=True)):
        for piece in range(version, state.pieces, 3):
            came[piece] = version, read(state, piece)
        optimizer.step(gradient.reduced_N, update)
    for piece, (version, parts) in came.items():
        copy.write(piece, parts)
        for step in range(version, 3):
            copy.follow(piece, copy.gradient(gradients[step], piece), updates[step])

    assert state.pieces > 3
    assert all(torch.equal(a, b) for a, b in zip(flat.state(), other.state(), strict=True))


def test_another_cut_into_stages_trains_the_same_bits():
    whole, optimizer = stage()
    gradient = sums_of(whole, 1).reduced_N
    optimizer.step(gradient, Update(1, 0.5, 1e-2))
    places = {place.name: slice(place.start, place.stop) for place in whole.layout.tensors}

    for numbers in (range(1), range(1, 3), range(3, 4), range(2, 4)):
        part, alone = stage(numbers=numbers)
        own = torch.zeros(part.length)
        for place in part.layout.tensors:
            own[place.start : place.stop] = gradient[places[place.name]]
        alone.step(own, Update(1, 0.5, 1e-2))
        for place in part.layout.tensors:
            trained = part.params_N[place.start : place.stop]
            assert torch.equal(trained, whole.params_N[places[place.name]])


def test_a_gradient_of_another_length_is_refused():
    flat, optimizer = stage()

    with pytest.raises(ValueError, match="a gradient of"):
        optimizer.step(torch.zeros(flat.length + 1), Update(1, 1.0, 1e-2))
