"""Servers round each step as its records choose, and a plain loop that reads them does too."""

import dataclasses

import pytest
import torch
from server.harness import CONFIG, assert_equal, plain_after, swarm, virtual, weights_of
from server.pushes import push
from server.test_bundle_training import replay_without_one_of

from p2pswarm.base.errors import BadMessage, NotServing
from p2pswarm.models.compute.bundle_spec import StageCodecs, boundary_above, bundle_spec
from p2pswarm.run.messages.step import NearbyCodecs
from p2pswarm.server.scheduler import expected_tensors
from p2pswarm.settings.codec_ladder import LADDER
from p2pswarm.settings.config import CodecConfig
from p2pswarm.tensors.codecs.registry import encode

STAGES, STEPS, EVERY = 3, 7, 3
COARSEST = LADDER[-1]
MEASURED = dataclasses.replace(
    CONFIG,
    stages=STAGES,
    codecs=CodecConfig(
        choice="measured",
        coarsest=(COARSEST.activation, COARSEST.gradient),
        last_boundary=COARSEST.activation,
    ),
)


def rotating(step: int) -> tuple[bytes, ...]:
    """Another rung each three steps, from step 2 on, another one at each boundary."""
    turn = max(0, step - 2) // EVERY
    if step < 2:
        return ()
    return (*(LADDER[(turn + 1 + s) % len(LADDER)].codes for s in range(STAGES - 1)), b"")


def test_codecs_that_change_every_third_step_train_what_a_plain_loop_trains() -> None:
    async def main():
        async with swarm(MEASURED) as r:
            r.trainer.codecs_of = rotating
            await r.ready_servers(*range(2, 8))
            for _ in range(STEPS):
                await r.trainer.whole_step()
            return weights_of(r)

    weights = virtual(main)
    assert_equal(weights, plain_after(STEPS, MEASURED, rotating).flat.parameters)
    with pytest.raises(AssertionError):
        assert_equal(weights, plain_after(STEPS, MEASURED).flat.parameters)


def test_a_server_that_dies_and_one_that_comes_at_a_change_alter_nothing() -> None:
    async def main():
        async with swarm(MEASURED) as r:
            r.trainer.codecs_of = changing
            await r.ready_servers(*range(2, 8))
            await r.trainer.whole_step()
            await r.trainer.step_pushes()
            await replay_without_one_of(1, r)
            await r.trainer.end_step()
            await r.ready_servers(9)
            for _ in range(2):
                await r.trainer.whole_step()
            return weights_of(r)

    def changing(step: int) -> tuple[bytes, ...]:
        return rotating(2 + EVERY * step)

    assert_equal(virtual(main), plain_after(4, MEASURED, changing).flat.parameters)


def middle() -> StageCodecs:
    below, above = (bundle_spec(boundary_above(MEASURED, stage)) for stage in (0, 1))
    return StageCodecs(MEASURED, 1, below, above)


def test_each_boundary_and_direction_has_the_codecs_of_its_step():
    codecs = middle()
    codecs.on_codecs(5, [NearbyCodecs(b"", LADDER[1].codes), NearbyCodecs(LADDER[2].codes)])

    ways = codecs.takes, codecs.returns, codecs.gives, codecs.gradient
    names = [[way(step).names[0] for way in ways] for step in (5, 6)]

    assert names == [["bf16", "bf16", "int8", "dither4"], ["dither6", "dither3", "bf16", "bf16"]]


def test_a_step_of_which_nothing_was_told_is_not_served():
    codecs = middle()
    codecs.on_codecs(5, [NearbyCodecs()] * 2)

    for step in (4, 7):
        with pytest.raises(NotServing, match=f"the codecs of step {step} are not known"):
            codecs.takes(step)


def test_the_last_steps_stay_known_and_older_ones_are_forgotten():
    codecs = middle()
    for step in range(5, 20):
        codecs.on_codecs(step, [NearbyCodecs()] * 2)

    assert [codecs.takes(step).names for step in range(16, 21)] == [("bf16",)] * 5
    with pytest.raises(NotServing):
        codecs.takes(15)


@pytest.mark.parametrize(
    "nearby", [NearbyCodecs(above=b"\x01\x01"), NearbyCodecs(b"\x03\x03"), NearbyCodecs(b"\x07")]
)
def test_codecs_that_the_manifest_does_not_allow_are_refused(nearby: NearbyCodecs):
    with pytest.raises(BadMessage, match="never allowed"):
        middle().on_codecs(5, [nearby])


def test_a_bundle_in_the_codec_of_another_step_is_refused():
    codecs = middle()
    codecs.on_codecs(5, [NearbyCodecs(LADDER[1].codes), NearbyCodecs(LADDER[2].codes)])
    due = expected_tensors(MEASURED, codecs)
    tokens = encode(torch.zeros(due.tokens_shape, dtype=torch.uint8), "raw").meta
    (layout,) = (key.layout for key in codecs.takes(5).spec.keys)
    x = encode(torch.zeros(layout.shape, dtype=torch.float64), "int8").meta

    due.check(push(step=5, tensors=(tokens, x)))

    with pytest.raises(BadMessage, match="x came as int8 where the run has dither6"):
        due.check(push(step=6, tensors=(tokens, x)))
