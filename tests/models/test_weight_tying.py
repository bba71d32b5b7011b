"""Embedding and head as one tensor: the same values at both ends, one parameter where they meet."""

import dataclasses

import pytest
import torch
from models.families import family_run, tied_run

from p2pswarm.base.errors import Unusable
from p2pswarm.models.blocks import block_count, make_blocks, stage_blocks
from p2pswarm.models.check.model_check import check_stages
from p2pswarm.models.compute.flat_parameters import FlatParameters, named_parameters
from p2pswarm.models.compute.reference import ReferenceTrainer
from p2pswarm.models.compute.torch_weights import torch_engine
from p2pswarm.models.registry import register
from p2pswarm.models.weight_tying import require_ends
from p2pswarm.settings.config import BatchConfig, ModelConfig, RunConfig

CPU = torch.device("cpu")
MODEL = ModelConfig(
    d_model=16, layers=2, heads=2, sequence_length=8, vocabulary=257, dtype="float64", tie=True
)
GPT = RunConfig(model=MODEL, stages=2, batch=BatchConfig(microbatches=2, rows=2), seed=3)
RUNS = {"gpt": GPT, "llama": tied_run("llama"), "gpt2": tied_run("gpt2")}


@register("own ends for tests")
def own_ends(config):
    return [torch.nn.Embedding(config.vocabulary, 4), torch.nn.Linear(4, config.vocabulary)]


def flat_of(run, stage):
    flat = FlatParameters(run, stage_blocks(run, stage), CPU)
    flat.draw()
    return flat


def names(flat):
    return [name for name, _ in named_parameters(flat.numbers, flat.blocks)]


def segment(flat, values):
    return values[flat.tied.start : flat.tied.stop]


@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)
def test_both_ends_begin_with_the_same_tensor_under_one_name(run):
    first, last = flat_of(run, 0), flat_of(run, run.stages - 1)
    whole = flat_of(dataclasses.replace(run, stages=1), 0)

    assert torch.equal(segment(first, first.params_N), segment(last, last.params_N))
    assert set(names(first)) & set(names(last)) == {names(whole)[0]}
    assert torch.equal(whole.parameters[0].flatten(), segment(first, first.params_N))
    assert all(flat_of(run, stage).tied is None for stage in range(1, run.stages - 1))


@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)
def test_in_one_stage_it_is_one_parameter_with_the_gradient_of_both_uses(run):
    whole = flat_of(dataclasses.replace(run, stages=1), 0)
    tokens = torch.arange(18).view(2, 9) % run.model.vocabulary

    trainer = ReferenceTrainer(dataclasses.replace(run, stages=1))
    trainer.add(tokens, 0)

    assert whole.tied is None
    assert len(set(names(whole))) == len(names(whole)) == len(whole.parameters)
    untouched = sorted(set(range(run.model.vocabulary)) - set(tokens.flatten().tolist()))
    assert trainer.flat.sums[0][untouched].any()  # the head's part: no token looks these up


def test_in_bfloat16_the_two_uses_are_rounded_apart_whatever_the_cut():
    model = dataclasses.replace(MODEL, dtype="float32")
    run = dataclasses.replace(GPT, model=model, precision="bf16", stages=1)

    assert check_stages(run).problem == ""  # it compares with a stage for each block


def test_a_run_that_is_not_tied_draws_what_it_did():
    untied = dataclasses.replace(GPT, model=dataclasses.replace(MODEL, tie=False))
    left_out = dataclasses.replace(GPT, model=dataclasses.replace(MODEL, tie=None))

    assert flat_of(untied, 0).digest() == flat_of(left_out, 0).digest()
    assert flat_of(untied, 0).tied is None
    assert (untied.tied_ends, left_out.tied_ends, GPT.tied_ends) == (None, None, (0, 1))
    assert dataclasses.replace(GPT, stages=1).tied_ends is None


def test_an_embedding_that_is_tied_gives_rows_of_variance_one():
    flat = flat_of(GPT, 0)

    made = flat.blocks[0](torch.arange(257).view(1, 257))

    assert made.var().item() == pytest.approx(1.0, rel=0.1)
    assert segment(flat, flat.params_N).var().item() == pytest.approx(1 / 16, rel=0.1)


def test_weights_that_differ_at_one_end_have_another_tied_digest():
    engines = [torch_engine(GPT, stage, CPU, 0) for stage in (0, 1)]
    for engine in engines:
        engine.weights.reset(draw=True)
    first, last = (engine.weights.tied_digest() for engine in engines)
    with torch.no_grad():
        flat = engines[1].weights._flat
        segment(flat, flat.exp_avg_N)[5] = 1.0

    assert first == last != engines[1].weights.tied_digest()
    untied = dataclasses.replace(GPT, model=dataclasses.replace(MODEL, tie=False))
    assert torch_engine(untied, 0, CPU, 0).weights.tied_digest() == b""


@pytest.mark.parametrize("family", ["own ends for tests"])
def test_a_family_that_does_not_say_what_its_ends_are_is_refused(family):
    model = dataclasses.replace(MODEL, family=family)
    run = dataclasses.replace(GPT, model=model)

    with pytest.raises(Unusable, match=r"does not say what of its embedding.*run\.model\.tie"):
        make_blocks(run, range(block_count(model)))


def test_ends_of_different_shapes_are_refused():
    run = tied_run("llama")
    blocks = make_blocks(run, range(block_count(run.model)))
    blocks[-1].inner.lm_head = torch.nn.Linear(8, 32, bias=False)

    with pytest.raises(Unusable, match="cannot be one tensor"):
        require_ends("llama", blocks)


def test_a_model_of_the_library_that_is_untied_stays_so():
    run = family_run("llama", tie_word_embeddings=True)

    assert run.tied_ends is None
    assert len(names(flat_of(dataclasses.replace(run, stages=1), 0))) == 21
