"""A rank's part of a stage: every family that is shared by tensors, and a group of one."""

from dataclasses import replace

import pytest
import torch
from core import core_of
from models.families import family_run, tied_run
from server.devices.harness import CPU, apart, by_ranks, engine_alone, group_alone, rank_results
from server.devices.planned_models import Choosy, Table
from torch.distributed.fsdp import FSDPModule

from p2pswarm.base.errors import Unusable
from p2pswarm.models.blocks import stage_blocks
from p2pswarm.models.compute.flat_parameters import layout_of
from p2pswarm.models.registry import register
from p2pswarm.server.devices.rank_stage import RankOptions, RankStage
from p2pswarm.settings.config import BatchConfig, ModelConfig, RunConfig
from p2pswarm.settings.node_config import CONTEXT, ROWS, TENSOR

UNUSED = {"summary_first_dropout": 0.0, "classifier_dropout": 0.0}
"""Of classes that a causal language model has not."""
BIASED = {"attention_bias": True, "mlp_bias": True}
NOT_QUITE = {"gemma3_text": 2e-8}
"""A family whose norms on heads sum in float32."""
BY_TOKENS = {"gemma2": 2e-8, "cohere2": 2e-8}
"""Their norms' gradients are sums over tokens in float32."""
SHARED = (
    *("llama", "mistral", "qwen2", "qwen3", "qwen3 with sliding layers", "olmo2", "phi3"),
    *("smollm3", "gemma", "gemma2", "gemma3_text", "cohere", "cohere2", "glm4", "granite"),
    *("starcoder2", "gpt_neox", "mixtral", "qwen3_moe", "olmoe", "deepseek_v3"),
)


def family(name, *, ranks, **also):
    groups = {"num_key_value_heads": (2 if name == "deepseek_v3" else 1) * ranks}
    heads = {"hidden_size": 16 * ranks, "num_attention_heads": 2 * ranks}
    run = family_run(name, **heads | groups | UNUSED | also)
    return replace(run, batch=BatchConfig(rows=1, microbatches=2))


def gpt(stages=3, dtype="float64", **more):
    model = ModelConfig(
        d_model=24, layers=2, heads=6, vocabulary=259, dtype=dtype, **{"sequence_length": 12} | more
    )
    return RunConfig(stages=stages, model=model, batch=BatchConfig(microbatches=2, rows=3))


def every_stage_is_what_one_device_computes(
    rank, ranks, runs, parallel=TENSOR, by_blocks=(False, True)
):
    for name, run in runs.items():
        near = NOT_QUITE | (BY_TOKENS if parallel == CONTEXT else {})
        asked = 1e-6 if run.model.dtype == "float32" else near.get(name, 2e-14)
        asked = 2e-2 if run.precision == "bf16" else asked
        for stage in range(run.stages):
            for by_block in by_blocks:
                options = RankOptions(by_block, parallel)
                found = apart(*rank_results(run, stage, (rank, ranks), options))
                assert found <= asked, f"{name}, stage {stage}: {found}"


@pytest.mark.parametrize(
    "names",
    [
        pytest.param(("phi3", "mixtral"), id="core"),
        pytest.param(SHARED, id="all", marks=pytest.mark.full),
    ],
)
def test_two_devices_compute_what_one_does_in_every_family_that_they_share_by_tensors(
    fork_server, names
):
    runs = {name: family(name, ranks=2) for name in names}
    runs["llama with biases"] = family("llama", ranks=2, **BIASED)
    for stages in (1, 3):
        heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
        runs[f"tied, {stages} stages"] = replace(tied_run("gemma", **heads), stages=stages)
    runs["a token that is not trained"] = family("gemma", ranks=2, pad_token_id=20)
    for name in names if names == SHARED else names[:1]:
        model = replace(runs[name].model, dtype="float32")
        runs[f"{name} in float32"] = replace(runs[name], model=model)

    by_ranks(fork_server, 2, every_stage_is_what_one_device_computes, runs)


@pytest.mark.parametrize("ranks", core_of([2, 3], [2]))
def test_devices_that_share_our_transformer_compute_what_one_does(fork_server, ranks):
    runs = {
        "float64": gpt(),
        "float32": gpt(dtype="float32"),
        "in one stage": gpt(stages=1),
        "tied in one stage": gpt(stages=1, tie=True),
        "documents apart": gpt(documents="apart", document_end=7),
        "in bf16": replace(gpt(dtype="float32"), precision="bf16"),
        "projector": gpt(boundary="projector"),
        "subspace": gpt(boundary="subspace", boundary_width=8),
    }
    if ranks > 2:  # of 259 tokens and 24 features they have unequal parts
        names = ("llama", "qwen3", "phi3", "gpt_neox", "mixtral", "olmoe")
        runs |= {name: family(name, ranks=ranks) for name in names}
    by_ranks(fork_server, ranks, every_stage_is_what_one_device_computes, runs)


