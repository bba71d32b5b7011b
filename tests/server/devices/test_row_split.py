"""Which rows of a microbatch each rank computes, and which models are refused."""
# ruff: noqa: N803  shapes are written at the end of names

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from p2pswarm.base.errors import Unusable
from p2pswarm.models.base import Block
from p2pswarm.models.model_source import resolved
from p2pswarm.models.registry import register
from p2pswarm.server.devices.row_split import require_splittable, rows_of, split_keys
from p2pswarm.settings.adapter_config import AdapterConfig
from p2pswarm.settings.config import BatchConfig, ModelConfig, RunConfig


@given(st.integers(1, 16), st.integers(1, 64))
def test_every_row_counts_once_and_every_rank_has_one(ranks, rows):
    parts = [rows_of(rank, ranks, rows) for rank in range(ranks)]

    counted = [row for part in parts if part.counted for row in range(part.start, part.stop)]
    assert counted == list(range(rows))
    assert all(part.stop > part.start for part in parts)
    sizes = [part.counted for part in parts]
    assert max(sizes) - min(sizes) <= 1


class Embed(Block):
    def __init__(self, model, beside):
        super().__init__()
        self.table = nn.Parameter(torch.zeros(model.vocabulary, model.d_model))
        self.scale = nn.Parameter(torch.zeros(model.d_model))
        self.beside = beside

    def draw(self, generator):
        for each in self.parameters():
            each.data.normal_(generator=generator)

    def forward(self, tokens_BT):
        return {"x": self.table[tokens_BT], **self.beside(self, tokens_BT)}


class Scores(Block):
    def __init__(self, model, scale_shape):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(8, 256))
        self.scale = nn.Parameter(torch.zeros(scale_shape))

    def draw(self, generator):
        for each in self.parameters():
            each.data.normal_(generator=generator)

    def forward(self, bundle):
        x = bundle["x"] if isinstance(bundle, dict) else bundle
        return x @ self.weight * self.scale


def run_of(name, beside=lambda block, tokens: {}, scale_shape=(256,), rows=2):
    register(name)(lambda model: [Embed(model, beside), Scores(model, scale_shape)])
    model = ModelConfig(family=name, d_model=8, layers=2, heads=1, sequence_length=4)
    return RunConfig(stages=2, model=model, batch=BatchConfig(rows=rows))


def positions(block, tokens_BT):
    return {"positions": torch.arange(tokens_BT.shape[1], device=tokens_BT.device)}


def scales(block, tokens_BT):
    return {"scale": block.scale}


@pytest.mark.parametrize("rows", [1, 2, 4])
def test_tensors_with_a_row_for_each_are_split_and_others_are_not(rows):
    run = run_of("beside-positions", positions, rows=rows)

    require_splittable(run, 0)
    assert split_keys(run, 0) == {"x"}
    assert split_keys(run, 1) == split_keys(run, -1) == frozenset()


def test_a_trained_tensor_of_no_row_is_refused():
    with pytest.raises(Unusable, match="'scale' is trained and belongs to no row"):
        require_splittable(run_of("beside-scale", scales), 1)


def test_a_parameter_that_is_one_number_is_refused():
    run = run_of("one-number", scale_shape=())

    require_splittable(run, 0)
    with pytest.raises(Unusable, match="one number has no rows"):
        require_splittable(run, 1)


def test_a_number_that_is_frozen_has_no_rows_and_needs_none():
    run = replace(run_of("one-frozen-number", scale_shape=()), frozen=("blocks.1.scale",))
    require_splittable(run, 1)


def test_dropout_is_refused():
    register("dropping")(
        lambda model: [
            Embed(model, lambda block, tokens: {}),
            nn.Sequential(nn.Dropout(0.1), nn.Linear(8, 256)),
        ]
    )
    model = ModelConfig(family="dropping", d_model=8, layers=2, heads=1, sequence_length=4)
    with pytest.raises(Unusable, match="dropout draws for a whole microbatch"):
        require_splittable(RunConfig(stages=2, model=model), 1)


def test_a_tied_model_in_one_stage_is_refused_and_in_two_it_is_not():
    model = ModelConfig(d_model=16, layers=1, heads=2, sequence_length=8, tie=True)
    run = RunConfig(stages=1, model=model, batch=BatchConfig(microbatches=1))

    with pytest.raises(Unusable, match=r"used by two blocks.*set run\.stages to 2"):
        require_splittable(run, 0)
    require_splittable(replace(run, stages=2), 1)
    require_splittable(resolved(replace(run, adapter=AdapterConfig())), 0)  # frozen, it is two
