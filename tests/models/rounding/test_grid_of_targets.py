"""Sums on a grid of rows that mark their targets: bits of a plain loop, whoever counts what."""

import dataclasses

import pytest
import torch

from p2pswarm.data.samples.target_marks import BEGIN, NO_TARGET
from p2pswarm.models.compute.base import BackwardSpec, Engine, Update
from p2pswarm.models.compute.reference import ReferenceTrainer
from p2pswarm.models.compute.tokens import targets_in
from p2pswarm.models.compute.torch_weights import torch_engine
from p2pswarm.models.rounding.gradient_grid import NOISE
from p2pswarm.run.schedule import tokens_per_target
from p2pswarm.settings.config import (
    BatchConfig,
    CodecConfig,
    ModelConfig,
    OptimizerConfig,
    RunConfig,
)

CPU = torch.device("cpu")
B, RATE, STEPS = 6, 1e-2, 4
RUN = RunConfig(
    stages=2,
    model=ModelConfig(d_model=16, layers=2, heads=2, sequence_length=24, documents="marked"),
    batch=BatchConfig(microbatches=B, rows=4, samples="whole"),
    codecs=CodecConfig(activation="raw", gradient="raw", averaging="int-grid"),
    optimizer=OptimizerConfig(beta2=0.9),
)
EXACT = BackwardSpec(counting=True, returning=True)


def microbatch(number: int, share: float, first: float = 1.0) -> torch.Tensor:
    """Rows of two documents, of which about a share are targets, and of a step's `first` others."""
    chance = torch.Generator().manual_seed(number)
    tokens = torch.randint(0, 256, (RUN.batch.rows, 25), generator=chance)
    few = share * (0.5 + number % B / B) if number % B else first
    tokens[torch.rand(tokens.shape, generator=chance) >= few] |= NO_TARGET
    tokens[:, [0, 9]] |= BEGIN
    return tokens


def count(engines: list[Engine], number: int, share: float) -> None:
    """One microbatch through both stages, and back."""
    tokens, key = microbatch(number, share), (number, 0)
    spec = dataclasses.replace(EXACT, step=number // B, microbatch=number)
    low, high = (each.of_step(number // B) for each in engines)
    given = low.forward(key, tokens, {})
    low.backward(key, high.finish(tokens, given, spec).gradient, spec)


@pytest.mark.parametrize("share", [0.5, 0.05])
def test_weights_have_the_bits_of_a_plain_loop(share: float) -> None:
    loop = ReferenceTrainer(RUN)
    members = [[torch_engine(RUN, stage, CPU, 0) for stage in (0, 1)] for _ in range(2)]
    for engines in members:
        for each in engines:
            each.weights.reset(draw=True)
    for step in range(STEPS):
        numbers = range(B * step, B * step + B)
        tokens = [microbatch(number, share) for number in numbers]
        loop.add_all(tokens)
        for place, number in enumerate(reversed(numbers)):
            count(members[place % 3 > 0], number, share)
        update = Update(step + 1, tokens_per_target(RUN, sum(map(targets_in, tokens))), RATE)
        loop.apply(update.scale, RATE)
        for stage in (0, 1):
            weights = [engines[stage].weights for engines in members]
            total = sum(each._flat.sum_N.clone() for each in weights)
            for each in weights:
                reduced = each.reduction(step)
                reduced.reduced_N.copy_(total)
                each.apply(reduced, update)

    whole = loop.flat
    theirs = dict(zip((t.name for t in whole.layout.tensors), whole.parameters, strict=True))
    for each in (engine.weights._flat for engines in members for engine in engines):
        for tensor, ours in zip(each.layout.tensors, each.parameters, strict=True):
            assert torch.equal(ours, theirs[tensor.name]), tensor.name


@pytest.mark.parametrize("share", [1.0, 0.3, 0.05, 0.03])
def test_few_targets_make_no_more_noise(share: float) -> None:
    """Of the sum of a step, whose grid is read from the moments of those before."""
    loop, exact = ReferenceTrainer(RUN), ReferenceTrainer(RUN, rounded=False)
    for step in range(STEPS + 1):
        numbers = range(B * step, B * step + B)
        tokens = [microbatch(number, share, first=share) for number in numbers]
        exact.begin_from(loop)
        loop.add_all(tokens)
        exact.add_all(tokens)
        off = (loop.flat.sum_N - exact.flat.sum_N).norm() / exact.flat.sum_N.norm()
        exact.flat.sum_N.zero_()
        loop.apply(tokens_per_target(RUN, sum(map(targets_in, tokens))), RATE)

    assert off <= 1.2 * NOISE
