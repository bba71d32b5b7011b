"""Sums in two factors: the weights are those of a plain loop that has the same factors."""

import asyncio
import contextlib
import dataclasses
from functools import partial

import pytest
import torch
from core import core_of
from server.harness import CONFIG, ONE_STAGE, B, Swarm, peer, plain_after, swarm, virtual
from server.test_bundle_training import second_step_without_one_of
from server.test_tied_training import MODEL as TIED
from server.test_tied_training import flats_of, named

from p2pswarm.models.compute.torch_sums import TorchSums, _SecondFactors
from p2pswarm.settings.config import CodecConfig, RunConfig

STAGES = 3
WITHIN = 1e-12


def in_low_rank(config: RunConfig = CONFIG, averaging="powersgd", **values) -> RunConfig:
    """The run in float64 with the smallest rank."""
    values.setdefault("stages", STAGES)
    codecs = CodecConfig(activation="raw", gradient="raw", averaging=averaging, averaging_rank=4)
    return dataclasses.replace(config, codecs=codecs, **values)


MUON = dataclasses.replace(CONFIG.optimizer, name="muon")
RUNS = {
    "adamw": in_low_rank(),
    "muon": in_low_rank(optimizer=MUON),
    "tied": in_low_rank(model=TIED),
    "one in three": in_low_rank(averaging=("raw", "powersgd", "int-grid"), optimizer=MUON),
}
every_run = pytest.mark.parametrize("config", RUNS.values(), ids=RUNS)


def assert_as_in_a_plain_loop(r: Swarm, config: RunConfig) -> None:
    """Every parameter of every server is that of the plain loop, and so is every warm factor."""
    plain = plain_after(r.trainer.version, config).flat
    theirs, warm = named(plain), plain.layout.factors
    assert warm
    for flat in flats_of(r):
        for name, ours in named(flat).items():
            assert (ours - theirs[name]).abs().max() <= WITHIN * theirs[name].abs().max(), name
        for name, place in flat.layout.factors.items():
            ours = flat.exp_avg_N[place.start : place.stop]
            same = plain.exp_avg_N[warm[name].start : warm[name].stop]
            assert (ours - same).abs().max() <= 1e-9, name


@every_run
@pytest.mark.parametrize("stage", core_of([0, 1, STAGES - 1], [1]))
def test_what_a_killed_server_had_counted_is_done_again(config, stage):
    async def main():
        async with swarm(config) as r:
            await second_step_without_one_of(stage, r)
            await r.trainer.whole_step()
            assert_as_in_a_plain_loop(r, config)

    virtual(main)


@pytest.mark.parametrize("servers", [STAGES, 4 * STAGES])
def test_it_does_not_matter_how_many_servers_count(servers):
    async def main():
        async with swarm(RUNS["adamw"]) as r:
            await r.ready_servers(*range(2, 2 + servers))
            for _ in range(3):
                await r.trainer.whole_step()
            assert_as_in_a_plain_loop(r, RUNS["adamw"])

    virtual(main)


def moment_of(work) -> str:
    """Where in two rounds a piece of a server's work is."""
    call = work.func if isinstance(work, partial) else work
    owner, name = getattr(call, "__self__", None), getattr(call, "__name__", "")
    if isinstance(owner, _SecondFactors):
        return f"second {name}"
    return f"first {name}" if isinstance(owner, TorchSums) else ""


MOMENTS = ("first part", "first outcome", "second part", "second outcome")
"""The third is between the rounds: it has all of the first, and nothing of its second is sent."""


@pytest.mark.parametrize("moment", MOMENTS)
def test_who_dies_in_either_round_leaves_no_trace(moment):
    config = in_low_rank(ONE_STAGE, stages=1)
    doomed = 3

    async def main():
        async with swarm(config) as r:
            met = asyncio.Event()

            async def compute(work):
                if r.trainer.version == 1 and moment_of(work) == moment:
                    met.set()
                    await asyncio.Event().wait()  # it does no more
                return work()

            await r.ready_servers(2, 4)
            await r.ready_servers(doomed, compute=compute)
            await r.trainer.whole_step()
            await r.trainer.step_pushes()
            failed = asyncio.ensure_future(r.trainer.reduce())
            await met.wait()
            lost = r.trainer.members[peer(doomed).raw]
            mine = [n for n in range(B, 2 * B) if (0, lost.record.peer) in r.trainer.holders(n)]
            r.kill(doomed)
            await lost.over.wait()
            with contextlib.suppress(Exception):
                await failed
            await r.trainer.publish()
            (door, *_) = r.trainer.of_stage(0)
            for other in r.trainer.of_stage(0):
                await r.trainer.fence(other, B, 0)
            for number in mine:
                await r.trainer.push(door, number, attempt=1)
            await r.trainer.until_counted(*range(B, 2 * B))
            await r.trainer.end_step()
            await r.trainer.whole_step()
            assert_as_in_a_plain_loop(r, config)

    virtual(main)


