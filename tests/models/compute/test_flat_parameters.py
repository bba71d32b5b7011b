"""Tests of `models/compute/flat_parameters.py`."""

import hashlib

import pytest
import torch

from p2pswarm.models.compute.base import Update
from p2pswarm.models.compute.flat_parameters import (
    FlatParameters,
    digest_of,
    piece_hashes,
    squared_norm,
)
from p2pswarm.models.compute.optimizer import AdamW
from p2pswarm.settings.config import BatchConfig, ModelConfig, OptimizerConfig, RunConfig
from p2pswarm.tensors.codecs.base import bytes_of
from p2pswarm.tensors.flat_layout import ALIGN
from p2pswarm.tensors.state_tree import piece_spans, root_of

PIECE_VALUES = 128


def digest(*tensors):
    return digest_of(tensors, spans_of(tensors))


def spans_of(tensors):
    return piece_spans(len(tensors[0]), PIECE_VALUES)


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("length", [0, 1, 127, 128, 129, 1000])
def test_it_is_the_hash_of_the_hashes_of_the_pieces(length, count):
    tensors = [torch.randn(length, dtype=torch.float64) for _ in range(count)]
    whole = [bytes(bytes_of(x)) for x in tensors]

    size = 8 * PIECE_VALUES
    pieces = [
        b"".join(data[i : i + size] for data in whole) for i in range(0, max(1, 8 * length), size)
    ]

    hashes = b"".join(hashlib.sha256(piece).digest() for piece in pieces)
    assert digest(*tensors) == hashlib.sha256(hashes).digest()


@pytest.mark.parametrize("tensor", [0, 1, 2])
@pytest.mark.parametrize("place", [0, 255, 256, 999])
def test_any_bit_changes_it(place, tensor):
    tensors = [torch.randn(1000) for _ in range(3)]
    before = digest(*tensors)

    tensors[tensor].view(torch.int32)[place] ^= 1

    assert digest(*tensors) != before


def test_a_changed_bit_changes_the_hash_of_its_own_piece_only():
    tensors = [torch.randn(1000) for _ in range(3)]
    before = piece_hashes(tensors, spans_of(tensors))

    tensors[2].view(torch.int32)[300] ^= 1

    after = piece_hashes(tensors, spans_of(tensors))
    assert [k for k in range(8) if before[k] != after[k]] == [2]
    assert root_of(after) == digest(*tensors)


def test_it_does_not_matter_where_the_bytes_lie():
    whole = torch.randn(2000)

    part = whole[500:1500]
    assert digest(part) == digest(part.clone())


def test_the_places_of_pieces_and_of_tensors_count():
    zeros, ones = torch.zeros(256), torch.ones(256)
    numbers = torch.cat((zeros, ones))

    assert digest(numbers) != digest(numbers.flip(0))
    assert digest(zeros, ones) != digest(ones, zeros)


CPU = torch.device("cpu")


def made(dtype="float64", **optimizer):
    model = ModelConfig(d_model=16, layers=1, heads=2, sequence_length=8, dtype=dtype)
    batch = BatchConfig(microbatches=1)
    run = RunConfig(model=model, optimizer=OptimizerConfig(**optimizer), batch=batch)
    flat = FlatParameters(run, range(3), CPU)
    flat.draw()
    return run, flat


def noise(flat, seed):
    generator = torch.Generator().manual_seed(seed)
    gradient = torch.randn(flat.length, dtype=flat.params_N.dtype, generator=generator)
    return gradient * flat_mask(flat)


def flat_mask(flat):
    """Zero between the parameters, as every gradient is."""
    mask = torch.zeros(flat.length, dtype=torch.bool)
    for segment in flat.segments:
        mask[segment.start : segment.stop] = True
    return mask


def test_the_blocks_parameters_are_views_of_one_buffer():
    _, flat = made()
    flat.params_N.fill_(7.0)

    assert all(bool((p == 7.0).all()) for block in flat.blocks for p in block.parameters())
    assert all(s.start % ALIGN == 0 for s in flat.segments)


def test_drawing_starts_everything_over():
    run, flat = made()
    first = flat.digest()
    AdamW(run.optimizer, flat).step(noise(flat, 1), Update(1, 1.0, 1e-2))
    flat.sum_N.fill_(1.0)
    flat.draw()

    assert flat.digest() == first
    assert not any(x.any() for x in (flat.exp_avg_N, flat.exp_avg_sq_N, flat.sum_N))


def test_memory_is_seen_without_a_copy():
    _, flat = made()
    view = bytes_of(flat.params_N)
    flat.params_N[0] = 123.0

    assert view.cast("B").cast("d")[0] == 123.0


@pytest.mark.parametrize("chunk", [1 << 15, 64])
def test_the_optimizer_is_adamw(chunk):
    run, flat = made(weight_decay=0.3, beta2=0.99, epsilon=1e-7)
    ours = AdamW(run.optimizer, flat, chunk)
    weights = [p.detach().clone().requires_grad_() for p in flat.parameters]
    groups = [
        {"params": [w for w in weights if w.dim() > 1], "weight_decay": 0.3},
        {"params": [w for w in weights if w.dim() == 1], "weight_decay": 0.0},
    ]
    theirs = torch.optim.AdamW(groups, lr=1.0, betas=(0.9, 0.99), eps=1e-7)
    for step in range(1, 21):
        gradient = noise(flat, step)
        for weight, s in zip(weights, flat.segments, strict=True):
            weight.grad = gradient[s.start : s.stop].view_as(weight) * 0.5
        for group in theirs.param_groups:
            group["lr"] = 1e-2 / step
        theirs.step()
        ours.step(gradient, Update(step, 0.5, 1e-2 / step))

    for mine, weight in zip(flat.parameters, weights, strict=True):
        assert torch.allclose(mine, weight, rtol=1e-12, atol=1e-12)


def test_an_update_of_scale_zero_changes_nothing():
    run, flat = made()
    before = flat.digest()
    AdamW(run.optimizer, flat).step(noise(flat, 1), Update(1, 0.0, 1e-2))

    assert flat.digest() == before
    assert not flat.exp_avg_N.any()


def test_a_gradient_of_another_size_is_our_own_mistake():
    run, flat = made()
    with pytest.raises(ValueError, match="a gradient of 3"):
        AdamW(run.optimizer, flat).step(torch.zeros(3), Update(1, 1.0, 1e-2))


def test_the_norm_is_summed_in_float64():
    x = torch.full(((1 << 20) + 5,), 1e-3)

    assert squared_norm(x) == pytest.approx(((1 << 20) + 5) * 1e-6, rel=1e-6)


@pytest.mark.parametrize(
    ("rule", "outer_matrix", "inner_matrix", "vector"),
    [
        ("matrices", True, True, False),
        ("inner-matrices", False, True, False),
        ("all", True, True, True),
    ],
)
def test_the_settings_say_what_decays(rule, outer_matrix, inner_matrix, vector):
    run = RunConfig(
        model=ModelConfig(d_model=16, layers=2, heads=2, sequence_length=8),
        optimizer=OptimizerConfig(decays=rule),
    )
    flat = FlatParameters(run, range(4), CPU)

    kinds = {
        (number in (1, 2), parameter.dim() > 1)
        for number, block in enumerate(flat.blocks)
        for parameter in block.parameters()
    }
    assert kinds == {(False, True), (False, False), (True, True), (True, False)}
    found = iter(flat.segments)
    for number, block in enumerate(flat.blocks):
        for parameter in block.parameters():
            matrix = inner_matrix if number in (1, 2) else outer_matrix
            assert next(found).decays is (matrix if parameter.dim() > 1 else vector)
