"""Tied models in stages train what a plain loop trains, through the real averaging and deaths."""

import asyncio
import dataclasses

import pytest
import torch
from models.families import tied_run
from server.harness import (
    CONFIG,
    B,
    Swarm,
    assert_equal,
    microbatch,
    peer,
    plain_after,
    swarm,
    virtual,
)
from server.test_bundle_training import second_step_without_one_of

from p2pswarm.models.compute.flat_parameters import named_parameters
from p2pswarm.models.compute.reference import ReferenceTrainer
from p2pswarm.settings.config import CodecConfig, RunConfig

STAGES = 3
VOCABULARY = 257  # no multiple of anything, so that there are gaps
MODEL = dataclasses.replace(CONFIG.model, tie=True, vocabulary=VOCABULARY, d_model=12)
GPT = dataclasses.replace(CONFIG, stages=STAGES, model=MODEL)
FULL = pytest.mark.full
FAMILIES = ("llama", "gemma", "qwen3", "gpt2")


def of_family(name: str) -> RunConfig:
    model = tied_run(name, vocab_size=VOCABULARY).model
    length = CONFIG.model.sequence_length
    model = dataclasses.replace(model, vocabulary=VOCABULARY, sequence_length=length)
    return dataclasses.replace(GPT, model=model)


def flats_of(r: Swarm):
    """The memory of every server, the first stage's before the next one's."""
    flats = [r.engines[who][-1].weights._flat for who in r.servers]
    return sorted(flats, key=lambda flat: flat.numbers.start)


def named(flat):
    return dict(named_parameters(flat.numbers, flat.blocks))


def tied_states(r: Swarm) -> set[bytes]:
    """The tied tensor with its moments, as each server of both ends has it."""
    return {
        b"".join(x[flat.tied.start : flat.tied.stop].numpy().tobytes() for x in flat.state)
        for flat in flats_of(r)
        if flat.tied is not None
    }


def assert_as_in_a_plain_loop(r: Swarm, steps: int, config: RunConfig) -> None:
    """Every parameter of every server is that of the plain loop."""
    theirs = named(plain_after(steps, config).flat)
    ours = [item for flat in flats_of(r) for item in named(flat).items()]
    assert {name for name, _ in ours} == theirs.keys()
    assert_equal([x for _, x in ours], [theirs[name] for name, _ in ours])


every_family = pytest.mark.parametrize(
    "config",
    [
        pytest.param(GPT, id="gpt"),
        *(
            pytest.param(of_family(name), id=name, marks=() if name == "gemma" else FULL)
            for name in FAMILIES
        ),
    ],
)


@every_family
def test_a_tied_model_in_stages_trains_what_a_plain_loop_trains(config: RunConfig) -> None:
    async def main():
        async with swarm(config) as r:
            await r.ready_servers(*range(2, 2 + 2 * STAGES))
            for _ in range(3):
                await r.trainer.whole_step()
                assert len(tied_states(r)) == 1
            assert_as_in_a_plain_loop(r, 3, config)

    virtual(main)


@every_family
def test_every_reduced_gradient_is_that_of_the_whole_model(config: RunConfig) -> None:
    """Of the tied tensor at both ends: it holds what both uses give."""
    plain = ReferenceTrainer(config)
    for number in range(B):
        plain.add(microbatch(number, config), number)
    names = (name for name, _ in named_parameters(plain.flat.numbers, plain.flat.blocks))
    whole = dict(zip(names, plain.flat.sums, strict=True))

    async def main():
        async with swarm(config) as r:
            await r.ready_servers(*range(2, 2 + 2 * STAGES))
            await r.trainer.step_pushes()
            await r.trainer.reduce()
            for who, server in r.servers.items():
                flat = r.engines[who][-1].weights._flat
                averaged = server._replica.log._reduced[0].sums.reduced_N
                for tensor in flat.layout.tensors:
                    ours = averaged[tensor.start : tensor.stop].view(tensor.shape)
                    theirs = whole[tensor.name]
                    assert (ours - theirs).abs().max() <= 1e-14 * max(1.0, theirs.abs().max())

    virtual(main)


