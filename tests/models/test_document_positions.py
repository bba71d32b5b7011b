"""Documents in one row that do not see each other, in the blocks of the GPT."""

import dataclasses

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from p2pswarm.data.samples.target_marks import BEGIN, NO_TARGET
from p2pswarm.models.boundary import boundaries
from p2pswarm.models.check.model_check import check_once
from p2pswarm.models.compute.base import BackwardSpec
from p2pswarm.models.compute.bundle_spec import boundary_above, bundle_spec
from p2pswarm.models.compute.reference import ReferenceTrainer
from p2pswarm.models.compute.tokens import first_value
from p2pswarm.models.compute.torch_weights import torch_engine
from p2pswarm.models.document_positions import positions_of
from p2pswarm.models.dropout import run_blocks
from p2pswarm.settings.config import BatchConfig, ModelConfig, RunConfig

END = 7
MODEL = ModelConfig(
    d_model=16, layers=2, heads=2, sequence_length=12, dtype="float64",
    documents="apart", document_end=END,
)  # fmt: skip
RUN = RunConfig(model=MODEL, stages=2)
MARKED = dataclasses.replace(
    RUN,
    model=dataclasses.replace(MODEL, documents="marked", document_end=-1),
    batch=BatchConfig(samples="whole", microbatches=1, rows=2),
)
TOKENS = st.lists(st.sampled_from((1, 2, END)), min_size=1, max_size=24)


@given(TOKENS)
def test_positions_begin_again_where_a_document_ends(tokens):
    found, place = [], -1
    for token in tokens:
        place = 0 if token == END else place + 1
        found.append(place)

    assert positions_of(torch.tensor([tokens]), END).tolist() == [found]


@pytest.fixture(scope="module")
def blocks():
    return ReferenceTrainer(RUN).flat.blocks


@torch.no_grad()
def scores(blocks, tokens):
    return run_blocks(blocks, torch.tensor([tokens]))[0]


def test_a_packed_row_gives_each_document_the_scores_it_has_alone(blocks):
    one, two = [END, 1, 2, 3, 4], [END, 5, 6, 5, 1, 1, 9]
    packed = scores(blocks, one + two)

    assert torch.allclose(packed[:5], scores(blocks, one), atol=1e-12)
    assert torch.allclose(packed[5:], scores(blocks, two), atol=1e-12)


def test_joined_documents_do_see_each_other(blocks):
    joined = dataclasses.replace(RUN, model=dataclasses.replace(MODEL, documents="joined"))
    blocks_joined = ReferenceTrainer(joined).flat.blocks
    one, two = [END, 1, 2, 3, 4], [END, 5, 6]

    assert not torch.allclose(
        scores(blocks_joined, one + two)[5:], scores(blocks_joined, two), atol=1e-3
    )
    alone = scores(blocks_joined, two)  # a row of one document is the same either way
    assert torch.allclose(alone, scores(blocks, two), atol=1e-12)


@pytest.mark.parametrize("run", ["apart", "marked"])
@pytest.mark.parametrize("boundary", ["none", "projector"])
def test_positions_do_not_travel_because_each_stage_makes_them_of_its_tokens(run, boundary):
    run = RUN if run == "apart" else MARKED
    run = dataclasses.replace(run, model=dataclasses.replace(run.model, boundary=boundary))
    tokens = torch.randint(0, END, (run.batch.rows, 13))
    tokens[:, 5] = END | BEGIN if run.batch.marked else END
    stages = [torch_engine(run, stage, torch.device("cpu"), 0) for stage in (0, 1)]
    for each in stages:
        each.weights.reset(draw=True)
    whole = ReferenceTrainer(run, rounded=False)

    given = stages[0].stage.forward((0, 0), tokens, {})
    loss = stages[1].stage.finish(tokens, given, BackwardSpec(counting=False, returning=True)).loss

    assert bundle_spec(boundary_above(run, 0)).names == ("x",)
    assert list(given) == ["x"]
    assert loss == pytest.approx(whole.add(tokens, 0), abs=1e-12)


def test_stages_compute_what_the_whole_does():
    check_once(RUN)


def test_rows_of_any_length_keep_documents_apart():
    long = dataclasses.replace(MODEL, sequence_length=1 << 20)

    assert boundaries(dataclasses.replace(RUN, model=long))[0].tensors[0].shape[1] == 1 << 20


@pytest.mark.parametrize("boundary", ["none", "projector"])
def test_rows_that_tell_where_documents_begin_need_no_token_that_ends_them(boundary):
    run = dataclasses.replace(MARKED, model=dataclasses.replace(MARKED.model, boundary=boundary))
    blocks = ReferenceTrainer(run).flat.blocks
    one, two = [1, 2, END, 3, 4], [END, 5, END, 5, 1, 1]
    marked = torch.tensor([one + two])
    marked[0, [0, len(one)]] |= BEGIN | NO_TARGET

    with torch.no_grad():
        packed = run_blocks(blocks, first_value(marked, run.model))[0]
        alone = [
            run_blocks(blocks, first_value(torch.tensor([each]), run.model))[0]
            for each in (one, two)
        ]

    assert torch.allclose(packed, torch.cat(alone), atol=1e-12)


def test_stages_compute_what_the_whole_does_of_rows_with_marks():
    check_once(MARKED)
