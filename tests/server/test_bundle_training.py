"""A model whose tensors skip a stage trains as in a plain loop, servers killed or not."""

import asyncio
import dataclasses

import models.harness  # noqa: F401  registers the family
import pytest
from server.harness import CONFIG, Swarm, assert_equal, plain_after, swarm, virtual, weights_of

from p2pswarm.run.messages.field_limits import Work
from p2pswarm.run.messages.microbatch import Counted, Evaluated
from p2pswarm.settings.config import CodecConfig, RunConfig

B = CONFIG.batch.microbatches
STAGES = 3
SKIPPING = dataclasses.replace(
    CONFIG, stages=STAGES, model=dataclasses.replace(CONFIG.model, family="skipping")
)
LARGE = dataclasses.replace(
    SKIPPING,
    model=dataclasses.replace(SKIPPING.model, d_model=64, sequence_length=48),
    codecs=CodecConfig(
        activation="raw",
        gradient="planes-zstd",
        activation_keys=("memory=planes-zstd", "marks=planes-zstd"),
        gradient_keys=("memory=raw",),
    ),
)


@pytest.mark.parametrize("config", [SKIPPING, LARGE], ids=["inline", "large"])
def test_tensors_that_skip_a_stage_train_what_a_plain_loop_trains(config: RunConfig) -> None:
    async def main():
        async with swarm(config) as r:
            await r.ready_servers(*range(2, 7))
            for _ in range(3):
                await r.trainer.whole_step()
            return weights_of(r)

    assert_equal(virtual(main), plain_after(3, config).flat.parameters)


def test_a_graph_that_is_made_again_changes_nothing() -> None:
    async def main():
        async with swarm(SKIPPING) as r:
            await r.ready_servers(*range(2, 5), keep_bytes=0)
            await r.trainer.whole_step()
            return weights_of(r), [r.engines[who][-1].stage.recomputed for who in r.servers]

    weights, recomputed = virtual(main)
    assert sum(recomputed) == 2 * B
    assert_equal(weights, plain_after(1, SKIPPING).flat.parameters)


@pytest.mark.parametrize("stage", range(STAGES))
def test_what_a_killed_server_had_counted_is_done_again_exactly(stage: int) -> None:
    async def main():
        async with swarm(SKIPPING) as r:
            await second_step_without_one_of(stage, r)
            return weights_of(r)

    assert_equal(virtual(main), plain_after(2, SKIPPING).flat.parameters)


async def replay_without_one_of(stage: int, r: Swarm) -> None:
    """Kill a server of `stage`, and do again what it alone had counted."""
    numbers = range(B, 2 * B)
    held = {
        member.record.peer: [
            n for n in numbers if (stage, member.record.peer) in r.trainer.holders(n)
        ]
        for member in r.trainer.of_stage(stage)
    }
    lost = max(r.trainer.of_stage(stage), key=lambda member: len(held[member.record.peer]))
    mine = held[lost.record.peer]
    assert mine
    r.kill(int.from_bytes(lost.record.peer))
    await lost.over.wait()
    await r.trainer.publish()
    (door, *_) = r.trainer.of_stage(0)
    for number in mine:
        await r.trainer.push(door, number, attempt=1, counting=(stage,))
    await r.trainer.until_counted(*numbers)


async def second_step_without_one_of(stage: int, r: Swarm) -> None:
    """Two servers a stage train a step, and a second one in which one of `stage` is killed."""
    await r.ready_servers(*range(2, 2 + 2 * r.config.stages))
    await r.trainer.whole_step()
    await r.trainer.step_pushes()
    await replay_without_one_of(stage, r)
    await r.trainer.end_step()


def test_a_held_out_loss_passes_through_all_stages() -> None:
    async def main():
        async with swarm(SKIPPING) as r:
            await r.ready_servers(*range(2, 5))
            (door,) = r.trainer.of_stage(0)
            await r.trainer.push(door, 7, work=Work.EVALUATE, counting=())
            await r.trainer.until(lambda: r.trainer.notes(Evaluated))
            await asyncio.sleep(1.0)
            assert not r.trainer.notes(Counted)
            return r.trainer.notes(Evaluated)[0].loss

    assert 4.0 < virtual(main) < 7.0


def test_gradients_in_eight_bits_with_feedback_train_nearly_the_same() -> None:
    config = dataclasses.replace(
        SKIPPING,
        codecs=CodecConfig(activation="raw", gradient="int8-ef", averaging="raw", exact=False),
    )

    async def main():
        async with swarm(config) as r:
            await r.ready_servers(*range(2, 6))
            for _ in range(3):
                await r.trainer.whole_step()
            return weights_of(r)

    for ours, theirs in zip(virtual(main), plain_after(3, config).flat.parameters, strict=True):
        assert (ours - theirs).abs().max() < 0.05