def rows_that_choose_their_layer(rank, ranks):
    register("choosy")(lambda model: [Table(model), Choosy(model.vocabulary)])
    model = ModelConfig(family="choosy", d_model=8, layers=2, heads=1, sequence_length=4)
    model = replace(model, dtype="float64")
    run = RunConfig(stages=2, model=model, batch=BatchConfig(rows=2, microbatches=1))
    _, shared = engine_alone(run, 1)
    assert len(set((shared["given.x"][:, 0, 2] > 0).tolist())) == 2
    assert apart(*rank_results(run, 1, (rank, ranks), RankOptions())) <= 2e-14


def test_a_layer_that_only_another_devices_rows_use_is_added_up_all_the_same(fork_server):
    by_ranks(fork_server, 2, rows_that_choose_their_layer)


def test_a_torch_that_could_not_is_refused(monkeypatch):
    monkeypatch.delattr(FSDPModule, "set_reduce_scatter_unused_params")
    with pytest.raises(Unusable, match=r"adds up wrongly .* install a newer one"):
        RankStage(gpt(), 1, (0, 1), CPU, {}, RankOptions())


@pytest.mark.parametrize("rank", [0, 1])
def test_each_of_two_devices_has_half_of_the_matrices_and_never_a_whole_one(rank):
    for run in (gpt(), family("llama", ranks=2)):
        for stage in range(run.stages):
            tensors = layout_of(run, stage_blocks(run, stage)).tensors
            values = {t.name: t.stop - t.start for t in tensors}
            vectors = sum(values[t.name] for t in tensors if len(t.shape) == 1)
            part = RankStage(run, stage, (rank, 2), CPU, {}, RankOptions(parallel=TENSOR))

            uneven = run.model.d_model  # 259 tokens have no equal halves
            expected = (sum(values.values()) - vectors) / 2 + vectors
            assert abs(part.weight_bytes / 8 - expected) <= uneven
            largest = max(p.numel() for p in part._model.parameters())
            assert largest <= max(values.values()) / 2 + uneven


def test_a_group_of_one_computes_what_it_does_alone(tmp_path):
    names = ("olmo2", "qwen3", "mixtral", "starcoder2")
    runs = {name: family(name, ranks=1) for name in names} | {"gpt": gpt()}
    runs["padding"] = family("gemma", ranks=1, pad_token_id=20)
    runs["in bf16"] = replace(gpt(dtype="float32"), precision="bf16")
    with group_alone(tmp_path):
        every_stage_is_what_one_device_computes(0, 1, runs)
        for parallel in (ROWS, CONTEXT):
            every_stage_is_what_one_device_computes(0, 1, {"gpt": gpt()}, parallel)


@pytest.mark.parametrize("parallel", [ROWS, TENSOR, CONTEXT])
def test_a_rank_makes_graphs_again_and_what_it_forgets_is_gone(tmp_path, parallel):
    with group_alone(tmp_path):
        _, shared = engine_alone(gpt(), 1)
        part = RankStage(gpt(), 1, (0, 1), CPU, shared, RankOptions(parallel=parallel))
        part.take_weights()
        found = []
        for keep, freed in ((True, False), (True, True), (False, False)):
            part.empty_sums()
            assert (part.forward((0, 0), keep=keep) > 0) == keep
            if freed:
                part.forget_graphs([(0, 0)])
            squares = part.backward((0, 0))
            part.settle(add=True)
            part.give_sums()
            found.append((squares, shared["sum"].clone(), shared["returned.x"].clone()))
        for squares, total, returned in found:
            assert squares == found[0][0]
            assert torch.equal(total, found[0][1])
            assert torch.equal(returned, found[0][2])

        made = shared["made.x"].clone()
        assert part.once() == []
        assert torch.equal(shared["made.x"], made)
        part.forward((1, 0), keep=True)
        part.backward((1, 0))
        part.settle(add=False)
        part.forward((2, 0), keep=True)
        part.forget([(2, 0), (7, 7)])
        part.give_sums()
        assert torch.equal(shared["sum"], found[-1][1])
        with pytest.raises(KeyError):
            part.backward((2, 0))


@pytest.mark.parametrize("parallel", [ROWS, TENSOR, CONTEXT])
def test_a_rank_tells_a_loss_without_a_gradient(tmp_path, parallel):
    with group_alone(tmp_path):
        alone, shared = engine_alone(gpt(), 2)
        part = RankStage(gpt(), 2, (0, 1), CPU, shared, RankOptions(parallel=parallel))
        part.take_weights()

        expected = alone.stage.evaluate(shared["tokens"], {"x": shared["given.x"]})
        assert (
            part.last(differentiate=False)
            == part.once()
            == [pytest.approx(expected * gpt().tokens_per_microbatch)]
        )
