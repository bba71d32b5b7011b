"""First weights from safetensors files: which bytes are read, and what is said of wrong ones."""

import copy
import dataclasses
import json

import pytest
import torch
from safetensors.torch import save_file

from p2pswarm.base.errors import Unusable
from p2pswarm.models.blocks import stage_blocks
from p2pswarm.models.compute.flat_parameters import FlatParameters, named_parameters
from p2pswarm.models.compute.torch_weights import first_state
from p2pswarm.models.library.hf_library import library_model
from p2pswarm.models.library.weight_files import INDEX, ONE_FILE
from p2pswarm.models.model_source import resolved
from p2pswarm.models.pretrained import offer, offer_served
from p2pswarm.settings.config import ModelConfig, RunConfig
from p2pswarm.settings.node_config import ServeConfig
from p2pswarm.settings.parser import run_from_json, run_to_json

CPU = torch.device("cpu")
CONFIG = {
    "model_type": "llama",
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "vocab_size": 256,
    "tie_word_embeddings": False,
}


def write(folder, tensors, parts=0):
    """The files that a model is published as: one, or `parts` and an index."""
    (folder / "config.json").write_text(json.dumps(CONFIG))
    if not parts:
        save_file(tensors, folder / ONE_FILE)
        return
    places = {name: f"part-{number % parts}.safetensors" for number, name in enumerate(tensors)}
    for file in set(places.values()):
        save_file({n: t for n, t in tensors.items() if places[n] == file}, folder / file)
    (folder / INDEX).write_text(json.dumps({"weight_map": places}))


def published(folder):
    """Some weights of the model, in the type that most have."""
    (folder / "config.json").write_text(json.dumps(CONFIG))
    model = resolved(RunConfig(model=ModelConfig(family="hf", folder=folder))).model
    torch.manual_seed(5)
    whole = library_model(model, torch.bfloat16)
    return {name: torch.randn_like(parameter) for name, parameter in whole.named_parameters()}


def run_of(folder):
    run = RunConfig(start="pretrained", stages=3, model=ModelConfig(family="hf", folder=folder))
    return resolved(run)


def drawn(run, stage):
    flat = FlatParameters(run, stage_blocks(run, stage), CPU)
    flat.draw()
    return flat


@pytest.mark.parametrize("parts", [0, 3])
def test_stages_begin_with_the_published_weights(tmp_path, parts):
    tensors = published(tmp_path)
    write(tmp_path, tensors, parts)
    run = run_of(tmp_path)

    flats = [drawn(run, stage) for stage in range(3)]

    found = {
        name: parameter.detach()
        for flat in flats
        for name, parameter in named_parameters(flat.numbers, flat.blocks)
    }
    assert found.keys() == tensors.keys()
    assert all(torch.equal(found[name], tensors[name].float()) for name in tensors)
    assert [*first_state(run, 1)][-1] == flats[1].digest()


def test_a_stage_needs_the_parts_with_its_own_weights_alone(tmp_path):
    tensors = published(tmp_path)
    write(tmp_path, tensors, len(tensors))
    run = run_of(tmp_path)
    flat = FlatParameters(run, stage_blocks(run, 0), CPU)
    own = {name for name, _ in named_parameters(flat.numbers, flat.blocks)}
    for name, file in json.loads((tmp_path / INDEX).read_text())["weight_map"].items():
        if name not in own:
            (tmp_path / file).unlink()

    drawn(run, 0)

    with pytest.raises(Unusable, match=r"part-\d+\.safetensors cannot be read"):
        drawn(run, 2)


def test_a_head_that_is_tied_in_the_file_begins_as_the_embedding(tmp_path):
    tensors = published(tmp_path)
    del tensors["lm_head.weight"]
    write(tmp_path, tensors)
    tied = json.dumps(CONFIG | {"tie_word_embeddings": True})
    (tmp_path / "config.json").write_text(tied)
    model = ModelConfig(family="hf", folder=tmp_path, tie=False)
    run = resolved(RunConfig(start="pretrained", stages=3, model=model))

    last = drawn(run, 2)

    head = dict(named_parameters(last.numbers, last.blocks))["lm_head.weight"]
    assert torch.equal(head, tensors["model.embed_tokens.weight"].float())


@pytest.mark.parametrize("stages", [1, 3])
def test_both_ends_of_a_tied_model_begin_with_the_one_published_tensor(tmp_path, stages):
    tensors = published(tmp_path)
    del tensors["lm_head.weight"]
    write(tmp_path, tensors)
    (tmp_path / "config.json").write_text(json.dumps(CONFIG | {"tie_word_embeddings": True}))
    model = ModelConfig(family="hf", folder=tmp_path)
    run = resolved(RunConfig(start="pretrained", stages=stages, model=model))

    flats = [drawn(run, stage) for stage in range(stages)]

    published_tensor = tensors["model.embed_tokens.weight"].float()
    for stage, flat in enumerate(flats):
        assert [*first_state(run, stage)][-1] == flat.digest()
        named = dict(named_parameters(flat.numbers, flat.blocks))
        assert "lm_head.weight" not in named
        if stage in (0, stages - 1):
            assert torch.equal(named["model.embed_tokens.weight"], published_tensor)


