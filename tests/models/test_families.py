"""Families of `transformers` in stages: the loss and every gradient of the library's own model."""

import copy
import dataclasses

import pytest
import torch
from core import core_of
from models.families import MIXTURES, PLAIN, family_run, run_of_kind, tied_run
from models.more_families import EACH_KIND

from p2pswarm.base.errors import Unusable
from p2pswarm.models.blocks import block_costs, block_count
from p2pswarm.models.check.model_check import check_blocks, check_stages
from p2pswarm.models.compute.flat_parameters import FlatParameters, named_parameters
from p2pswarm.models.compute.reference import ReferenceTrainer
from p2pswarm.models.hf_model import SlicedBlock
from p2pswarm.models.library.hf_library import library_model, requirement, whole_model

CPU = torch.device("cpu")
CORE = ("llama", "gemma2", "gpt2", "cohere2", "mixtral", "gpt_oss", "deepseek_v3")
"""A family for each way in which most are built."""
CORE_OF_EACH_KIND = (
    *("afmoe", "bamba", "falcon_mamba", "longcat_flash", "minimax", "opt"),
    *("nanochat", "recurrent_gemma"),
)
ROUTERS = '{"model_type":"mixtral","output_router_logits":true}'
END = 7
DROPOUT = {"attn_pdrop": 0.1, "embd_pdrop": 0.1, "resid_pdrop": 0.1}


def apart(run):
    """The run with documents that do not see each other."""
    model = dataclasses.replace(run.model, documents="apart", document_end=END, dtype="float64")
    return dataclasses.replace(run, model=model)


def marked(run):
    """The same where rows tell which tokens are targets, and where documents begin."""
    model = dataclasses.replace(run.model, documents="marked", document_end=-1, dtype="float64")
    batch = dataclasses.replace(run.batch, samples="whole")
    return dataclasses.replace(run, model=model, batch=batch)


def drawn(run, numbers=None):
    flat = FlatParameters(run, numbers or range(block_count(run.model)), CPU)
    flat.draw()
    return flat


def named(flat):
    return dict(named_parameters(flat.numbers, flat.blocks))


@pytest.mark.parametrize("name", core_of([*PLAIN, *MIXTURES], CORE))
def test_stages_compute_what_the_librarys_whole_model_computes(name):
    found = check_blocks(family_run(name))

    assert found.problem == ""
    assert found.apart == 0.0
    assert found.stages == 3


@pytest.mark.parametrize("name", core_of(EACH_KIND, CORE_OF_EACH_KIND))
def test_families_that_are_built_otherwise_are_equal_as_well(name):
    found = check_blocks(run_of_kind(name, **EACH_KIND[name]))

    assert (found.problem, found.apart) == ("", 0.0)


@pytest.mark.parametrize(
    ("name", "also", "match"),
    [
        ("ctrl", {"dff": 24}, "nothing gives lm_head.bias a first value, the library's code too"),
        ("apertus", {}, "apertus cannot be cut: its code gives beta of .* no value without a file"),
    ],
)
def test_what_the_librarys_code_leaves_without_a_value_is_refused(name, also, match):
    with pytest.raises(Unusable, match=match):
        check_blocks(run_of_kind(name, **also))


@pytest.mark.parametrize(
    "name",
    core_of(
        ["minimax", "gptj", "gemma3_text", "nemotron_h", "recurrent_gemma"],
        ["minimax", "recurrent_gemma"],
    ),
)
def test_constants_are_the_same_before_and_after_weights_are_drawn(name):
    """A newcomer downloads its weights and draws none."""
    own = (PLAIN | EACH_KIND)[name]
    flat = FlatParameters(run_of_kind(name, **own), range(3), CPU)
    before = [buffer.clone() for block in flat.blocks for buffer in block.buffers()]
    flat.draw()

    assert before
    after = [buffer for block in flat.blocks for buffer in block.buffers()]
    assert all(map(torch.equal, before, after))


@pytest.mark.parametrize("name", core_of([*PLAIN, *MIXTURES], CORE))
def test_a_document_in_a_row_gets_what_the_librarys_model_gives_it_alone(name):
    found = check_stages(apart(family_run(name)))

    assert found.problem == ""


@pytest.mark.parametrize("name", ["llama", "gpt_neox"])
def test_a_document_that_a_mark_begins_gets_what_it_has_alone_too(name):
    found = check_stages(marked(family_run(name)))

    assert found.problem == ""


def test_a_family_that_convolves_over_the_ends_of_documents_is_refused():
    run = run_of_kind("lfm2", layer_types=["conv", "full_attention"], conv_L_cache=3)

    assert check_stages(run).problem == ""
    assert "documents in one row see each other" in check_stages(apart(run)).problem


def test_a_family_without_positions_is_refused():
    run = apart(run_of_kind("bloom"))

    with pytest.raises(Unusable, match=r'"apart": hf:bloom takes no positions.*"joined"'):
        block_count(run.model)


