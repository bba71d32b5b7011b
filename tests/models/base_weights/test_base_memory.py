"""A base is the same bytes in every cut, under every digest, and in no gradient."""

import dataclasses

import pytest
import torch
from core import core_of
from models.families import family_run

from p2pswarm.models.base_weights.base_layout import base_roots
from p2pswarm.models.compute.flat_parameters import FlatParameters
from p2pswarm.models.compute.torch_weights import first_state, torch_engine
from p2pswarm.models.model_source import resolved
from p2pswarm.settings.adapter_config import AdapterConfig
from p2pswarm.settings.config import ModelConfig, RunConfig
from p2pswarm.tensors.state_tree import root_of

CPU = torch.device("cpu")
GPT = RunConfig(model=ModelConfig(d_model=64, heads=2, layers=2, sequence_length=8))
BASES = ("full", "bf16", "int8", "nf4")


def adapted(run: RunConfig, base: str = "full") -> RunConfig:
    return resolved(dataclasses.replace(run, base=base, adapter=AdapterConfig(rank=2)))


@pytest.fixture(params=core_of(["gpt", "llama", "gpt2", "mixtral"], ["gpt", "mixtral"]))
def run(request) -> RunConfig:
    return GPT if request.param == "gpt" else family_run(request.param)


@pytest.mark.parametrize("base", BASES)
def test_a_blocks_root_is_that_of_any_cut_and_the_trainers(run: RunConfig, base: str) -> None:
    run = adapted(run, base)
    whole = FlatParameters(run, range(4), CPU).base_roots
    parts = [FlatParameters(run, numbers, CPU).base_roots for numbers in (range(1), range(1, 4))]
    assert (*parts[0], *parts[1]) == whole
    assert tuple(base_roots(run, range(4))) == whole
    assert len(set(whole)) == 4


@pytest.mark.parametrize("base", BASES)
def test_a_trainer_knows_the_first_digest_of_a_stage(base: str) -> None:
    run = adapted(GPT, base)
    for stage in range(run.stages):
        engine = torch_engine(run, stage, CPU, 1 << 30)
        engine.weights.reset(draw=True)
        *_, digest = first_state(run, stage)
        assert root_of(engine.weights.hashes()) == digest


def test_another_base_is_another_digest() -> None:
    runs = [adapted(GPT, base) for base in BASES]
    flats = [FlatParameters(run, range(4), CPU) for run in runs]
    for flat in flats:
        flat.draw()
    assert len({flat.digest() for flat in flats}) == len(BASES)
    first = flats[0]
    before = first.digest()
    first.base.buffers[2][5] ^= 1
    assert first.digest() == before  # it is hashed once
    first.base.use()
    assert first.digest() != before


def test_quantised_matrices_have_few_bits_and_all_else_bfloat16() -> None:
    run = adapted(family_run("llama", hidden_size=64, intermediate_size=256), "nf4")
    base = FlatParameters(run, range(1, 2), CPU).base
    weights = 4 * 64 * 64 - 2 * 64 * (64 - 8) + 3 * 64 * 256  # two heads, one for keys
    assert base.size_bytes < weights * 4.5 / 8 * 1.05 + 2 * 64 * 2 + 12 * 64


@pytest.mark.parametrize("base", BASES)
def test_a_model_computes_with_the_numbers_of_its_base(base: str) -> None:
    """Whatever keeps it: as the plain model does with the dense weights."""
    kinds = {"full": 0.0, "bf16": 0.01, "int8": 0.02, "nf4": 0.15}
    run = adapted(family_run("llama", hidden_size=64, intermediate_size=128), base)
    plain = FlatParameters(adapted(run, "full"), range(4), CPU)
    flat = FlatParameters(run, range(4), CPU)
    x = torch.arange(8).view(1, 8) % run.model.vocabulary
    with torch.no_grad():
        values = []
        for blocks in (plain.blocks, flat.blocks):
            y = x
            for block in blocks:
                y = block(y)
            values.append(y)
    apart = (values[0] - values[1]).norm() / values[0].norm()
    assert apart <= 3 * kinds[base]
    assert (base == "full") == (apart == 0)


def test_no_gradient_is_taken_of_what_is_frozen() -> None:
    flat = FlatParameters(adapted(GPT), range(4), CPU)
    names = {
        name for block in flat.blocks for name, p in block.named_parameters() if p.requires_grad
    }
    assert names
    assert all("lora" in name for name in names)
    assert len(flat.parameters) == len(flat.sums) == 2 * 4 * 2
