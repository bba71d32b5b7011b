"""Microbatches that are not finite, in real training: what comes out is what one loop makes."""

import asyncio
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from trainer.leadership.test_participant import CONFIG, Swarm, corpus, distance, trained

from p2pswarm.models.compute.reference import ReferenceTrainer
from p2pswarm.models.registry import register
from p2pswarm.progress.events import HeldOut
from p2pswarm.run.schedule import learning_rate
from p2pswarm.settings.config import CodecConfig, ModelConfig, RunConfig
from p2pswarm.sim.loop import run as run_simulated
from p2pswarm.trainer.reports.reports import MemberLost, Quarantined, RunFinished, StepDone

POISON = 6 * 2 + 1, 6 * 5 + 4  # microbatches of steps 2 and 5
_names = itertools.count()


class Spoiler(torch.autograd.Function):
    """Passes a value on; the gradient that comes back is multiplied by `factor`."""

    @staticmethod
    def forward(ctx, x: Tensor, factor: Tensor) -> Tensor:
        ctx.save_for_backward(factor)
        return x.clone()

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None]:
        (factor,) = ctx.saved_tensors
        return gradient * factor, None


class Token(nn.Module):
    """The first block: it tells poisoned rows from others by their tokens."""

    def __init__(self, config: ModelConfig, marks: Sequence[Tensor], spoils: Callable) -> None:
        super().__init__()
        self.cost = 1.0
        self.token = nn.Embedding(config.vocabulary, config.d_model)
        self.marks, self.spoils = marks, spoils

    def forward(self, tokens_bt: Tensor) -> Tensor:
        x = self.token(tokens_bt)
        if not x.is_meta and any(torch.equal(tokens_bt, mark) for mark in self.marks):
            return self.spoils(x)
        return x


class Head(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.cost = 1.0
        self.score = nn.Linear(config.d_model, config.vocabulary)

    def forward(self, x: Tensor) -> Tensor:
        return self.score(torch.tanh(x))


def forward_nan(x: Tensor) -> Tensor:
    return x * torch.nan


def backward_overflow(x: Tensor) -> Tensor:
    """The loss is finite, so the last stage has counted it when the first one overflows."""
    return Spoiler.apply(x, torch.full((), 1e300, dtype=x.dtype))


def config_of(
    spoils: Callable, codec: str = "raw", *, held_out: bool = False, averaging: str = "raw"
) -> RunConfig:
    def build(config: ModelConfig) -> list[nn.Module]:
        text = corpus(CONFIG)
        batches = [text.held_out_batch(0)] if held_out else map(text.microbatch, POISON)
        marks = [torch.from_numpy(batch).to(torch.int64)[:, :-1] for batch in batches]
        return [Token(config, marks, spoils), Head(config)]

    name = f"poisoned {next(_names)}"
    register(name)(build)
    model = replace(CONFIG.model, family=name)
    codecs = CodecConfig(activation=codec, gradient=codec, averaging=averaging)
    return replace(CONFIG, steps=7, model=model, codecs=codecs, min_replicas=1)


def plain(config: RunConfig) -> tuple[ReferenceTrainer, list[int]]:
    """The loop, and how many microbatches each step trained on."""
    loop, text, size = ReferenceTrainer(config), corpus(config), config.batch.microbatches
    trained_on = []
    for step in range(config.steps):
        numbers = range(step * size, (step + 1) * size)
        trained_on.append(
            len(loop.add_all([torch.from_numpy(text.microbatch(n)) for n in numbers]))
        )
        loop.commit(learning_rate(config, step))
    return loop, trained_on


def train(config: RunConfig, servers: int) -> tuple[RunFinished, Tensor, Swarm]:
    async def story() -> tuple[RunFinished, Tensor, Swarm]:
        async with asyncio.TaskGroup() as tasks:
            swarm = Swarm(tasks, config)
            for number in range(2, 2 + servers):
                swarm.serve(number)
            return *await trained(swarm), swarm

    return run_simulated(story(), seed=1)


@pytest.mark.parametrize(("servers", "averaging"), [(2, "raw"), (4, "raw"), (2, "int-grid")])
@pytest.mark.parametrize("spoils", [forward_nan, backward_overflow])
def test_the_weights_are_those_of_a_loop_that_leaves_it_out(
    spoils: Callable, servers: int, averaging: str
):
    config = config_of(spoils, averaging=averaging)

    ended, weights, swarm = train(config, servers)

    assert not ended.failed, ended.reason
    loop, trained_on = plain(config)
    assert distance(weights, loop.flat.params_N.detach()) <= 1e-9
    done = swarm.of_kind(StepDone)
    assert [len(r.quarantined) for r in done] == [6 - count for count in trained_on]
    assert tuple(m for r in done for m in r.quarantined) == POISON
    assert all(torch.isfinite(torch.tensor(r.loss)) for r in done)


def test_what_its_codec_cannot_hold_because_it_is_not_finite_is_set_aside_too():
    ended, _, swarm = train(config_of(forward_nan, codec="int8"), 2)

    assert not ended.failed, ended.reason
    assert [r.microbatch for r in swarm.of_kind(Quarantined)] == list(POISON)


def test_a_held_out_batch_that_is_not_finite_ends_nothing_and_has_no_loss():
    ended, _, swarm = train(config_of(forward_nan, held_out=True), 2)

    assert not ended.failed, ended.reason
    assert swarm.of_kind(MemberLost) == []
    assert {r.held_out for r in swarm.of_kind(Quarantined)} == {True}
    assert all(math.isnan(r.nats_per_token) for r in swarm.of_kind(HeldOut))


def test_the_loop_adds_what_is_finite_bit_for_bit():
    config = config_of(backward_overflow)
    text = corpus(config)
    step = [torch.from_numpy(text.microbatch(m)) for m in range(12, 18)]
    without = [tokens for m, tokens in enumerate(step, 12) if m not in POISON]
    left_out, all_six = ReferenceTrainer(config), ReferenceTrainer(config)

    assert all_six.add_all(step) == [left_out.add(tokens, 0) for tokens in without]
    assert torch.equal(all_six.flat.sum_N, left_out.flat.sum_N)