def test_a_small_copy_has_every_kind_of_layer():
    kinds = ["sliding_attention"] * 5 + ["full_attention"]
    run = family_run("gemma3_text", layer_types=kinds, num_hidden_layers=6, hidden_size=64)

    found = check_stages(run)

    assert (found.problem, found.apart) == ("", 0.0)
    assert found.stages == 6


def test_dropout_is_the_same_in_stages_and_when_a_graph_is_made_again():
    run = family_run("gpt2", **DROPOUT)
    without = family_run("gpt2")

    found = check_blocks(run)

    assert (found.problem, found.apart) == ("", 0.0)
    tokens = torch.arange(22).view(2, 11)
    trained, same = ReferenceTrainer(run), ReferenceTrainer(without)
    assert trained.add(tokens, 0) != same.add(tokens, 0)
    assert trained.add(tokens, 0) != trained.add(tokens + 1, 0)
    assert trained.evaluate(tokens) == same.evaluate(tokens)


def test_first_weights_depend_on_the_parameters_name_and_not_on_the_cut():
    run = family_run("gpt2")
    whole, part = named(drawn(run)), named(drawn(run, range(1, 2)))

    assert part
    assert all(torch.equal(whole[name], part[name]) for name in part)
    first, second = (whole[f"transformer.h.{n}.attn.c_attn.weight"] for n in range(2))
    assert not torch.equal(first, second)


def test_first_weights_have_the_spread_that_the_library_gives_them():
    run = family_run("gpt2", hidden_size=64, num_hidden_layers=4, head_dim=32)
    library = dict(library_model(run.model, torch.float64).named_parameters())
    ours = named(drawn(run))

    assert ours.keys() == library.keys()
    for name, parameter in ours.items():
        theirs = library[name]
        assert parameter.mean().item() == pytest.approx(theirs.mean().item(), abs=0.01)
        if name.endswith("weight"):
            assert parameter.std().item() == pytest.approx(theirs.std().item(), rel=0.1, abs=1e-9)


@pytest.mark.parametrize(
    "name", core_of(["llama", "qwen3", "gemma2", "gpt2", "granite"], ["llama", "gemma2"])
)
def test_a_tied_model_in_stages_computes_what_the_library_computes(name):
    run = tied_run(name)

    found = check_stages(run)

    assert (found.problem, found.apart) == ("", 0.0)
    assert found.parameters == check_stages(family_run(name)).parameters - 1


def test_a_family_that_ties_more_than_embedding_and_head_is_refused():
    whole = copy.copy(whole_model(tied_run("llama").model))
    whole._tied_weights_keys = {"lm_head.weight": "another"}

    with pytest.raises(Unusable, match=r"ties more than .*tie = false"):
        SlicedBlock(whole, 0, 2, None)


def test_a_head_that_was_tied_begins_as_the_embedding():
    weights = named(drawn(family_run("gemma2", tie_word_embeddings=True)))

    assert torch.equal(weights["lm_head.weight"], weights["model.embed_tokens.weight"])


def test_an_expert_costs_what_a_token_gives_it():
    dense = block_costs(family_run("mixtral", num_experts_per_tok=4).model)
    sparse = block_costs(family_run("mixtral").model)

    assert sparse[1] < dense[1]
    assert (sparse[0], sparse[-1]) == (dense[0], dense[-1])


@pytest.mark.parametrize(
    ("name", "change", "match"),
    [
        ("gemma2", {"tie": None}, r"one tensor.*run\.model\.tie to true or false"),
        ("llama", {"tie": True}, "two tensors.*leave run.model.tie out"),
        ("mixtral", {"config": ROUTERS}, "output_router_logits.*set it to false"),
        ("llama", {"config": ""}, "comes without a config"),
        ("llama", {"config": '{"model_type":"t5"}'}, "'t5' is no causal language model"),
        ("llama", {"config": '{"model_type":"nothing"}'}, "'nothing' is no causal"),
        ("llama", {"config": '{"hidden_act":"none","model_type":"llama"}'}, "makes no model"),
        ("llama", {"config": '{"model_type":"bart"}'}, "cannot be cut.*docs/models.md names"),
        ("llama", {"config": '{"model_type":"blt"}'}, "has no hidden_size: docs/models.md"),
        ("llama", {"config": '{"model_type":"rwkv"}'}, "cannot be cut: a layer is given a state"),
        (
            "llama",
            {"config": '{"model_type":"gemma3n"}'},
            "is a model of more than text",
        ),
        ("llama", {"package": "transformers==1.0"}, r"pip install transformers==1\.0"),
    ],
)
def test_a_model_that_cannot_be_cut_says_why_in_a_line(name, change, match):
    run = family_run(name, tie_word_embeddings=name == "gemma2")
    model = dataclasses.replace(run.model, **change)

    with pytest.raises(Unusable, match=match) as caught:
        block_count(model)

    assert "\n" not in str(caught.value)


def test_the_same_version_of_the_library_is_good():
    model = dataclasses.replace(family_run("llama").model, package=requirement())

    assert block_count(model) == 4
