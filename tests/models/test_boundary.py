"""What crosses from block to block, as tracing finds it."""

import dataclasses

import pytest
import torch
from models.harness import run_of
from torch import nn

from p2pswarm.base.errors import Unusable
from p2pswarm.models.base import bundle_of
from p2pswarm.models.blocks import block_count, make_blocks
from p2pswarm.models.boundary import Boundary, CarriedTensor, boundaries
from p2pswarm.models.compute.bundle_spec import boundary_above, bundle_spec, check_model
from p2pswarm.settings.config import BatchConfig, CodecConfig, ModelConfig, RunConfig
from p2pswarm.tensors.codecs.meta import Dtype

MODEL = ModelConfig(family="skipping", d_model=16, sequence_length=12, dtype="float64")
RUN = RunConfig(stages=3, model=MODEL, batch=BatchConfig(rows=2))


class Gives(nn.Module):
    """A block that gives what a test says."""

    def __init__(self, make):
        super().__init__()
        self.embedding = nn.Embedding(256, 256)
        self.make = make

    def forward(self, value):
        return self.make(self.embedding, value)


def gives(*makes):
    return [lambda make=make: Gives(make) for make in makes]


def scores(embedding, tokens):
    return embedding(tokens)


def again(embedding, x):
    return x @ embedding.weight


def test_keys_have_the_order_in_which_the_block_made_them():
    start, between, end = boundaries(RUN)

    assert start == between
    assert start.tensors == (
        CarriedTensor("x", torch.float64, (2, 12, 16), differentiable=True),
        CarriedTensor("memory", torch.float64, (2, 12, 8), differentiable=True),
        CarriedTensor("marks", torch.int64, (2, 12), differentiable=False),
    )
    assert start.differentiable == ("x", "memory")
    assert end.lone


def test_the_gpt_gives_one_tensor_without_a_bundle():
    run = dataclasses.replace(RUN, model=dataclasses.replace(MODEL, family="gpt"))
    traced = boundaries(run)

    assert all(each.lone for each in traced)
    assert traced[0].tensors == (
        CarriedTensor("x", torch.float64, (2, 12, 16), differentiable=True),
    )


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"tie": True, "dtype": "float64"},
        {"documents": "apart", "document_end": 10},
        {"boundary": "subspace", "boundary_width": 4},
        {"boundary": "projector", "boundary_width": 4},
    ],
    ids=lambda changes: "-".join(map(str, changes.values())),
)
def test_the_gpt_says_without_computing_what_it_gives(changes):
    model = ModelConfig(d_model=16, layers=2, heads=4, sequence_length=12, **changes)
    run = RunConfig(stages=2, model=model, batch=BatchConfig(rows=2))
    with torch.device("meta"):
        blocks = make_blocks(run, range(block_count(model)))
        value = torch.zeros(2, 12, dtype=torch.int64)

    for block in blocks:
        given, computed = bundle_of(block.trace(value)), bundle_of(block(value))

        assert [(key, x.shape, x.dtype, x.requires_grad) for key, x in given.items()] == [
            (key, x.shape, x.dtype, x.requires_grad) for key, x in computed.items()
        ]
        value = block.trace(value)


def test_a_bundle_is_brought_into_the_order_of_its_boundary():
    boundary = boundaries(RUN)[0]
    x, memory, marks = torch.zeros(1), torch.ones(1), torch.ones(1)

    made = boundary.ordered({"marks": marks, "memory": memory, "x": x})

    assert list(made) == ["x", "memory", "marks"]
    assert boundary.value(made, {"(tokens)": x}) == made
    assert Boundary(boundary.tensors[:1], lone=True).value({"x": x}, {"(tokens)": marks}) is x
    with pytest.raises(Unusable, match="gave x; when traced it was x, memory, marks"):
        boundary.ordered(x)


def test_a_float_that_depends_on_no_weight_has_no_gradient():
    def with_mask(embedding, tokens):
        return {"x": embedding(tokens), "mask": tokens.float()}

    def last(embedding, bundle):
        return bundle["x"] + bundle["mask"].unsqueeze(-1) * embedding.weight[0]

    run = run_of(gives(with_mask, last), stages=2)
    spec = bundle_spec(boundary_above(run, 0))

    assert spec.names == ("x", "mask")
    assert spec.gradient().names == ("x",)


def test_before_the_first_and_after_the_last_stage_nothing_crosses():
    assert boundary_above(RUN, -1) is None
    assert boundary_above(RUN, 2) is None
    assert bundle_spec(None).keys == ()
    assert bundle_spec(boundary_above(RUN, 0)).keys[2].layout.dtype is Dtype.INT64


@pytest.mark.parametrize(
    ("makes", "match"),
    [
        ((lambda e, t: e(t)[t.sum() :],), "block 0 .* cannot be traced"),
        ((scores, lambda e, x: x["x"]), "block 1 .* cannot be traced"),
        ((lambda e, t: [e(t)],), "block 0 .* gives a list: a block gives a tensor, or a dict"),
        ((lambda e, t: None,), "block 0 .* gives nothing: a block gives"),
        ((lambda e, t: {"x": e(t), "n": 3},), "block 0 .* gives int as 'n': a block gives"),
        ((lambda e, t: {0: e(t)},), "block 0 .* gives Tensor as 0: a block gives"),
        ((lambda e, t: e(t)[:, 1:],), "scores of float32"),
        ((lambda e, t: {"y": e(t)},), "gives nothing as 'x'"),
        ((lambda e, t: e(t).bfloat16(),), "gives torch.bfloat16"),
    ],
    ids=["data", "lone", "list", "nothing", "value", "number", "shape", "key", "dtype"],
)
def test_a_model_that_cannot_be_traced_or_scored_says_which_block(makes, match):
    run = run_of(gives(*makes))

    with pytest.raises(Unusable, match=match):
        boundaries(run)


@pytest.mark.parametrize(
    ("first", "match"),
    [
        (lambda e, t: {"x": e(t), "mask": t > 3}, "'mask' crosses between stages as torch.bool"),
        (lambda e, t: {"x": e(t).detach()}, "nothing that crosses"),
        (lambda e, t: {"not a name": e(t)}, "no key of a bundle"),
    ],
    ids=["bool", "detached", "name"],
)
def test_a_run_whose_stages_cannot_be_joined_is_refused_before_it_starts(first, match):
    def last(embedding, bundle):
        return again(embedding, next(iter(bundle.values())))

    run = run_of(gives(first, last), stages=2)

    with pytest.raises(Unusable, match=match):
        check_model(run)
    check_model(dataclasses.replace(run, stages=1))


def test_a_codec_for_a_key_must_carry_it():
    check_model(RUN)
    codecs = CodecConfig(activation_keys=("marks=int8",))

    with pytest.raises(Unusable, match="does not take marks"):
        check_model(dataclasses.replace(RUN, codecs=codecs))


@pytest.mark.parametrize(
    ("chosen", "says"),
    [
        ({"activation_keys": ("mark=raw",)}, "activation_keys names 'mark', and what crosses .* x"),
        ({"gradient_keys": ("marks=raw",)}, "gradient_keys names 'marks', and what crosses .* x"),
    ],
    ids=["no key", "whole numbers have no gradient"],
)
def test_a_codec_for_a_key_that_never_crosses_is_refused(chosen, says):
    run = dataclasses.replace(RUN, codecs=CodecConfig(**chosen))

    with pytest.raises(Unusable, match=says):
        check_model(run)
