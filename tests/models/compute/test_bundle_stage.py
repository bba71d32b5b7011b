"""Stages of a model whose tensors skip one of them: gradients, leaves and graphs."""

import dataclasses

import models.harness  # noqa: F401  registers the family
import pytest
import torch

from p2pswarm.base.errors import Unusable
from p2pswarm.models.compute.base import BackwardSpec
from p2pswarm.models.compute.reference import ReferenceTrainer
from p2pswarm.models.compute.torch_weights import torch_engine
from p2pswarm.settings.config import BatchConfig, ModelConfig, RunConfig

CPU = torch.device("cpu")
ALL = BackwardSpec(counting=True, returning=True)
PASSING = BackwardSpec(counting=False, returning=True)
MODEL = ModelConfig(family="skipping", d_model=16, sequence_length=12, dtype="float64")
RUN = RunConfig(stages=3, model=MODEL, batch=BatchConfig(microbatches=2, rows=2))
KEY = (0, 0)


def engines(keep_bytes=1 << 30):
    made = [torch_engine(RUN, stage, CPU, keep_bytes) for stage in range(RUN.stages)]
    for engine in made:
        engine.weights.reset(draw=True)
    return made


def tokens(seed=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (2, 13), dtype=torch.uint8, generator=generator)


def through(made, number, spec=ALL):
    """One microbatch up and down; the gradients that crossed, from above."""
    first, middle, last = (engine.stage for engine in made)
    key = (number, 0)
    given = first.forward(key, tokens(number), {})
    onward = middle.forward(key, tokens(number), given)
    finish = last.finish(tokens(number), onward, spec)
    back = middle.backward(key, finish.gradient, spec)
    end = first.backward(key, back, dataclasses.replace(spec, returning=False))
    return finish.loss, finish.gradient, back, end


def test_the_engines_say_what_crosses():
    first, middle, last = engines()

    assert first.takes.keys == last.gives.keys == ()
    assert first.gives == middle.takes == middle.gives == last.takes
    assert first.gives.names == ("x", "memory", "marks")
    assert first.gives.gradient().names == ("x", "memory")


@pytest.mark.parametrize("keep_bytes", [0, 1 << 30])
def test_stages_in_a_row_sum_what_the_plain_loop_sums(keep_bytes):
    made, plain = engines(keep_bytes), ReferenceTrainer(RUN, rounded=False)
    for number in range(2):
        assert through(made, number)[0] == pytest.approx(
            plain.add(tokens(number), number), rel=1e-12
        )

    ours = [part for engine in made for part in engine.weights._flat.sums]
    for mine, theirs in zip(ours, plain.flat.sums, strict=True):
        assert torch.allclose(mine, theirs, rtol=1e-12, atol=1e-15)


def test_the_gradient_of_what_skips_a_stage_passes_it_unchanged():
    _, above, below, end = through(engines(), 0)

    assert list(above) == list(below) == ["x", "memory"]
    assert torch.equal(above["memory"], below["memory"])
    assert not torch.equal(above["x"], below["x"])
    assert end == {}


def test_passing_on_gives_the_same_gradient_and_leaves_the_sum_alone():
    made = engines()
    counting, passing = through(made, 0), through(made, 0, PASSING)

    assert all(torch.equal(counting[2][key], passing[2][key]) for key in counting[2])
    total = made[1].weights._flat.sum_N.clone()
    through(made, 1, PASSING)
    assert torch.equal(made[1].weights._flat.sum_N, total)


def test_what_came_is_not_changed():
    made = engines()
    given = made[0].stage.forward(KEY, tokens(), {})
    before = {name: x.clone() for name, x in given.items()}
    made[1].stage.forward(KEY, tokens(), given)

    assert not any(x.requires_grad for x in given.values())
    assert all(torch.equal(given[name], x) for name, x in before.items())


def test_evaluating_gives_the_same_bundle_as_a_forward():
    first, _, _ = engines()
    kept = first.stage.forward(KEY, tokens(), {})
    alone = first.stage.evaluate(tokens(), {})

    assert list(alone) == list(kept)
    assert all(torch.equal(alone[name], x) for name, x in kept.items())


def test_a_block_that_gives_another_bundle_than_when_traced_ends_the_server():
    first, _, _ = engines()
    block = first.weights._flat.blocks[0]
    block.forward = lambda tokens_bt: {"x": block.token(tokens_bt)}

    with pytest.raises(Unusable, match="when traced"):
        first.stage.evaluate(tokens(), {})
