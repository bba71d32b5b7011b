"""Runs that freeze weights, on several devices: what trains is as on one."""

import itertools
from dataclasses import replace

import pytest
import torch
from server import harness
from server.devices.harness import ALL, CPU, by_ranks, engine_alone, group_alone
from server.devices.test_group_stage import (
    BY_TOKENS,
    SHARED,
    TWO,
    close,
    overlapped,
    steps_of,
    tokens,
)
from server.devices.test_rank_stage import (
    every_stage_is_what_one_device_computes,
    family,
    gpt,
)
from server.harness import peer, swarm, virtual
from server.test_frozen_training import GPT, assert_as_in_a_plain_loop, with_adapters

from p2pswarm.base.errors import Unusable
from p2pswarm.models.blocks import bare_blocks, stage_blocks
from p2pswarm.models.check.model_check import fill_factors
from p2pswarm.models.compute.torch_weights import torch_engine
from p2pswarm.models.model_source import resolved
from p2pswarm.server.devices.group_stage import group_engine
from p2pswarm.server.devices.plan_check import require_right_plan
from p2pswarm.server.devices.rank_base import RankBase
from p2pswarm.server.devices.rank_stage import RankOptions, RankStage
from p2pswarm.settings.adapter_config import AdapterConfig
from p2pswarm.settings.config import BatchConfig, ModelConfig, RunConfig
from p2pswarm.settings.node_config import CONTEXT, ROWS, TENSOR

PLENTY = 1 << 30
APART = {"documents": "apart", "document_end": 7}
WAYS = pytest.mark.parametrize("way", [TWO, SHARED, BY_TOKENS], ids=["rows", "tensors", "tokens"])


def adapted(run, base="nf4", **settings):
    return resolved(replace(run, base=base, adapter=AdapterConfig(rank=3, **settings)))


def wide(run):
    """With rows of matrices that NF4 can cut for two devices."""
    return replace(run, model=replace(run.model, d_model=128, heads=2))


LONG = gpt(stages=1, sequence_length=40, **APART)  # documents of 5, 34 and 1 tokens, in each row
LOW = ("blocks.0.*", "blocks.1.*")
NF4 = {"nf4": adapted(LONG)}
A_STAGE = {"a frozen stage": resolved(replace(gpt(), cut=(2, 1, 1), frozen=LOW, base="bf16"))}
A_LAYER = {"one layer": adapted(gpt(stages=2), "int8", targets=("blocks.2.mlp_out",))}
ROWS_OF_CHATS = BatchConfig(microbatches=2, rows=3, samples="whole")
MARKED = replace(gpt(stages=1, sequence_length=40, documents="marked"), batch=ROWS_OF_CHATS)
CHATS = {"chats": adapted(MARKED, "int8")}
OURS = NF4 | A_STAGE | A_LAYER | CHATS
BY_TENSORS = {"nf4": adapted(wide(gpt(stages=1)))} | A_STAGE
MORE = OURS | {
    "cut": adapted(gpt()),
    "full": adapted(gpt(), "full"),
    "tied": adapted(gpt(stages=1, tie=True), "int8"),
    "float32": adapted(gpt(dtype="float32", **APART), "int8"),
    "in bf16": replace(adapted(gpt(dtype="float32"), "int8"), precision="bf16"),
    "a head that trains": adapted(gpt(), "int8", train=("blocks.3",)),
}
MORE_BY_TENSORS = {**MORE, "nf4": adapted(wide(gpt())), "cut": adapted(gpt(), "int8")}
BY_TOKENS_TOO = ("llama", "qwen3", "gpt2", "mixtral")
BY_PLAN = ("llama", "mixtral", "phi3", "gpt_neox", "gemma", "qwen3_moe")


def families(names, ranks, **also):
    """Each with another base."""
    bases = itertools.cycle(("int8", "nf4", "bf16"))
    runs = {name: family(name, ranks=ranks, **also) for name in names}
    return {
        name: adapted(replace(run, model=replace(run.model, **APART)), base)
        for (name, run), base in zip(runs.items(), bases, strict=False)
    }


