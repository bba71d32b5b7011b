"""A run's weights as a folder: what `from_pretrained` and `p2pswarm.load` make of it."""

import dataclasses
import json
from pathlib import Path

import pytest
import torch
from models.families import family_run, tied_run
from safetensors import safe_open
from torch import nn

from p2pswarm.command_line import main
from p2pswarm.data.tokenizer import tokenizer_beside, train_tokenizer
from p2pswarm.models.compute.flat_parameters import named_parameters
from p2pswarm.models.compute.inference import load_model
from p2pswarm.models.compute.reference import ReferenceTrainer
from p2pswarm.models.library.hf_library import library
from p2pswarm.models.registry import register
from p2pswarm.node.run.preparation import tokenised_run
from p2pswarm.node.run.weights_file import write_weights
from p2pswarm.settings.config import ModelConfig, RunConfig
from p2pswarm.settings.parser import run_to_json

TOKENIZER = train_tokenizer(300, [Path(__file__).read_bytes()])
OF_PACKAGE = """
from torch import nn

def make(config):
    return [nn.Embedding(config.vocabulary, 8), nn.Linear(8, config.vocabulary)]
"""
OWN = RunConfig(model=ModelConfig(d_model=8, layers=1, heads=2, sequence_length=8))


def tiny(name: str, **also: int) -> RunConfig:
    run = family_run(name, vocab_size=TOKENIZER.size, **also)
    return dataclasses.replace(run, model=dataclasses.replace(run.model, vocabulary=TOKENIZER.size))


def written(run: RunConfig, folder: Path, tokenizer=None) -> Path:
    flat = ReferenceTrainer(run).flat
    named = ((name, x.detach()) for name, x in named_parameters(flat.numbers, flat.blocks))
    path = write_weights(folder / "w.safetensors", named, run_to_json(run).decode()).path
    if tokenizer is not None:
        tokenizer_beside(path).write_text(tokenizer.text)
    return path


@pytest.mark.parametrize(
    "name", ["llama", "gpt2", "qwen3 with sliding layers", "gemma2", "mixtral"]
)
def test_from_pretrained_computes_the_same_scores(name: str, tmp_path: Path, capsys):
    run = tiny(name)
    weights = written(run, tmp_path)
    tokens = torch.arange(10).reshape(1, 10)

    assert main(["export", str(weights), str(tmp_path / "out")]) == 0
    theirs = library().AutoModelForCausalLM.from_pretrained(
        tmp_path / "out", dtype=getattr(torch, run.model.dtype), local_files_only=True
    )
    with torch.no_grad():
        scores = theirs.eval()(tokens, use_cache=False).logits
    assert torch.allclose(scores, load_model(weights).scores(tokens), atol=1e-5)
    assert "README.md shows how to load it" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_a_tied_model_is_exported_with_one_tensor(name: str, tmp_path: Path):
    run = tied_run(name, vocab_size=TOKENIZER.size)
    run = dataclasses.replace(run, model=dataclasses.replace(run.model, vocabulary=TOKENIZER.size))
    weights = written(run, tmp_path)
    tokens = torch.arange(10).reshape(1, 10)

    assert main(["export", str(weights), str(tmp_path / "out")]) == 0

    assert json.loads((tmp_path / "out" / "config.json").read_text())["tie_word_embeddings"]
    with safe_open(tmp_path / "out" / "model.safetensors", "pt") as file:
        assert "lm_head.weight" not in file.keys()  # noqa: SIM118  no mapping
    theirs = library().AutoModelForCausalLM.from_pretrained(
        tmp_path / "out", dtype=torch.float64, local_files_only=True
    )
    assert theirs.get_input_embeddings().weight is theirs.get_output_embeddings().weight
    with torch.no_grad():
        scores = theirs.eval()(tokens, use_cache=False).logits
    assert torch.allclose(scores, load_model(weights).scores(tokens), atol=1e-12)


@pytest.mark.parametrize("name", ["llama", "gemma2"])
def test_weights_kept_in_bfloat16_are_exported_as_they_are(name: str, tmp_path: Path):
    run = tiny(name)
    model = dataclasses.replace(run.model, dtype="float32")
    run = dataclasses.replace(run, model=model, precision="bf16", weight_storage="bf16")
    weights = written(run, tmp_path)
    tokens = torch.arange(10).reshape(1, 10)

    assert main(["export", str(weights), str(tmp_path / "out")]) == 0
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert "bfloat16" in (config.get("dtype"), config.get("torch_dtype"))
    found = library().AutoModelForCausalLM.from_pretrained(
        tmp_path / "out", dtype=torch.float32, local_files_only=True
    )
    with torch.no_grad():
        scores = found.eval()(tokens, use_cache=False).logits
    assert torch.allclose(scores, load_model(weights).scores(tokens), atol=1e-5)


