"""An adapter leaves as PEFT's folder, or merged into the weights of its base."""

import dataclasses
import json
from pathlib import Path

import pytest
import torch
from data.chats.chat_folders import make, read
from models.families import family_run
from safetensors.torch import load_file, save_file

from p2pswarm.base.errors import Unusable
from p2pswarm.command_line import main
from p2pswarm.commands.weights.export_folder import export
from p2pswarm.data.chats.template import read_template, template_beside
from p2pswarm.data.tokenizer import read_tokenizer, tokenizer_beside
from p2pswarm.models.adapters.adapter_folder import (
    CONFIG_FILE,
    PREFIX,
    WEIGHTS_FILE,
    read_adapter,
    read_adapter_config,
)
from p2pswarm.models.check.model_check import fill_factors
from p2pswarm.models.compute.flat_parameters import named_parameters
from p2pswarm.models.compute.inference import load_model
from p2pswarm.models.compute.reference import ReferenceTrainer
from p2pswarm.models.library.hf_library import library, library_model
from p2pswarm.models.model_source import resolved
from p2pswarm.settings.adapter_config import AdapterConfig
from p2pswarm.settings.config import ModelConfig, RunConfig
from p2pswarm.settings.parser import run_to_json

TOKENS_BT = torch.arange(16).view(2, 8)


@pytest.fixture(scope="module", params=["llama", "gpt2", "mixtral"])
def family(request) -> str:
    return request.param


@pytest.fixture(scope="module")
def trained(family: str, tmp_path_factory) -> tuple[Path, Path, RunConfig]:
    """A file of trained weights, the folder of its base, and its run."""
    place = tmp_path_factory.mktemp(family)
    folder = place / "base"
    config = json.loads(family_run(family, vocab_size=256).model.config)
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    model = ModelConfig(family="hf", folder=folder, sequence_length=8)
    bare = library_model(resolved(RunConfig(model=model)).model, torch.float32)
    bare.save_pretrained(folder)
    adapter = AdapterConfig(rank=2, alpha=4.0)
    run = resolved(RunConfig(model=model, start="pretrained", adapter=adapter, stages=1))
    flat = ReferenceTrainer(run).flat
    fill_factors(flat)
    named = {name: x.detach().clone() for name, x in named_parameters(flat.numbers, flat.blocks)}
    path = place / "weights.safetensors"
    save_file(named, path, metadata={"run": run_to_json(run).decode()})
    return path, folder, run


def test_the_folder_has_the_names_of_peft(trained, tmp_path) -> None:
    weights, base, run = trained
    out = tmp_path / "out"
    export(weights, out, 100, base=str(base))

    config, tensors = read_adapter_config(out), load_file(out / WEIGHTS_FILE)
    own = load_file(weights)
    assert tensors.keys() == {f"{PREFIX}{name}" for name in own}
    assert all(torch.equal(tensors[f"{PREFIX}{name}"], x) for name, x in own.items())
    assert config["base_model_name_or_path"] == str(base)
    assert (config["r"], config["lora_alpha"]) == (2, 4)
    chosen = {*config["target_modules"], *(config["target_parameters"] or ())}
    assert chosen == set(run.adapter.targets)
    assert config["fan_in_fan_out"] == ("gpt2" in run.model.family)
    assert "PeftModel" in (out / "README.md").read_text()


def test_an_adapter_of_a_model_from_a_folder_says_that_it_names_none(
    trained, tmp_path, caplog
) -> None:
    weights, _, _ = trained
    out = tmp_path / "out"
    export(weights, out, 100)

    assert "--base names it" in caplog.text
    assert read_adapter_config(out)["base_model_name_or_path"] == ""
    assert 'from_pretrained("THE MODEL THAT THE RUN BEGAN WITH"' in (out / "README.md").read_text()


@pytest.mark.parametrize("flags", [["--dtype", "bfloat16"], ["--like", "/nowhere"]])
def test_what_is_for_whole_models_is_refused_of_an_adapter(trained, tmp_path, flags, capsys):
    weights, _, _ = trained

    assert main(["export", str(weights), str(tmp_path / "out"), *flags]) == 2

    assert f"{flags[0]} is for whole models: say --merge too" in capsys.readouterr().err


def test_tokenizer_and_template_go_along(trained, tmp_path) -> None:
    weights, base, run = trained
    tokenizer, template = read(make(tmp_path / "tokenizer"))
    model = dataclasses.replace(run.model, tokenizer=tokenizer.digest, document_end=4)
    about = run_to_json(dataclasses.replace(run, model=model)).decode()
    path, out = tmp_path / "weights.safetensors", tmp_path / "out"
    save_file(load_file(weights), path, metadata={"run": about})
    tokenizer_beside(path).write_text(tokenizer.text)
    template_beside(path).write_text(template.as_json)

    export(path, out, 100, base=str(base))

    assert read_template(out, None).text == template.text
    assert read_tokenizer(out).makes_tokens_as(tokenizer)
    assert "tokenizer = AutoTokenizer" in (out / "README.md").read_text()


def test_merged_weights_give_the_same_scores_in_the_library(trained, tmp_path) -> None:
    weights, base, _ = trained
    out = tmp_path / "out"
    export(weights, out, 100, base=str(base), merges=True)

    theirs = library().AutoModelForCausalLM.from_pretrained(out)
    with torch.no_grad():
        scores = theirs(input_ids=TOKENS_BT).logits
    ours = load_model(weights, base=base).scores(TOKENS_BT)
    torch.testing.assert_close(scores, ours, atol=1e-4, rtol=0.0)  # sums in another order


