"""A model with modules at its cuts trains as in a plain loop, codecs on top, servers killed."""

import dataclasses

import pytest
from server.harness import CONFIG, assert_equal, plain_after, swarm, virtual, weights_of
from server.test_bundle_training import replay_without_one_of
from server.test_tied_training import assert_as_in_a_plain_loop

from p2pswarm.settings.config import BOUNDARY_NAMES, CodecConfig, RunConfig

STAGES = 3
NAMES = BOUNDARY_NAMES[1:]


def run_with(name: str, **model: object) -> RunConfig:
    return dataclasses.replace(
        CONFIG,
        stages=STAGES,
        codecs=CodecConfig(activation="dither6", gradient="dither3", averaging="raw"),
        model=dataclasses.replace(CONFIG.model, boundary=name, boundary_width=8, **model),
    )


@pytest.mark.parametrize("name", NAMES)
def test_modules_train_what_a_plain_loop_trains(name: str) -> None:
    config = run_with(name)

    async def main():
        async with swarm(config) as r:
            await r.ready_servers(*range(2, 2 + STAGES))
            for _ in range(3):
                await r.trainer.whole_step()
            return weights_of(r)

    assert_equal(virtual(main), plain_after(3, config).flat.parameters)


@pytest.mark.parametrize("name", NAMES)
def test_what_a_killed_server_had_counted_is_done_again_exactly(name: str) -> None:
    config = run_with(name)

    async def main():
        async with swarm(config) as r:
            await r.ready_servers(*range(2, 2 + 2 * STAGES))
            await r.trainer.whole_step()
            await r.trainer.step_pushes()
            await replay_without_one_of(1, r)
            await r.trainer.end_step()
            return weights_of(r)

    assert_equal(virtual(main), plain_after(2, config).flat.parameters)


def test_a_tied_model_with_modules_trains_what_a_plain_loop_trains() -> None:
    config = run_with("projector", tie=True)

    async def main():
        async with swarm(config) as r:
            await r.ready_servers(*range(2, 2 + 2 * STAGES))
            for _ in range(2):
                await r.trainer.whole_step()
            assert_as_in_a_plain_loop(r, 2, config)

    virtual(main)