def test_a_server_has_a_folder_of_its_own(tmp_path):
    tensors = published(tmp_path)
    write(tmp_path, tensors)
    run = run_of(tmp_path)
    other = dataclasses.replace(run, model=dataclasses.replace(run.model, weights="0" * 64))

    assert offer(tmp_path) == run.model.weights
    with pytest.raises(Unusable, match=r"set serve\.pretrained") as caught:
        drawn(other, 0)
    assert "\n" not in str(caught.value)


def test_two_folders_with_tensors_of_the_same_names_are_two_models(tmp_path):
    """A model and what was trained of it; a trainer's run is not the one that a server reads."""
    runs, given = [], []
    for number, name in enumerate(("a", "b")):
        folder = tmp_path / name
        folder.mkdir()
        given.append({n: x + number for n, x in published(folder).items()})
        write(folder, given[-1])
        runs.append(run_of(folder))
    server = run_from_json(run_to_json(runs[0]))
    reads_b = offer_served(server, ServeConfig(pretrained=tmp_path / "b"))
    reads_a = offer_served(server, ServeConfig(pretrained=tmp_path / "a"))

    assert runs[0].model.weights == runs[1].model.weights
    assert runs[0] == server == reads_a
    again = copy.deepcopy(runs[0])
    names = ("model.norm.weight", "lm_head.weight")
    for run, tensors in zip(
        (*runs, reads_a, reads_b, again), (*given, *given, given[0]), strict=True
    ):
        flat = drawn(dataclasses.replace(run, seed=9), 2)
        own = dict(named_parameters(flat.numbers, flat.blocks))
        assert all(torch.equal(own[name], tensors[name].float()) for name in names)


def without(tensors):
    del tensors["model.norm.weight"]


def wrong(tensors):
    tensors["model.norm.weight"] = torch.zeros(3)


def whole_numbers(tensors):
    tensors["model.norm.weight"] = torch.ones(16, dtype=torch.int8)


def another(tensors):
    tensors["model.layers.0.mlp.gate.e_score_correction_bias"] = torch.zeros(3)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (without, "has no tensor model.norm.weight"),
        (wrong, r"model\.norm\.weight has the shape \(3,\), by config\.json it is \(16,\)"),
        (
            whole_numbers,
            r"model\.norm\.weight is of I8, which cannot be trained on: save the model",
        ),
        (
            another,
            r"has no tensor model\.layers\.0\.mlp\.gate\.e_score_correction_bias",
        ),
    ],
)
def test_weights_that_do_not_fit_are_refused_before_anything_starts(tmp_path, change, match):
    tensors = published(tmp_path)
    change(tensors)
    write(tmp_path, tensors)

    with pytest.raises(Unusable, match=match):
        run_of(tmp_path)


def test_constants_that_the_library_ignores_may_be_in_the_files(tmp_path):
    tensors = published(tmp_path)
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(4)
    write(tmp_path, tensors)

    assert run_of(tmp_path).model.weights


@pytest.mark.parametrize(
    ("name", "text", "match"),
    [
        (ONE_FILE, "no weights", f"{ONE_FILE} is not whole: copy it again"),
        (ONE_FILE, "", f"{ONE_FILE} is not whole: copy it again"),
        ("other", "", f"there are no weights in .*: put {ONE_FILE} there"),
        ("pytorch_model.bin", "", "is not read: load it and save_pretrained it anew"),
        (INDEX, "{", "is no index of weights"),
        (INDEX, "[]", "is no index of weights"),
        (INDEX, '{"weight_map": {"a": "../b"}}', "no file beside it"),
        (INDEX, '{"weight_map": {"a": ".."}}', "no file beside it"),
    ],
)
def test_a_folder_without_weights_says_what_to_put_there(tmp_path, name, text, match):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / name).write_text(text)

    with pytest.raises(Unusable, match=match):
        run_of(tmp_path)


def test_numbers_that_are_whole_do_not_train(tmp_path):
    """A server's own folder may have other numbers than the trainer's."""
    tensors = published(tmp_path)
    write(tmp_path, tensors)
    run = run_of(tmp_path)
    whole_numbers(tensors)
    write(tmp_path, tensors)

    with pytest.raises(Unusable, match=r"is of I8, which cannot be trained on"):
        drawn(run, 2)


def test_a_model_of_ones_own_is_refused(tmp_path):
    write(tmp_path, published(tmp_path))
    named = ModelConfig(weights=offer(tmp_path))

    with pytest.raises(Unusable, match="is for models of transformers"):
        drawn(RunConfig(start="pretrained", model=named), 0)


def test_only_a_folder_of_weights_can_be_started_from():
    with pytest.raises(Unusable, match="needs weights in a folder"):
        resolved(RunConfig(start="pretrained"))