def test_a_tokenizer_goes_along(tmp_path: Path):
    run = tiny("llama")
    weights = written(tokenised_run(run, TOKENIZER), tmp_path, TOKENIZER)

    assert main(["export", str(weights), str(tmp_path / "out")]) == 0
    theirs = library().AutoTokenizer.from_pretrained(tmp_path / "out", local_files_only=True)
    text = "some text, né à Zürich"
    assert theirs(text)["input_ids"] == TOKENIZER.encode([text.encode()])[0].tolist()
    assert theirs.eos_token_id == TOKENIZER.end
    assert "AutoTokenizer" in (tmp_path / "out" / "README.md").read_text()


@pytest.mark.parametrize(
    ("name", "reader"), [("llama", "AutoTokenizer"), ("qwen2", "PreTrainedTokenizerFast")]
)
def test_the_readme_names_what_reads_the_tokenizer_as_the_run_did(name, reader, tmp_path, caplog):
    run = tokenised_run(tiny(name), TOKENIZER)
    weights = written(run, tmp_path, TOKENIZER)

    assert main(["export", str(weights), str(tmp_path / "out")]) == 0
    readme = (tmp_path / "out" / "README.md").read_text()
    assert f"tokenizer = {reader}.from_pretrained" in readme
    assert f"import AutoModelForCausalLM, {reader}\n" in readme
    theirs = getattr(library(), reader).from_pretrained(tmp_path / "out", local_files_only=True)
    for text in ("def test(x):\n\n    assert  x\r\n", "né à Zürich e\u0301", "12345"):
        assert theirs(text)["input_ids"] == TOKENIZER.encode([text.encode()])[0].tolist()
    assert len(caplog.messages) == (reader != "AutoTokenizer")


def test_large_models_are_written_in_parts(tmp_path: Path):
    run = tiny("llama", hidden_size=256, intermediate_size=512)
    weights = written(run, tmp_path)

    assert main(["export", str(weights), str(tmp_path / "out"), "--shard-mib", "1"]) == 0
    index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    assert len(set(index["weight_map"].values())) > 1
    assert library().AutoModelForCausalLM.from_pretrained(tmp_path / "out", local_files_only=True)


def test_a_model_of_ours_is_loaded_as_its_readme_shows(tmp_path: Path, monkeypatch, capsys):
    weights = written(tokenised_run(OWN, TOKENIZER), tmp_path, TOKENIZER)
    assert main(["export", str(weights), str(tmp_path / "deep" / "out")]) == 0
    capsys.readouterr()
    readme = (tmp_path / "deep" / "out" / "README.md").read_text()
    program = readme.partition("```python\n")[2].partition("```")[0]

    monkeypatch.chdir(tmp_path / "deep" / "out")
    exec(compile(program, "README.md", "exec"), {})
    assert capsys.readouterr().out
    assert load_model("model.safetensors").tokenizer.digest == TOKENIZER.digest


def test_modules_at_cuts_stay_in_our_file_and_the_library_gets_none(tmp_path: Path, capsys):
    modules = {"boundary": "projector", "boundary_width": 4}
    ours = dataclasses.replace(OWN, model=dataclasses.replace(OWN.model, **modules))
    llama = tiny("llama")
    theirs = dataclasses.replace(llama, model=dataclasses.replace(llama.model, **modules))
    tokens = torch.arange(8).reshape(1, 8)
    (tmp_path / "theirs").mkdir()

    weights = written(ours, tmp_path)
    assert main(["export", str(weights), str(tmp_path / "out")]) == 0
    assert main(["generate", str(weights), "--tokens", "2"]) == 0
    refused = written(theirs, tmp_path / "theirs")
    capsys.readouterr()
    assert main(["export", str(refused), str(tmp_path / "no")]) == 2

    exported = load_model(tmp_path / "out")
    assert torch.equal(exported.scores(tokens), load_model(weights).scores(tokens))
    said = capsys.readouterr().err
    assert "which transformers cannot load: p2pswarm.load, evaluate and generate take" in said
    assert said.count("\n") == 1
    assert load_model(refused).scores(tokens).isfinite().all()
    assert not (tmp_path / "no").exists()