def test_rounding_says_what_it_loses(trained, tmp_path, caplog) -> None:
    weights, base, _ = trained
    export(weights, tmp_path / "out", 100, base=str(base), merges=True, dtype="bfloat16")
    assert "rounding to bfloat16 loses" in caplog.text
    tensors = load_file(tmp_path / "out" / "model.safetensors")
    assert {x.dtype for x in tensors.values()} == {torch.bfloat16}


@pytest.mark.parametrize("damage", ["name", "missing", "shape"])
def test_a_damaged_adapter_is_named(trained, tmp_path, damage: str) -> None:
    weights, base, _ = trained
    out = tmp_path / "out"
    export(weights, out, 100, base=str(base))
    tensors = load_file(out / WEIGHTS_FILE)
    shapes = {name.removeprefix(PREFIX): x.shape for name, x in tensors.items()}
    name = min(tensors)
    tensor = tensors.pop(name)
    if damage == "name":
        tensors[name.replace("lora_A", "lora_a")] = tensor
    elif damage == "shape":
        tensors[name] = tensor[:1].clone()
    save_file(tensors, out / WEIGHTS_FILE)
    said = {"name": "is no tensor of this adapter", "missing": "is missing", "shape": "is due"}
    with pytest.raises(Unusable, match=said[damage]) as caught:
        read_adapter(out, shapes)
    assert "\n" not in str(caught.value)


def test_another_kind_of_adapter_is_refused(tmp_path) -> None:
    (tmp_path / CONFIG_FILE).write_text('{"peft_type": "LOHA"}')
    with pytest.raises(Unusable, match="peft_type is not LORA"):
        read_adapter_config(tmp_path)
    (tmp_path / CONFIG_FILE).write_text('{"peft_type": "LORA", "use_dora": true}')
    with pytest.raises(Unusable, match="use_dora is not known here"):
        read_adapter_config(tmp_path)


def test_weights_without_their_base_say_what_to_name(trained) -> None:
    weights, _, _ = trained
    with pytest.raises(Unusable, match=r"stand on .*, which is not in their file: say --base"):
        load_model(weights)
    with pytest.raises(Unusable, match="hf:x/y is not what these weights stand on"):
        load_model(weights, base="hf:x/y")


def test_whole_weights_have_nothing_to_merge(tmp_path) -> None:
    run = RunConfig(model=ModelConfig(d_model=16, heads=2, layers=1, sequence_length=8))
    flat = ReferenceTrainer(run).flat
    named = {name: x.detach().clone() for name, x in named_parameters(flat.numbers, flat.blocks)}
    path = tmp_path / "weights.safetensors"
    save_file(named, path, metadata={"run": run_to_json(run).decode()})
    with pytest.raises(Unusable, match="is no adapter: leave --merge out"):
        export(path, tmp_path / "out", 100, merges=True)


@pytest.fixture(scope="module")
def packed(tmp_path_factory) -> Path:
    """Weights of an adapter beside a base in 4 bits."""
    model = ModelConfig(d_model=16, heads=2, layers=2, sequence_length=8)
    run = resolved(RunConfig(model=model, base="nf4", adapter=AdapterConfig(rank=2), stages=1))
    flat = ReferenceTrainer(run).flat
    fill_factors(flat)
    named = {name: x.detach().clone() for name, x in named_parameters(flat.numbers, flat.blocks)}
    path = tmp_path_factory.mktemp("packed") / "weights.safetensors"
    save_file(named, path, metadata={"run": run_to_json(run).decode()})
    return path


def loss_of(model) -> float:
    return model.evaluate([torch.arange(16).view(2, 8)]).loss


@pytest.mark.parametrize("original", [False, True])
def test_both_bases_of_a_quantised_run_are_measured(packed, tmp_path, caplog, original) -> None:
    out = tmp_path / "out"
    export(packed, out, 100, merges=True, original=original, measure=loss_of)

    beside, dense = (loss_of(load_model(packed, original=each)) for each in (False, True))
    assert abs(beside - dense) > 1e-4
    told = [line for line in caplog.messages if "loss" in line]
    places = "merged into the base that it was trained beside", "merged into the original weights"
    ours, other = reversed(places) if original else places
    first, second = (dense, beside) if original else (beside, dense)
    assert told == [
        f"{ours} (written): loss {first:.4f}",
        f"{other} (not written): loss {second:.4f}",
    ]
    written = load_model(out)
    assert written.run.adapter is None
    assert loss_of(written) == pytest.approx(first, abs=1e-6)


def test_the_losses_are_of_the_text_that_the_settings_hold_out(packed, tmp_path, capsys) -> None:
    (tmp_path / "text.txt").write_text("some text to learn\n" * 400)
    (tmp_path / "run.toml").write_text("[train]\ndata = 'text.txt'\n")
    flags = ["--merge", "--measure", str(tmp_path / "run.toml")]

    assert main(["export", str(packed), str(tmp_path / "out"), *flags]) == 0

    said = capsys.readouterr()
    assert "held out" in said.err
    assert "README.md" in said.out
    assert main(["export", str(packed), str(tmp_path / "two"), "--into-original"]) == 2
    assert "--into-original is for --merge: add that" in capsys.readouterr().err
