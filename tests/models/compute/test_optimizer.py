"""Muon: orthogonal updates, whose bits depend neither on pieces nor on the cut into stages."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from p2pswarm.models.compute.base import Update
from p2pswarm.models.compute.flat_parameters import FlatParameters
from p2pswarm.models.compute.optimizer import AdamW, Muon, square_root
from p2pswarm.models.compute.torch_weights import TorchState
from p2pswarm.settings.config import ModelConfig, OptimizerConfig, RunConfig
from p2pswarm.tensors import flat_layout
from p2pswarm.tensors.flat_layout import row_blocks
from tests.models.compute.test_torch_state import CPU, PIECE, read, sums_of

MUON = OptimizerConfig(name="muon", average_decay=0.9)
RUN = RunConfig(
    stages=1,
    model=ModelConfig(d_model=16, layers=2, heads=2, sequence_length=12),
    optimizer=MUON,
)


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


@given(st.lists(st.floats(0.0, allow_infinity=False), min_size=1, max_size=40))
def test_a_square_root_of_float64_is_the_nearest_number(values):
    """`math.sqrt` is the processor's own instruction, which IEEE 754 binds."""
    out = torch.empty(len(values), dtype=torch.float64)

    square_root(torch.tensor(values, dtype=torch.float64), out)

    assert out.tolist() == [math.sqrt(value) for value in values]


def test_square_roots_of_float32_are_the_nearest_numbers():
    """Of those that float64 gives, rounded once more: no root is near the middle of two floats."""
    values = torch.rand(1 << 18, generator=torch.Generator().manual_seed(1)) ** 8
    out = torch.empty_like(values)

    square_root(values, out)

    assert torch.equal(out.double(), torch.tensor(list(map(math.sqrt, values))).float().double())


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
    state, copy = TorchState(flat, [optimizer], PIECE), TorchState(other, [following], PIECE)
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
    assert all(torch.equal(a, b) for a, b in zip(flat.state, other.state, strict=True))


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