def test_a_model_of_a_package_is_used_by_who_trusts_it(tmp_path: Path, monkeypatch, capsys):
    name = f"own_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(OF_PACKAGE)
    (tmp_path / "run.toml").write_text(
        f'[train]\ndata = "{__file__}"\n[run]\nmodel = "{name}:make"'
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    model = ModelConfig(family=f"{name}:make", package=name, d_model=8, sequence_length=8)
    monkeypatch.setattr("p2pswarm.models.registry._trusted", {name})
    weights = str(written(RunConfig(model=model), tmp_path))
    out = str(tmp_path / "out")

    for trusted in (["generate", weights], ["export", weights, out]):
        monkeypatch.setattr("p2pswarm.models.registry._trusted", set())
        assert main(trusted) == 2
        assert f"if you trust it, say --package {name}, or p2pswarm.load" in capsys.readouterr().err
        assert main([*trusted, "--package", name]) == 0
    monkeypatch.setattr("p2pswarm.models.registry._trusted", set())
    assert main(["evaluate", weights, str(tmp_path / "run.toml"), "--tokens", "100"]) == 0
    monkeypatch.setattr("p2pswarm.models.registry._trusted", set())
    monkeypatch.chdir(out)
    program = Path("README.md").read_text().partition("```python\n")[2].partition("```")[0]
    exec(compile(program, "README.md", "exec"), {})


def test_what_is_there_is_kept_and_what_fails_leaves_nothing(tmp_path: Path, capsys):
    weights = written(OWN, tmp_path)
    (tmp_path / "out").mkdir()

    assert main(["export", str(weights), str(tmp_path / "out")]) == 2
    assert "is there already, and is kept" in capsys.readouterr().err
    (tmp_path / "file").touch()
    assert main(["export", str(weights), str(tmp_path / "file" / "out")]) == 2
    assert "cannot be written" in capsys.readouterr().err
    assert main(["export", str(tmp_path / "gone"), str(tmp_path / "new")]) == 2
    assert sorted(x.name for x in tmp_path.iterdir()) == ["file", "out", "w.safetensors"]


def test_what_ended_a_document_ends_a_text(tmp_path: Path):
    run = tokenised_run(tiny("llama"), TOKENIZER.ending_with(7))
    weights = written(run, tmp_path, TOKENIZER)

    assert main(["export", str(weights), str(tmp_path / "out")]) == 0
    theirs = library().AutoTokenizer.from_pretrained(tmp_path / "out", local_files_only=True)
    assert theirs.eos_token_id == load_model(weights).tokenizer.end == 7


@pytest.mark.parametrize(
    ("said", "end", "kept"), [(7, 7, 7), ([9, 7], 7, [9, 7]), (9, 7, 7), (9, -1, None)]
)
def test_the_config_names_the_end_that_the_run_had(said, end, kept, tmp_path: Path):
    run = tiny("llama", eos_token_id=said, bos_token_id=1)
    weights = written(tokenised_run(run, TOKENIZER.ending_with(end)), tmp_path, TOKENIZER)

    assert main(["export", str(weights), str(tmp_path / "out")]) == 0
    for name in ("config.json", "generation_config.json"):
        config = json.loads((tmp_path / "out" / name).read_text())
        assert config.get("eos_token_id") == kept
        assert config.get("bos_token_id") == (1 if kept == said else None)
    assert library().AutoModelForCausalLM.from_pretrained(tmp_path / "out", local_files_only=True)


def test_the_readme_of_a_registered_model_names_what_to_import(tmp_path: Path):
    register("exported")(lambda config: [nn.Embedding(256, 8), nn.Linear(8, 256)])
    run = dataclasses.replace(OWN, model=dataclasses.replace(OWN.model, family="exported"))

    assert main(["export", str(written(run, tmp_path)), str(tmp_path / "out")]) == 0
    assert (
        "import YOUR_MODULE  # the one that registers the family 'exported'"
        in (tmp_path / "out" / "README.md").read_text()
    )


def test_what_belongs_to_the_tokenizer_goes_along_from_the_first_model(tmp_path: Path, capsys):
    weights = written(tokenised_run(tiny("llama"), TOKENIZER), tmp_path, TOKENIZER)
    first = tmp_path / "first"
    first.mkdir()
    (first / "tokenizer.json").write_text(TOKENIZER.text)
    (first / "tokenizer_config.json").write_text(
        '{"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|endoftext|>"}'
    )
    (first / "chat_template.jinja").write_text("{{ messages[0].content }}!")
    (first / "model.safetensors").write_text("stays there")
    export = ["export", str(weights), "--like", str(first)]

    assert main([*export, str(tmp_path / "out")]) == 0
    theirs = library().AutoTokenizer.from_pretrained(tmp_path / "out", local_files_only=True)
    said = [{"role": "user", "content": "hello"}]
    assert theirs.apply_chat_template(said, tokenize=False) == "hello!"

    (first / "tokenizer.json").write_text(train_tokenizer(301, [b"abc"]).text)
    assert main([*export, str(tmp_path / "other")]) == 2
    assert "its tokenizer is not the run's" in capsys.readouterr().err
    (first / "tokenizer.json").unlink()
    assert main([*export, str(tmp_path / "other")]) == 2
    assert "no tokenizer.json in it: name the first model's folder" in capsys.readouterr().err
    assert not (tmp_path / "other").exists()