def test_where_one_stage_has_both_ends_it_is_one_parameter() -> None:
    config = dataclasses.replace(GPT, stages=1)

    async def main():
        async with swarm(config) as r:
            await r.ready_servers(2, 3)
            await r.trainer.whole_step()
            assert [flat.tied for flat in flats_of(r)] == [None, None]
            assert_as_in_a_plain_loop(r, 1, config)

    virtual(main)


@pytest.mark.parametrize("stage", range(STAGES))
def test_what_a_killed_server_had_counted_is_once_in_the_tied_tensor(stage: int) -> None:
    async def main():
        async with swarm(GPT) as r:
            await second_step_without_one_of(stage, r)
            assert_as_in_a_plain_loop(r, 2, GPT)

    virtual(main)


def test_a_generation_that_fails_at_one_end_leaves_the_sums_of_both() -> None:
    async def main():
        async with swarm(GPT) as r:
            await r.ready_servers(*range(2, 2 + 2 * STAGES))
            await r.trainer.step_pushes()
            first, _ = r.trainer.of_stage(0)
            order = dataclasses.replace(r.trainer.reduce_order(first), generation=1)
            r.trainer.generation = 1
            waits = asyncio.ensure_future(r.trainer.call(first, order))  # nobody else is told
            await asyncio.sleep(5.0)
            await r.trainer.end_step()  # the next generation ends it
            with pytest.raises(Exception, match="a newer averaging"):
                await waits
            assert_as_in_a_plain_loop(r, 1, GPT)

    virtual(main)


@pytest.mark.parametrize("codec", ["fp16", "int8", "planes-zstd"])
def test_both_ends_have_the_same_bytes_whatever_the_codec(codec: str) -> None:
    config = dataclasses.replace(
        GPT, codecs=CodecConfig(activation="raw", gradient="raw", averaging=codec, exact=False)
    )

    async def main():
        async with swarm(config) as r:
            await r.ready_servers(*range(2, 2 + 2 * STAGES))
            for _ in range(2):
                await r.trainer.whole_step()
                assert len(tied_states(r)) == 1

    virtual(main)


def test_members_of_both_ends_say_the_same_of_the_tied_tensor() -> None:
    async def main():
        async with swarm(GPT) as r:
            await r.ready_servers(*range(2, 2 + 2 * STAGES))
            await r.trainer.step_pushes()
            answers = await r.trainer.reduce()
            ends = [answers[m.record.peer] for stage in (0, 2) for m in r.trainer.of_stage(stage)]
            (middle,) = {answers[m.record.peer].tied for m in r.trainer.of_stage(1)}
            first = r.trainer.of_stage(0)[0].record.peer
            return ends, middle, r.engines[first][-1].weights.tied_digest()

    ends, middle, state = virtual(main)

    assert middle is None
    assert len({(one.tied.digest, one.tied.squared_norm, one.tied.state) for one in ends}) == 1
    assert len({one.digest for one in ends}) == 2
    assert ends[0].tied.squared_norm > 0
    assert ends[0].tied.state == state != b""


@pytest.mark.parametrize("stage", [0, STAGES - 1])
def test_a_newcomer_follows_what_both_ends_reduce(stage: int) -> None:
    async def main():
        async with swarm(GPT) as r:
            await r.ready_servers(*range(2, 2 + 2 * STAGES))
            await r.trainer.whole_step()
            server = r.serve(20, stage=stage)
            await r.trainer.until(lambda: peer(20).raw in r.trainer.members)
            for _ in range(2):
                await r.trainer.whole_step()
            await asyncio.sleep(30.0)
            await r.trainer.whole_step()
            assert server.version == 4
            assert len(tied_states(r)) == 1
            assert_as_in_a_plain_loop(r, 4, GPT)

    virtual(main)


def test_an_average_of_the_weights_is_the_same_at_both_ends() -> None:
    optimizer = dataclasses.replace(GPT.optimizer, average_decay=0.9, name="muon")
    config = dataclasses.replace(GPT, optimizer=optimizer)

    async def main():
        async with swarm(config) as r:
            await r.ready_servers(*range(2, 2 + STAGES))
            for _ in range(2):
                await r.trainer.whole_step()
            assert len(tied_states(r)) == 1
            assert_as_in_a_plain_loop(r, 2, config)
            (average, *_) = [flat.average_N[flat.tied.start] for flat in flats_of(r) if flat.tied]
            assert not torch.isnan(average)

    virtual(main)
