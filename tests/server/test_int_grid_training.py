"""Sums on a grid: in float32 the weights are the plain loop's in every bit, whoever died."""

import asyncio
import dataclasses
import itertools

import pytest
import torch
from core import core_of
from server.harness import CONFIG, ONE_STAGE, B, Swarm, peer, plain_after, swarm, virtual
from server.test_bundle_training import second_step_without_one_of
from server.test_tied_training import MODEL as TIED
from server.test_tied_training import flats_of, named

from p2pswarm.settings.config import CodecConfig, RunConfig

STAGES = 3


def on_a_grid(config: RunConfig = CONFIG, *, codec: str = "raw", muon=False, **values) -> RunConfig:
    """The run in float32."""
    values.setdefault("stages", STAGES)
    model = dataclasses.replace(values.pop("model", config.model), dtype="float32")
    optimizer = dataclasses.replace(config.optimizer, name="muon" if muon else "adamw")
    codecs = CodecConfig(activation=codec, gradient=codec, averaging="int-grid")
    return dataclasses.replace(config, model=model, optimizer=optimizer, codecs=codecs, **values)


RUNS = {
    "adamw": on_a_grid(),
    "muon": on_a_grid(muon=True),
    "dither": on_a_grid(codec="dither4"),
    "tied": on_a_grid(model=TIED),
    "bfloat16": on_a_grid(model=TIED, precision="bf16", weight_storage="bf16", muon=True),
}
every_run = pytest.mark.parametrize("config", RUNS.values(), ids=RUNS)


def assert_bits_of_a_plain_loop(r: Swarm, config: RunConfig) -> None:
    """Every parameter of every server is that of the plain loop, and the moments are."""
    plain = plain_after(r.trainer.version, config).flat
    theirs = named(plain)
    for flat in flats_of(r):
        for name, ours in named(flat).items():
            assert torch.equal(ours, theirs[name]), name


@every_run
@pytest.mark.parametrize("stage", core_of([0, STAGES - 1], [0]))
def test_what_a_killed_server_had_counted_is_done_again_to_the_same_bits(config, stage):
    async def main():
        async with swarm(config) as r:
            await second_step_without_one_of(stage, r)
            await r.trainer.whole_step()
            assert_bits_of_a_plain_loop(r, config)

    virtual(main)


@pytest.mark.parametrize("servers", [STAGES, 4 * STAGES])
def test_the_number_of_servers_changes_no_bit(servers):
    async def main():
        async with swarm(RUNS["adamw"]) as r:
            await r.ready_servers(*range(2, 2 + servers))
            for _ in range(3):
                await r.trainer.whole_step()
            assert_bits_of_a_plain_loop(r, RUNS["adamw"])

    virtual(main)


@pytest.mark.parametrize("order", list(itertools.permutations(range(B)))[1::7])
def test_the_order_of_microbatches_changes_no_bit(order):
    config = RUNS["dither"]

    async def main():
        async with swarm(config) as r:
            await r.ready_servers(*range(2, 2 + STAGES))
            await r.trainer.whole_step()
            (door,) = r.trainer.of_stage(0)
            for number in order:
                await r.trainer.push(door, B + number)
                await r.trainer.until_counted(B + number)
            await r.trainer.end_step()
            assert_bits_of_a_plain_loop(r, config)

    virtual(main)


@pytest.mark.parametrize("muon", [False, True], ids=["adamw", "muon"])
def test_a_newcomer_has_the_grid_with_the_state(muon):
    config = on_a_grid(ONE_STAGE, muon=muon, stages=1)

    async def main():
        async with swarm(config) as r:
            await r.ready_servers(2)
            for _ in range(2):
                await r.trainer.whole_step()
            await r.ready_servers(3)
            await r.trainer.whole_step()
            r.kill(2)
            await asyncio.sleep(5.0)
            assert [member.record.peer for member in r.trainer.of_stage(0)] == [peer(3).raw]
            await r.trainer.whole_step()
            assert_bits_of_a_plain_loop(r, config)

    virtual(main)


def test_graphs_that_are_made_again_change_no_bit():
    async def main():
        async with swarm(RUNS["muon"]) as r:
            await r.ready_servers(*range(2, 2 + STAGES), keep_bytes=0)
            for _ in range(2):
                await r.trainer.whole_step()
            assert_bits_of_a_plain_loop(r, RUNS["muon"])

    virtual(main)
