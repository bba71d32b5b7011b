"""Which part of each parameter a device has, and which stages cannot be shared so."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from models.families import family_run
from torch import nn

from p2pswarm.base.errors import Unusable
from p2pswarm.models.registry import register
from p2pswarm.models.tensor_plan import Style, TensorShare, TensorSplit
from p2pswarm.server.devices.tensor_split import (
    local_shape,
    plan_of,
    require_shareable,
    shared_block,
    span_of,
    spans_of,
)
from p2pswarm.settings.config import BatchConfig, ModelConfig, RunConfig

RANKS = st.integers(1, 8)


@given(RANKS, st.integers(0, 200))
def test_parts_follow_each_other_and_are_as_equal_as_can_be(ranks, count):
    spans = [span_of(rank, ranks, count) for rank in range(ranks)]

    assert [place for start, stop in spans for place in range(start, stop)] == list(range(count))
    sizes = [stop - start for start, stop in spans]
    assert max(sizes) - min(sizes) <= 1


@given(RANKS, st.integers(1, 4), st.integers(1, 6), st.integers(1, 5), st.integers(0, 2))
def test_every_value_is_on_one_device_and_packed_matrices_are_cut_alike(
    ranks, parts, times, unit, dim
):
    each = times * ranks * unit  # so many units of `unit` features
    split, shape = TensorSplit(dim, parts, times * ranks), [2, 3, 4]
    shape[dim] = parts * each
    values = torch.arange(torch.Size(shape).numel()).view(shape)
    found = []
    for rank in range(ranks):
        spans = spans_of(split, shape[dim], rank, ranks)
        local = torch.cat([values.narrow(dim, a, b - a) for a, b in spans], dim)
        assert tuple(local.shape) == local_shape(split, shape, rank, ranks)
        assert {a % each for a, _ in spans} == {spans[0][0]}  # alike in each packed part
        assert all(a % unit == b % unit == 0 for a, b in spans)  # no head in two parts
        found += local.flatten().tolist()

    assert sorted(found) == values.flatten().tolist()


@given(RANKS, st.integers(1, 64))
def test_features_that_are_given_and_taken_are_the_same(ranks, features):
    gives, takes = TensorSplit(-2), TensorSplit(-1)

    for rank in range(ranks):
        assert spans_of(gives, features, rank, ranks) == spans_of(takes, features, rank, ranks)


class Mlp(nn.Module):
    def __init__(self, plan, dropout=0.0):
        super().__init__()
        self.up, self.down = nn.Linear(8, 12), nn.Linear(12, 8)
        self.table, self.norm = nn.Embedding(10, 8), nn.LayerNorm(8)
        self.both = nn.Parameter(torch.zeros(4, 24, 8))
        self.bare = nn.Parameter(torch.zeros(9))
        self.dropout = nn.Dropout(dropout)
        if plan is not None:
            self.tensor_plan = plan

    def reset_parameters(self):
        nn.init.zeros_(self.both)

    def forward(self, x):
        return self.down(self.up(x.float().unsqueeze(-1).expand(-1, -1, 8)).relu())


def test_a_linear_layer_that_gives_is_cut_with_its_bias_and_one_that_takes_without():
    plan = {"up": TensorShare(Style.COLWISE, 3), "down": TensorShare(Style.ROWWISE, 3)}

    shared = shared_block(Mlp(plan), plan)

    assert shared.splits == {
        "up.weight": TensorSplit(-2, 1, 3),
        "up.bias": TensorSplit(-1, 1, 3),
        "down.weight": TensorSplit(-1, 1, 3),
    }
    assert shared.styles == {"up": Style.COLWISE, "down": Style.ROWWISE}


def test_parameters_embeddings_and_norms_of_own_features_are_what_their_styles_say():
    plan = {
        "both": TensorShare(Style.PACKED_COLWISE),
        "bare": TensorShare(Style.COLWISE),
        "table": TensorShare(Style.EMBEDDING),
        "norm": TensorShare(Style.OWN_FEATURES),
        "down.weight": TensorShare(Style.ROWWISE),
        "down.bias": TensorShare(Style.OWN_FEATURES),
        "up.weight": TensorSplit(0),
    }

    shared = shared_block(Mlp(plan), plan)

    assert shared.splits == {
        "both": TensorSplit(-2, 2),
        "bare": TensorSplit(-1),
        "table.weight": TensorSplit(-2),
        "down.weight": TensorSplit(-1),
        "up.weight": TensorSplit(0),
    }
    assert shared.own_features == {"norm.weight", "norm.bias", "down.bias"}
    assert shared.styles == {"table": Style.EMBEDDING}


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        ({"away": TensorShare(Style.COLWISE)}, "Mlp has no 'away'"),
        ({"up": TensorSplit(0)}, "Mlp has no parameter 'up'"),
        ({"norm": TensorShare(Style.COLWISE)}, "norm is LayerNorm, and colwise is for nn.Linear"),
        ({"up": TensorShare(Style.EMBEDDING)}, "up is Linear, no nn.Embedding"),
        ({"both": TensorShare(Style.EXPERTS)}, "both is a parameter, and moe_tp_experts is not"),
    ],
)
def test_a_plan_that_does_not_fit_the_block_is_refused(plan, words):
    with pytest.raises(Unusable, match=words):
        shared_block(Mlp(plan), plan)


def run_of(name, plan, **more):
    register(name)(lambda model: [Mlp(plan, **more), Mlp(plan, **more)])
    model = ModelConfig(family=name, d_model=8, layers=2, heads=1, sequence_length=4)
    return RunConfig(stages=2, model=model, batch=BatchConfig(rows=2))


@pytest.mark.parametrize(
    ("name", "plan", "words"),
    [
        ("tp-none", None, r"block 0 \(Mlp\) has no tensor_plan.*set serve\.parallel to \"rows\""),
        (
            "tp-heads",
            {"up": TensorShare(Style.COLWISE, 3)},
            "up.weight has 3 heads, which 2 devices",
        ),
        ("tp-odd", {"up": TensorShare(Style.COLWISE, 5)}, r"\[12, 8\], which is not 1 x 5 along"),
        (
            "tp-parts",
            {"bare": TensorSplit(0, parts=2)},
            r"\[9\], which is not 2 x 0 along dimension 0",
        ),
        ("tp-dim", {"bare": TensorSplit(3)}, "bare has 0 features"),
    ],
)
def test_a_stage_that_two_devices_cannot_share_is_refused(name, plan, words):
    with pytest.raises(Unusable, match=words):
        require_shareable(run_of(name, plan), 0, 2)


def test_a_stage_that_fits_is_not_refused_and_one_with_dropout_is():
    require_shareable(run_of("tp-fits", {"up": TensorShare(Style.COLWISE)}), 1, 3)

    with pytest.raises(Unusable, match="dropout draws for whole tensors"):
        require_shareable(run_of("tp-dropping", {}, dropout=0.1), 0, 2)


def test_a_block_without_parameters_needs_no_plan():
    assert plan_of(nn.ReLU()) == {}
    assert plan_of(nn.Linear(2, 2)) is None


def test_our_transformer_is_shared_by_as_many_devices_as_divide_its_heads():
    model = ModelConfig(d_model=24, layers=2, heads=6, sequence_length=8)
    run = RunConfig(stages=2, model=model)

    for ranks in (2, 3, 6):
        require_shareable(run, 0, ranks)
    with pytest.raises(Unusable, match="qkv has 6 heads, which 4 devices cannot share"):
        require_shareable(run, 0, 4)
    require_shareable(replace(run, stages=4), 3, 4)  # the head, over the vocabulary


def test_one_head_of_keys_and_values_is_refused():
    run = family_run("llama", num_attention_heads=4, num_key_value_heads=1)

    with pytest.raises(Unusable, match=r"k_proj\.weight has 1 heads, which 2 devices"):
        require_shareable(run, 0, 2)
    require_shareable(run, 2, 2)  # the head
