"""Files that `transformers` writes, as first weights of a run: mixtures, odd names and heads."""

import dataclasses
import json

import pytest
import torch
from core import core_of
from models.families import MIXTURES
from models.family_trials import (
    ROUNDING,
    difference,
    publish,
    run_of,
    scores_of_library,
    scores_of_run,
    tensors_in,
    weights_of,
)
from safetensors.torch import save_file

from p2pswarm.base.errors import Unusable
from p2pswarm.commands.weights.export_folder import export
from p2pswarm.models.blocks import stage_blocks
from p2pswarm.models.compute.flat_parameters import FlatParameters, layout_of
from p2pswarm.models.compute.reference import ReferenceTrainer
from p2pswarm.models.library.hf_library import library, whole_model
from p2pswarm.models.library.weight_files import INDEX
from p2pswarm.settings.config import OptimizerConfig

CPU = torch.device("cpu")
HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"


def rewritten(folder, tensors, parts=1):
    """The folder with other tensors, in as many files."""
    for file in folder.glob("*.safetensors"):
        file.unlink()
    places = {name: f"part-{n % parts}.safetensors" for n, name in enumerate(sorted(tensors))}
    for file in sorted(set(places.values())):
        part = {name: tensors[name].contiguous() for name in tensors if places[name] == file}
        save_file(part, folder / file, metadata={"format": "pt"})
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": places}))


def config_says(folder, **values):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def starts_as_the_library_does(folder, path):
    ours, theirs = scores_of_run(weights_of(run_of(folder), path)), scores_of_library(folder)
    return (ours - theirs).abs().max() < ROUNDING


@pytest.mark.parametrize("name", core_of(MIXTURES, ["mixtral", "qwen3_moe"]))
def test_experts_that_lie_in_many_files_are_put_together(name, tmp_path):
    publish(name, tmp_path / "first")
    rewritten(tmp_path / "first", tensors_in(tmp_path / "first"), parts=3)

    assert starts_as_the_library_does(tmp_path / "first", tmp_path / "w.safetensors")


def test_a_stage_reads_the_files_of_its_own_experts_alone(tmp_path):
    publish("mixtral", tmp_path)
    tensors = tensors_in(tmp_path)
    rewritten(tmp_path, tensors, parts=len(tensors))
    run = run_of(tmp_path)
    places = json.loads((tmp_path / INDEX).read_text())["weight_map"]
    for name, file in places.items():
        if ".layers.1." in name:
            (tmp_path / file).unlink()
    first, last = (FlatParameters(run, stage_blocks(run, stage), CPU) for stage in (0, 2))

    first.draw()

    with pytest.raises(Unusable, match=r"part-\d+\.safetensors cannot be read"):
        FlatParameters(run, range(2, 3), CPU).draw()
    assert last.length


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (
            {"num_local_experts": 8, "num_experts": 8},
            r"gate\.weight has the shape \(4, 16\), by config\.json it is \(8, ",
        ),
        (
            {"intermediate_size": 48},
            r"experts\.gate_up_proj, made of .*w1\.weight and others, .* it is \(4, 96, 16\)",
        ),
    ],
)
def test_experts_of_another_number_or_width_are_refused_before_anything_starts(
    change, match, tmp_path
):
    publish("mixtral", tmp_path)
    config_says(tmp_path, **change)

    with pytest.raises(Unusable, match=match) as caught:
        run_of(tmp_path)
    assert "\n" not in str(caught.value)


def test_an_expert_that_is_missing_or_unlike_the_others_is_refused(tmp_path):
    publish("qwen3_moe", tmp_path)
    tensors = tensors_in(tmp_path)
    name = next(x for x in tensors if x.endswith("layers.0.mlp.experts.1.up_proj.weight"))
    unlike = tensors | {name: tensors[name][:, :4]}
    rewritten(tmp_path, unlike)
    with pytest.raises(Unusable, match=r"cannot make model\.layers\.0\.mlp\.experts\.gate_up_proj"):
        run_of(tmp_path)

    del tensors[name]
    rewritten(tmp_path, tensors)
    with pytest.raises(Unusable, match=r"cannot make model\.layers\.0\.mlp\.experts\.gate_up_proj"):
        run_of(tmp_path)


@pytest.mark.parametrize("name", ["mixtral", "olmoe"])
def test_files_with_the_names_of_the_librarys_own_memory_are_read_as_well(name, tmp_path):
    publish(name, tmp_path / "first")
    whole = library().AutoModelForCausalLM.from_pretrained(tmp_path / "first")
    whole.save_pretrained(tmp_path / "as-it-lies", save_original_format=False)
    names = tensors_in(tmp_path / "as-it-lies")
    assert any(name.endswith("experts.gate_up_proj") for name in names)

    assert starts_as_the_library_does(tmp_path / "as-it-lies", tmp_path / "w.safetensors")


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_files_of_the_model_without_its_head_begin_with_other_names(name, tmp_path):
    publish(name, tmp_path / "first", tie_word_embeddings=True)
    prefix = "transformer." if name == "gpt2" else "model."
    named = {
        each.removeprefix(prefix): tensor
        for each, tensor in tensors_in(tmp_path / "first").items()
        if each != HEAD
    }
    rewritten(tmp_path / "first", named)
    config_says(tmp_path / "first", tie_word_embeddings=True)

    assert starts_as_the_library_does(tmp_path / "first", tmp_path / "w.safetensors")


def corrected(folder):
    """A router's correction in the files, other than what the library begins with."""
    publish("deepseek_v3", folder)
    tensors = tensors_in(folder)
    name = "model.layers.1.mlp.gate.e_score_correction_bias"
    assert not tensors[name].any()
    rewritten(folder, tensors | {name: torch.tensor([0.5, -0.25, 0.125, 4.0])})
    return name