def frozen_stages_are_what_one_device_computes(rank, ranks, runs, ways, by_blocks):
    for parallel in ways:
        every_stage_is_what_one_device_computes(rank, ranks, runs, parallel, by_blocks)
        for run in runs.values():
            if run.model.family != "gpt":
                require_right_plan(run, (rank, ranks), CPU, parallel)


@pytest.mark.parametrize(
    ("ranks", "ways", "runs"),
    [
        pytest.param(2, (ROWS, CONTEXT), OURS, id="2"),
        pytest.param(2, (TENSOR,), BY_TENSORS, id="2, tensors"),
        pytest.param(4, (CONTEXT,), NF4, id="4", marks=pytest.mark.full),
    ],
)
def test_what_trains_has_one_devices_gradient(fork_server, ranks, ways, runs):
    given = runs, ways, (False,)
    by_ranks(fork_server, ranks, frozen_stages_are_what_one_device_computes, *given)


@pytest.mark.full
@pytest.mark.parametrize(
    ("ranks", "ways", "runs"),
    [
        pytest.param(2, (ROWS, CONTEXT), lambda: MORE, id="2"),
        pytest.param(2, (TENSOR,), lambda: MORE_BY_TENSORS, id="2, tensors"),
        pytest.param(4, (ROWS, CONTEXT), lambda: OURS, id="4"),
        pytest.param(2, (ROWS, CONTEXT), lambda: families(BY_TOKENS_TOO, 1), id="families"),
        pytest.param(
            *(2, (TENSOR,)),
            lambda: families(BY_PLAN, 2, hidden_size=128, head_dim=64, intermediate_size=128),
            id="plans",
        ),
        pytest.param(
            *(2, (TENSOR,), lambda: families(("deepseek_v3",), 2)), id="attention that is whole"
        ),
    ],
)
def test_more_that_trains_has_one_devices_gradient(fork_server, ranks, ways, runs):
    given = runs(), ways, (False, True)
    by_ranks(fork_server, ranks, frozen_stages_are_what_one_device_computes, *given)


@pytest.mark.parametrize("parallel", [ROWS, CONTEXT])
def test_ranks_use_the_bytes_of_their_node_and_their_graphs_hold_none(tmp_path, parallel):
    run = adapted(family("llama", ranks=1, hidden_size=64, intermediate_size=256))
    with group_alone(tmp_path):
        _, shared = engine_alone(run, 1)
        part = RankStage(run, 1, (0, 1), CPU, shared, RankOptions(parallel=parallel))
        memory = part.base._memory
        places = {x.data_ptr() for x in memory.memory.values()}
        assert places == {shared[name].data_ptr() for name in memory.memory}
        assert part.base.own_bytes == 0
        dense = sum(p.nbytes for p in part._model.parameters() if p.is_meta)
        part.take_weights()
        kept = part.forward((0, 0), keep=True)
    alone = torch_engine(run, 1, CPU, PLENTY)
    alone.stage.forward((0, 0), shared["tokens"], {"x": shared["given.x"]})
    assert kept <= 1.05 * alone.stage._graphs.budget.kept_bytes
    assert dense > 4 * memory.size_bytes  # float64 in 4.5 bits


@pytest.fixture(scope="module")
def groups(forked_ranks):
    """Engines that end together."""
    made = []

    def group(run, stage, way, **also):
        made.append(group_engine(run, stage, way, **also))
        return made[-1]

    yield group
    for each in made:
        each.stage._ranks.end()


def with_factors(engine):
    engine.weights.reset(draw=True)
    fill_factors(engine.weights._flat)
    return engine


@WAYS
def test_a_group_has_one_devices_digests_and_steps(groups, way):
    run = adapted(of_steps(), "int8")
    group, one = groups(run, 1, way), torch_engine(run, 1, CPU, PLENTY)
    for engine in (group, one):
        engine.weights.reset(draw=True)

    assert group.weights.hashes() == one.weights.hashes()
    assert len(group.weights.base_roots) == 2
    assert all(map(close, steps_of(with_factors(group), 1), steps_of(with_factors(one), 1)))


def of_steps(**more):
    """The run that `steps_of` has tokens for."""
    model = ModelConfig(d_model=16, layers=2, heads=2, sequence_length=12, dtype="float64")
    batch = BatchConfig(microbatches=2, rows=3)
    return RunConfig(stages=3, model=model, batch=batch, cut=(1, 2, 1), **more)


