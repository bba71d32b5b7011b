"""The digest of first weights that a trainer makes is the one that a server makes."""

import dataclasses

import pytest
import torch
from models.families import tied_run

from p2pswarm.models.blocks import stage_blocks
from p2pswarm.models.compute.flat_parameters import FlatParameters
from p2pswarm.models.compute.torch_weights import first_state
from p2pswarm.models.registry import register
from p2pswarm.settings.config import (
    BatchConfig,
    CodecConfig,
    ModelConfig,
    OptimizerConfig,
    RunConfig,
)

RUN = RunConfig(
    stages=2,
    seed=7,
    model=ModelConfig(d_model=24, layers=3, heads=2, sequence_length=8),
    batch=BatchConfig(microbatches=1),
)

TIED = dataclasses.replace(RUN, model=dataclasses.replace(RUN.model, tie=True, vocabulary=259))


class Tied(torch.nn.Module):
    """Two names for one parameter, a buffer, and an odd number of elements."""

    def __init__(self):
        super().__init__()
        self.one = torch.nn.Linear(3, 5)
        self.two = torch.nn.Linear(3, 5)
        self.two.weight = self.one.weight
        self.register_buffer("scale", torch.full((3,), 2.0), persistent=False)


@register("tied for tests")
def tied(model):
    return [Tied() for _ in range(model.layers + 2)]


def served(run, stage):
    flat = FlatParameters(run, stage_blocks(run, stage), torch.device("cpu"))
    flat.draw()
    return flat.digest()


def proved(run, stage):
    *_, digest = first_state(run, stage)
    return digest


@pytest.mark.parametrize("stage", [0, 1])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("family", ["gpt", "tied for tests"])
def test_it_is_what_a_server_of_the_stage_draws(stage, dtype, family):
    model = dataclasses.replace(RUN.model, dtype=dtype, family=family)
    run = dataclasses.replace(RUN, model=model)

    assert proved(run, stage) == served(run, stage)


def test_an_average_of_the_weights_begins_as_they_do():
    run = dataclasses.replace(RUN, optimizer=OptimizerConfig(average_decay=0.9))

    assert proved(run, 1) == served(run, 1) != served(RUN, 1)


@pytest.mark.parametrize("stage", [0, 1])
@pytest.mark.parametrize("delay", [0, 1])
@pytest.mark.parametrize("run", [RUN, TIED], ids=["apart", "tied"])
def test_it_has_the_first_warm_factors(run, stage, delay):
    low = dataclasses.replace(
        run,
        codecs=CodecConfig(averaging="powersgd", averaging_rank=4),
        batch=BatchConfig(microbatches=2),
        delay=delay,
        optimizer=OptimizerConfig(average_decay=0.9),
    )
    other = dataclasses.replace(low, seed=8)

    assert proved(low, stage) == served(low, stage) != served(other, stage)


def test_another_seed_has_another_digest():
    assert proved(RUN, 0) != proved(dataclasses.replace(RUN, seed=8), 0)


def test_it_pauses_after_each_block():
    assert len(list(first_state(RUN, 0))) == len(stage_blocks(RUN, 0)) + 1


@pytest.mark.parametrize("stages", [1, 2, 3])
@pytest.mark.parametrize("start", ["gpt", "llama"])
def test_of_a_tied_model_it_is_what_a_server_draws_at_either_end(stages, start):
    run = dataclasses.replace(tied_run("llama") if start == "llama" else TIED, stages=stages)

    for stage in range(stages):
        assert proved(run, stage) == served(run, stage)
