"""Devices that share the tokens of a row compute what one does."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from models.families import run_of_kind
from server.devices.harness import ALL, CPU, by_ranks, engine_alone, group_alone
from server.devices.test_rank_stage import (
    every_stage_is_what_one_device_computes,
    family,
    gpt,
)

from p2pswarm.base.errors import Unusable
from p2pswarm.models.attention.document_attention import AttentionRule
from p2pswarm.models.losses.cross_entropy import NO_LABEL
from p2pswarm.server.devices.microbatch_part import (
    TokenPart,
    require_tokens_apart,
)
from p2pswarm.server.devices.plan_check import require_right_plan
from p2pswarm.server.devices.rank_stage import RankOptions, RankStage
from p2pswarm.server.devices.token_exchange import DeviceTokens, layout_of_device
from p2pswarm.server.devices.token_plan import TokenCosts, token_plan
from p2pswarm.settings.config import BatchConfig
from p2pswarm.settings.node_config import CONTEXT

COSTS = TokenCosts(pair=0.01, received=0.1)
APART = {"documents": "apart", "document_end": 7}


def one_row(run):
    return replace(run, batch=BatchConfig(rows=1, microbatches=2))


def each_is_what_one_device_computes(rank, ranks, runs):
    every_stage_is_what_one_device_computes(rank, ranks, runs, CONTEXT)


LONG = one_row(gpt(stages=1))
SPLIT = one_row(gpt(stages=2, sequence_length=40, **APART))  # documents of 5, 34 and 1 tokens
OF_TWO = {
    "one long document": LONG,
    "one that is split": SPLIT,
    "one token for two devices": one_row(gpt(stages=1, sequence_length=1)),
}
MORE_OF_TWO = {
    "three rows": gpt(),
    "whole documents": gpt(**APART),
    "float32": gpt(dtype="float32"),
    "projector": gpt(boundary="projector"),
    "subspace": gpt(boundary="subspace", boundary_width=8, **APART),
}
OF_TWO["in bf16"] = replace(LONG, model=replace(LONG.model, dtype="float32"), precision="bf16")


@pytest.mark.parametrize(
    ("ranks", "runs"),
    [
        pytest.param(2, OF_TWO, id="2"),
        pytest.param(4, {"one that is split": replace(SPLIT, stages=1)}, id="4"),
        pytest.param(2, MORE_OF_TWO, id="2, more", marks=pytest.mark.full),
        pytest.param(4, OF_TWO, id="4, more", marks=pytest.mark.full),
    ],
)
def test_devices_that_share_tokens_compute_what_one_does(fork_server, ranks, runs):
    by_ranks(fork_server, ranks, each_is_what_one_device_computes, runs)


@pytest.mark.parametrize(
    "names",
    [
        pytest.param(("gemma2",), id="core"),
        pytest.param(
            ("llama", "gpt_oss", "qwen3", "gpt2", "mixtral", "cohere2"),
            id="more",
            marks=pytest.mark.full,
        ),
    ],
)
def test_families_that_ask_the_interface_are_shared_by_tokens_and_one_that_convolves_is_not(
    fork_server, names
):
    runs = {name: family(name, ranks=1) for name in names}
    apart = {
        name: replace(run, stages=1, model=replace(run.model, **APART))
        for name, run in runs.items()
    }

    by_ranks(fork_server, 2, families_are_right_and_started, apart)


def families_are_right_and_started(rank, ranks, runs):
    each_is_what_one_device_computes(rank, ranks, runs)
    for run in runs.values():
        require_right_plan(run, (rank, ranks), CPU, CONTEXT)
    convolves = run_of_kind("lfm2", layer_types=["conv", "full_attention"], conv_L_cache=3)
    with pytest.raises(Unusable, match="lfm2 carries more along a row than attention knows: the "):
        require_right_plan(convolves, (rank, ranks), CPU, CONTEXT)


def test_a_device_without_a_token_computes_one_that_counts_nothing():
    run, tokens = one_row(gpt(sequence_length=3)), torch.tensor([[1, 2, 3, 4]])
    group = DeviceTokens()
    part = TokenPart(run, 1, (7, 8), group)
    part.begin(tokens)

    assert not part.counts
    assert group.layout.whole == (1,)
    assert group.layout.exchanges
    assert part.labels(tokens).tolist() == [[NO_LABEL]]
    whole = torch.zeros(1, 3, 5)
    part.put(whole, torch.ones(1, 1, 5))
    assert not whole.any()


def test_each_microbatch_keeps_to_its_own_documents(tmp_path):
    """Two are under way, and their graphs are made again in the backward."""
    run = gpt(**APART)
    with group_alone(tmp_path):
        alone, shared = engine_alone(run, 1)
        part = RankStage(run, 1, (0, 1), CPU, shared, RankOptions(parallel=CONTEXT))
        part.take_weights()
        first = shared["tokens"].clone()
        second = first.where(first != APART["document_end"], 8)
        second[:, 3] = APART["document_end"]
        gradient = {"x": shared["gradient.x"]}
        for key, tokens in (((0, 0), first), ((1, 0), second)):
            shared["tokens"].copy_(tokens)
            given = {"x": shared["given.x"].clone()}
            part.forward(key, keep=False)
            made = alone.stage.forward(key, tokens, given)
            assert torch.allclose(shared["made.x"], made["x"], atol=1e-13)
        for key in ((0, 0), (1, 0)):
            part.backward(key)
            part.settle(add=True)
            returned = alone.stage.backward(key, gradient, ALL)
            assert torch.allclose(shared["returned.x"], returned["x"], atol=1e-13)
        part.give_sums()

    assert torch.allclose(shared["sum"], alone.weights._flat.sum_N, atol=1e-12)


LENGTHS = st.lists(st.integers(1, 90), min_size=1, max_size=9)


@given(LENGTHS, st.sampled_from([2, 3, 4, 8]))
def test_every_token_is_somewhere_and_sees_its_document_up_to_itself(lengths, devices):
    plan = token_plan(tuple(lengths), devices, COSTS)
    layouts = [layout_of_device(plan, lengths, rank) for rank in range(devices)]
    tokens = torch.cat([each.index_n for each in layouts])
    begins = torch.tensor([0, *lengths]).cumsum(0)

    assert sorted(tokens.tolist()) == list(range(sum(lengths)))
    for rank, each in enumerate(layouts):
        assert each.receives == tuple(len(giver.sends[rank]) for giver in layouts)
        own = each.index_n[sum(each.whole) :]
        received = [giver.index_n[sum(giver.whole) :][giver.sends[rank]] for giver in layouts]
        pool = torch.cat([own, *received])
        for keys in each.pieces:
            begin = int(begins[keys.piece.document])
            assert pool[keys.place_k].tolist() == list(range(begin, begin + keys.piece.stop))


def test_what_is_not_computed_by_tokens_is_refused():
    group = DeviceTokens()
    group.layout = layout_of_device(token_plan((4,), 1, COSTS), (4,), 0)
    q = torch.ones(1, 1, 4, 2)
    attend = partial(group.attend, q, q, q, torch.arange(4).view(1, 4))

    with pytest.raises(Unusable, match=r"a mask of its own, of which .* serve.parallel to .rows"):
        attend(AttentionRule(mask_BHTT=torch.ones(1, 1, 4, 4)))
    with pytest.raises(Unusable, match="dropout is drawn for a whole row"):
        attend(AttentionRule(dropout=0.1))
    with pytest.raises(Unusable, match=r"hf:falcon makes its attention by itself, which knows no"):
        require_tokens_apart(run_of_kind("falcon", head_dim=None, num_kv_heads=1), 1)
    with pytest.raises(Unusable, match="hf:mamba takes no positions, by which a device knows"):
        require_tokens_apart(run_of_kind("mamba", state_size=8), 1)
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10_000.0}
    with pytest.raises(Unusable, match=r"hf:llama has rotary positions \(dynamic\) that depend on"):
        require_tokens_apart(run_of_kind("llama", rope_parameters=rope), 1)
    with pytest.raises(Unusable, match="a tied tensor is used by two blocks of one stage"):
        require_tokens_apart(gpt(stages=1, tie=True), 0)
    run = family("mixtral", ranks=1)
    balanced = replace(run, model=replace(run.model, router_loss=True))
    with pytest.raises(Unusable, match="router_loss is for one device"):
        require_tokens_apart(balanced, 1)
