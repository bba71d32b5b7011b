"""The list of blocks: first weights, the cut into stages, what a block may see."""

import dataclasses

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from p2pswarm.models.blocks import block_costs, block_count, stage_blocks
from p2pswarm.models.compute.flat_parameters import FlatParameters
from p2pswarm.models.compute.reference import ReferenceTrainer
from p2pswarm.settings.config import ModelConfig, RunConfig

CPU = torch.device("cpu")
MODEL = ModelConfig(d_model=16, layers=3, heads=2, sequence_length=12)


def config(**changes):
    return dataclasses.replace(RunConfig(model=MODEL), **changes)


def drawn(run, numbers):
    flat = FlatParameters(run, numbers, CPU)
    flat.draw()
    return flat


def test_a_stage_makes_the_same_first_weights_as_the_whole_model():
    whole = drawn(config(), range(5))
    part = drawn(config(), range(2, 4))

    there = [p for block in whole.blocks[2:4] for p in block.parameters()]
    assert all(torch.equal(a, b) for a, b in zip(part.parameters, there, strict=True))


def test_another_seed_or_block_has_other_first_weights():
    one, two = drawn(config(), range(1, 3)).blocks
    other = drawn(config(seed=2), range(1, 2)).blocks[0]

    assert not torch.equal(one.qkv, two.qkv)
    assert not torch.equal(one.qkv, other.qkv)


def test_the_cut_weighs_layers_and_head():
    run = config(stages=2, model=ModelConfig(d_model=512, layers=6, heads=8))

    assert [stage_blocks(run, s) for s in range(2)] == [range(4), range(4, 8)]


@given(st.integers(1, 12), st.integers(1, 14), st.sampled_from((16, 128, 1024)))
def test_every_cut_covers_all_blocks_in_order_and_no_other_is_cheaper(layers, stages, width):
    model = ModelConfig(d_model=width, layers=layers, heads=2)
    stages = min(stages, block_count(model))
    run = config(stages=stages, model=model)
    cut = [stage_blocks(run, s) for s in range(stages)]

    assert [n for part in cut for n in part] == list(range(block_count(model)))
    assert all(len(part) for part in cut)
    costs = block_costs(model)
    assert max(sum(costs[n] for n in part) for part in cut) == cheapest(costs, stages)


def cheapest(costs, stages):
    """The least possible cost of the costliest part: greedy filling under each candidate limit."""
    sums = {sum(costs[a:b]) for a in range(len(costs)) for b in range(a + 1, len(costs) + 1)}
    for limit in sorted(s for s in sums if s >= max(costs)):
        parts, left = 1, limit
        for cost in costs:
            if cost > left:
                parts, left = parts + 1, limit
            left -= cost
        if parts <= stages:
            return limit
    raise AssertionError


def test_a_stage_that_is_not_there_is_our_own_mistake():
    with pytest.raises(ValueError, match="stage 2 of 2"):
        stage_blocks(config(stages=2), 2)


def test_no_position_sees_a_later_token():
    loop = ReferenceTrainer(config())
    tokens = torch.randint(0, 256, (1, 13), generator=torch.Generator().manual_seed(1))
    changed = tokens.clone()
    changed[0, 8] = (changed[0, 8] + 1) % 256

    def scores(tokens):
        x = tokens[:, :-1]
        for block in loop.flat.blocks:
            x = block(x)
        return x

    assert torch.equal(scores(tokens)[:, :8], scores(changed)[:, :8])
    assert not torch.equal(scores(tokens)[:, 8:], scores(changed)[:, 8:])


def test_a_position_is_known_by_its_distance_alone():
    loop = ReferenceTrainer(config())
    layer = loop.flat.blocks[1]
    x = torch.randn(1, 12, 16, generator=torch.Generator().manual_seed(1))
    alone = layer(x[:, 4:])
    cos, sin = layer._angles(x, 12, 8)
    layer._rotary = (cos[4:], sin[4:])

    assert torch.allclose(layer(x[:, 4:]), alone, atol=1e-6)


def test_a_short_training_lowers_the_loss():
    run = config(model=ModelConfig(d_model=16, layers=1, heads=2, sequence_length=12))
    loop = ReferenceTrainer(run)
    tokens = torch.arange(13).repeat(4, 1)
    first = loop.evaluate(tokens)
    for _ in range(20):
        loop.add(tokens, 0)
        loop.commit(1e-2)

    assert loop.evaluate(tokens) < first / 2