def test_a_generation_that_is_never_whole_ends_with_the_next():
    """One member is told, and waits in its second round for a member that was told of another."""
    config = in_low_rank(ONE_STAGE, stages=1)

    async def main():
        async with swarm(config) as r:
            held = asyncio.Event()

            async def compute(work):
                if r.trainer.generation == 1 and moment_of(work) == "second part":
                    await held.wait()
                return work()

            await r.ready_servers(2)
            await r.ready_servers(3, compute=compute)
            await r.trainer.step_pushes()
            waits = asyncio.ensure_future(r.trainer.reduce())
            await asyncio.sleep(5.0)
            again = asyncio.ensure_future(r.trainer.reduce())
            await asyncio.sleep(1.0)
            held.set()
            await again
            with pytest.raises(ExceptionGroup) as refusal:
                await waits
            assert refusal.group_contains(Exception, match="a newer averaging")
            await r.trainer.commit()
            assert_as_in_a_plain_loop(r, config)

    virtual(main)


@pytest.mark.parametrize("muon", [False, True], ids=["adamw", "muon"])
def test_a_newcomer_has_the_warm_factors_with_the_state(muon):
    config = in_low_rank(ONE_STAGE, stages=1)
    if muon:
        config = dataclasses.replace(config, optimizer=MUON)

    async def main():
        async with swarm(config) as r:
            await r.ready_servers(2)
            for _ in range(2):
                await r.trainer.whole_step()
            await r.ready_servers(3)
            await r.trainer.whole_step()
            assert len(r.digests(0)) == 1
            r.kill(2)
            await asyncio.sleep(5.0)
            assert [member.record.peer for member in r.trainer.of_stage(0)] == [peer(3).raw]
            await r.trainer.whole_step()
            assert_as_in_a_plain_loop(r, config)

    virtual(main)


def test_who_downloads_a_state_follows_commits_with_both_factors():
    """A newcomer's pieces come while others average; it has the factors of each commit."""
    config = in_low_rank(ONE_STAGE, stages=1)

    async def main():
        async with swarm(config) as r:
            await r.ready_servers(2, 4)
            await r.trainer.whole_step()
            r.serve(3)
            await r.trainer.until(lambda: peer(3).raw in r.trainer.members)
            for _ in range(3):
                await r.trainer.whole_step()
            await r.trainer.until_ready(3)
            await r.trainer.whole_step()
            assert len(r.digests(0)) == 1
            assert_as_in_a_plain_loop(r, config)

    virtual(main)


@pytest.mark.parametrize("storage", ["full", "bf16"])
def test_replicas_have_the_same_bits_in_float32_and_less(storage):
    model = dataclasses.replace(TIED, dtype="float32")
    config = in_low_rank(
        model=model, precision="bf16", weight_storage=storage, optimizer=MUON, stages=2
    )

    async def main():
        async with swarm(config) as r:
            await r.ready_servers(*range(2, 8))
            for _ in range(3):
                await r.trainer.whole_step()
                assert [len(r.digests(stage)) for stage in (0, 1)] == [1, 1]

    virtual(main)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_sum_that_is_not_finite_is_told_and_skipped(value):
    config = in_low_rank(ONE_STAGE, stages=1)

    async def main():
        async with swarm(config) as r:
            await r.ready_servers(2, 3)
            await r.trainer.step_pushes()
            flats = flats_of(r)
            before = [flat.exp_avg_N.clone() for flat in flats]
            flats[0].sum_N[5] = value
            answers = await r.trainer.reduce()
            assert [each.squared_norm for each in answers.values()] == [None, None]
            await r.trainer.commit(scale=0.0)
            assert len(r.digests(0)) == 1
            for flat, moments in zip(flats, before, strict=True):
                assert torch.equal(flat.exp_avg_N, moments)

    virtual(main)