@WAYS
def test_a_stage_of_which_nothing_trains_is_served(groups, way):
    run = resolved(replace(of_steps(), cut=(2, 1, 1), frozen=LOW, base="bf16"))
    group, one = groups(run, 0, way), torch_engine(run, 0, CPU, PLENTY)
    made = []
    for engine in (group, one):
        engine.weights.reset(draw=True)
        made.append(engine.stage.forward((0, 0), tokens(0), {})["x"])
        assert engine.stage.backward((0, 0), {}, ALL) == {}

    assert close(*made)
    assert group.weights.hashes() == one.weights.hashes()
    assert not len(group.weights.reduction()._sum_N)


def test_a_rank_of_another_device_has_a_copy_of_what_is_packed():
    run = adapted(family("llama", ranks=1), "int8")
    numbers, alone = stage_blocks(run, 1), torch_engine(run, 1, CPU, PLENTY)
    memory = alone.weights._flat.base.memory
    there = torch.device("meta")  # it keeps no number, and is not the node's memory
    base = RankBase(run, numbers, bare_blocks(run, numbers, CPU), there, memory)
    base.take()

    assert base.own_bytes == sum(x.nbytes for x in memory.values())


def test_with_a_delay_both_halves_use_one_base(groups):
    run = adapted(of_steps(delay=1))
    group, one = groups(run, 1, BY_TOKENS), torch_engine(run, 1, CPU, PLENTY)

    assert all(map(close, overlapped(with_factors(group)), overlapped(with_factors(one))))


@WAYS
def test_what_comes_later_is_computed_with(groups, way):
    """A group without files: its bytes come, and then its devices have them."""
    run = adapted(of_steps(), "int8")
    group, one = groups(run, 1, way, draws=False), torch_engine(run, 1, CPU, PLENTY)
    with_factors(one)
    group.weights.reset(draw=False)
    assert group.base.hashes() == ()
    assert not group.draws

    for piece in range(one.base.pieces):
        group.base.write(piece, one.base.read(piece))
    group.base.use()
    for piece in range(one.state.pieces):
        parts = [one.state.read(tensor, piece) for tensor in range(one.state.tensors)]
        group.state.write(piece, parts)

    assert group.weights.hashes() == one.weights.hashes()
    assert all(map(close, steps_of(group, 1), steps_of(one, 1)))


@pytest.mark.parametrize("of_newcomer", [False, True], ids=["from a group", "by a group"])
def test_a_group_gives_and_takes_frozen_weights_among_members(groups, monkeypatch, of_newcomer):
    run = with_adapters(GPT, "nf4")

    def engine(config, stage, device, keep_bytes, piece_values, *, draws):
        if stage == 1 and draws is not of_newcomer:
            return groups(config, stage, BY_TOKENS, piece_values=piece_values, draws=draws)
        return torch_engine(config, stage, device, keep_bytes, piece_values, draws=draws)

    async def main():
        async with swarm(run) as r:
            await r.ready_servers(2, 3, 4)
            await r.trainer.whole_step()
            await r.ready_servers(20, stage=1, draws=False)
            (mate,) = (n for n in (2, 3, 4) if r.servers[peer(n).raw].stage == 1)
            await r.trainer.whole_step()
            assert len(r.digests(1)) == 1
            r.kill(mate)
            await r.trainer.until(lambda: peer(mate).raw not in r.trainer.members)
            await r.trainer.whole_step()
            assert_as_in_a_plain_loop(r, 3, run)

    monkeypatch.setattr(harness, "torch_engine", engine)
    virtual(main)


@WAYS
def test_dropout_of_adapters_is_refused_with_the_remedy(way):
    dropping = adapted(family("llama", ranks=2), "int8", dropout=0.1)
    with pytest.raises(Unusable, match=r"run\.adapter\.dropout draws for .*name one device"):
        group_engine(dropping, 1, way)


def test_tensors_that_nf4_cannot_cut_are_refused_with_the_remedy():
    with pytest.raises(Unusable, match=r"no multiples of 64.*to .rows., or run\.base to .int8."):
        group_engine(adapted(of_steps()), 1, SHARED)