def test_a_routers_correction_is_that_of_the_files_and_no_step_changes_it(tmp_path):
    name = corrected(tmp_path / "first")
    run = run_of(tmp_path / "first")
    run = dataclasses.replace(run, optimizer=OptimizerConfig(decays="all"))
    assert starts_as_the_library_does(tmp_path / "first", tmp_path / "w.safetensors")
    trainer = ReferenceTrainer(run)
    before = trainer.flat.params_N.clone()

    trainer.add(torch.arange(22).view(2, 11), 0)
    trainer.commit(0.1)

    changed = (trainer.flat.params_N != before).sum().item()
    (place,) = (t for t in trainer.flat.layout.tensors if t.name == name)
    now = trainer.flat.params_N.detach()[place.start : place.start + 4]
    assert torch.equal(now, torch.tensor([0.5, -0.25, 0.125, 4.0]))
    assert changed > len(before) / 2


def test_a_frozen_tensor_is_in_the_state_of_its_stage_and_in_what_is_exported(tmp_path):
    name = corrected(tmp_path / "first")
    run = run_of(tmp_path / "first")
    held = [name in {t.name for t in layout_of(run, numbers).tensors} for numbers in stages(run)]
    weights = weights_of(run, tmp_path / "w.safetensors")

    export(weights, tmp_path / "out", 1 << 10)

    assert sum(held) == 1
    ours, theirs = tensors_in(tmp_path / "out"), tensors_in(tmp_path / "first")
    assert torch.equal(ours[name], theirs[name])
    assert difference(ours, theirs) == ""


def stages(run):
    return [stage_blocks(run, stage) for stage in range(run.stages)]


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_what_would_have_a_gradient_stays_too_if_the_library_freezes_it(name, tmp_path):
    """A norm's weight, told to be frozen: neither optimizer moves it, and the sum has none."""
    publish("llama", tmp_path)
    run = dataclasses.replace(run_of(tmp_path), optimizer=OptimizerConfig(name=name, decays="all"))
    whole = whole_model(run.model)
    frozen = "model.layers.0.input_layernorm.weight", "model.layers.0.mlp.up_proj.weight"
    for each in frozen:
        whole.get_parameter(each).requires_grad_(False)
    try:
        trainer = ReferenceTrainer(run)
        places = [t for t in trainer.flat.layout.tensors if t.name in frozen]
        before = [trainer.flat.params_N.detach()[t.start : t.stop].clone() for t in places]
        trainer.add(torch.arange(22).view(2, 11), 0)
        sums = [trainer.flat.sum_N[t.start : t.stop].abs().max() for t in places]
        trainer.commit(0.1)
    finally:
        for each in frozen:
            whole.get_parameter(each).requires_grad_(True)

    assert len(places) == len(frozen)
    assert sums == [0.0, 0.0]
    after = [trainer.flat.params_N.detach()[t.start : t.stop] for t in places]
    assert all(map(torch.equal, before, after))


@pytest.mark.parametrize("tie", [None, False])
def test_ends_that_differ_in_the_files_are_two_tensors_whatever_the_config_says(tie, tmp_path):
    publish("llama", tmp_path / "first")
    config_says(tmp_path / "first", tie_word_embeddings=True)
    tensors = tensors_in(tmp_path / "first")
    assert not torch.equal(tensors[HEAD], tensors[EMBEDDING])

    run = run_of(tmp_path / "first", tie=tie)

    assert run.model.tie is False
    assert starts_as_the_library_does(tmp_path / "first", tmp_path / "w.safetensors")


def test_ends_that_are_alike_in_the_files_stay_one_tensor(tmp_path):
    publish("llama", tmp_path / "first")
    config_says(tmp_path / "first", tie_word_embeddings=True)
    tensors = tensors_in(tmp_path / "first")
    rewritten(tmp_path / "first", tensors | {HEAD: tensors[EMBEDDING].clone()})

    assert run_of(tmp_path / "first").model.tie is True
    assert starts_as_the_library_does(tmp_path / "first", tmp_path / "w.safetensors")


def test_a_tied_model_whose_files_have_the_head_alone_begins_with_that(tmp_path):
    publish("llama", tmp_path / "first")
    config_says(tmp_path / "first", tie_word_embeddings=True)
    tensors = tensors_in(tmp_path / "first")
    del tensors[EMBEDDING]
    rewritten(tmp_path / "first", tensors)

    assert run_of(tmp_path / "first").model.tie is True
    assert starts_as_the_library_does(tmp_path / "first", tmp_path / "w.safetensors")


def test_ends_that_differ_cannot_be_tied_by_the_settings(tmp_path):
    publish("llama", tmp_path)
    config_says(tmp_path, tie_word_embeddings=True)

    with pytest.raises(Unusable, match=r"two tensors that differ: leave it out, or set it to fal"):
        run_of(tmp_path, tie=True)


@pytest.mark.parametrize(
    "name", core_of(["gemma", "gemma2", "gemma3_text", "llama", "gpt2", "granite"], ["gemma2"])
)
def test_in_float64_the_numbers_are_those_of_from_pretrained(name, tmp_path):
    """A width whose root is no number of float32."""
    also = {} if name == "gpt2" else {"hidden_size": 24}
    publish(name, tmp_path / "first", torch.float64, **also)
    run = run_of(tmp_path / "first", "float64")

    ours = scores_of_run(weights_of(run, tmp_path / "w.safetensors"))

    apart = (ours - scores_of_library(tmp_path / "first", torch.float64)).abs().max()
    assert apart < 1e-14  # the order of sums depends on where numbers lie
