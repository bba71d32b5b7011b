"""Which announcements fit this stage, and how what came is named."""

import dataclasses

import pytest
import torch
from server.pushes import META, TOKENS, expected

from p2pswarm.base.errors import BadMessage
from p2pswarm.models.compute.torch_weights import torch_engine
from p2pswarm.run.messages.types import Work
from p2pswarm.server.expected import expected_tensors
from p2pswarm.settings.config import BatchConfig, ModelConfig, RunConfig
from p2pswarm.tensors.codecs.meta import Dtype


@pytest.mark.parametrize(
    ("stage", "work", "metas"),
    [
        (0, Work.FORWARD, (TOKENS,)),
        (0, Work.EVALUATE, (dataclasses.replace(TOKENS, dtype=Dtype.INT64),)),
        (1, Work.FORWARD, (TOKENS, META)),
        (2, Work.EVALUATE, (TOKENS, META)),
        (0, Work.BACKWARD, (META,)),
        (1, Work.BACKWARD, (META,)),
    ],
)
def test_what_the_model_and_the_manifest_say_is_taken(stage, work, metas):
    expected(stage).check(work, metas)


@pytest.mark.parametrize(
    ("stage", "work", "metas"),
    [
        (0, Work.FORWARD, ()),
        (0, Work.FORWARD, (TOKENS, META)),
        (1, Work.FORWARD, (TOKENS,)),
        (1, Work.FORWARD, (META, META)),
        (1, Work.EVALUATE, (TOKENS, TOKENS)),
        (1, Work.FORWARD, (dataclasses.replace(TOKENS, shape=(2, 4)), META)),
        (1, Work.FORWARD, (dataclasses.replace(TOKENS, dtype=99), META)),
        (1, Work.BACKWARD, ()),
        (1, Work.BACKWARD, (TOKENS,)),
        (1, Work.BACKWARD, (TOKENS, META)),
        (2, Work.BACKWARD, (META,)),
    ],
)
def test_anything_else_is_the_senders_fault(stage, work, metas):
    with pytest.raises(BadMessage):
        expected(stage).check(work, metas)


def test_tensors_get_the_names_of_the_bundle():
    tokens, x = torch.zeros(1, 4), torch.ones(1)

    forward = expected(1).inputs(Work.FORWARD, [tokens, x])
    gradient = expected(1).inputs(Work.BACKWARD, [x])

    assert forward.tokens is tokens
    assert forward.bundle == {"x": x}
    assert gradient.tokens is None
    assert gradient.bundle == {"x": x}
    assert expected(0).inputs(Work.EVALUATE, [tokens]).bundle == {}


def test_a_stage_expects_what_its_engine_says():
    model = ModelConfig(d_model=16, layers=1, heads=2, sequence_length=8)
    run = RunConfig(stages=2, model=model, batch=BatchConfig(rows=3))
    first, last = (
        expected_tensors(run, torch_engine(run, stage, torch.device("cpu"), 0)) for stage in (0, 1)
    )

    assert first.tokens_shape == last.tokens_shape == (3, 9)
    assert first.gradient == last.takes
    assert first.takes.keys == last.gradient.keys == ()
