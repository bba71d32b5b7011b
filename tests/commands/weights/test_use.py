"""`generate` and `evaluate`, from their command lines to what they print."""

import dataclasses
import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from p2pswarm.base.errors import Unusable
from p2pswarm.command_line import main
from p2pswarm.commands.weights.use import evaluate, shown
from p2pswarm.data.tokenizer import Tokenizer, tokenizer_beside, train_tokenizer
from p2pswarm.models.compute.flat_parameters import named_parameters
from p2pswarm.models.compute.inference import load_model
from p2pswarm.models.compute.reference import ReferenceTrainer
from p2pswarm.node.run.preparation import tokenised_run
from p2pswarm.node.run.weights_file import write_weights
from p2pswarm.settings.config import BatchConfig, ModelConfig, RunConfig
from p2pswarm.settings.objective import ObjectiveConfig
from p2pswarm.settings.parser import load, run_to_json

ROOT = Path(__file__).parents[3]
RUN = RunConfig(model=ModelConfig(d_model=8, layers=1, heads=2, sequence_length=8))


@pytest.fixture
def weights(tmp_path: Path) -> str:
    flat = ReferenceTrainer(RUN).flat
    named = ((name, x.detach()) for name, x in named_parameters(flat.numbers, flat.blocks))
    return str(write_weights(tmp_path / "w.safetensors", named, run_to_json(RUN).decode()).path)


@pytest.fixture
def settings(tmp_path: Path) -> str:
    (tmp_path / "text.txt").write_text("some text to read " * 100)
    (tmp_path / "run.toml").write_text('role = "trainer"\n[train]\ndata = "text.txt"\n')
    return str(tmp_path / "run.toml")


def test_generate_goes_on_from_the_prompt(weights: str, capsys):
    assert main(["generate", weights, "Once upon", "--tokens", "30", "--seed", "3"]) == 0
    first = capsys.readouterr().out
    assert main(["generate", weights, "Once upon", "--tokens", "30", "--top-p", "0"]) == 0
    likeliest = capsys.readouterr().out
    for flags in (["--top-k", "1", "--seed", "7"], ["--temperature", "0"]):
        assert main(["generate", weights, "Once upon", "--tokens", "30", *flags]) == 0
        assert capsys.readouterr().out == likeliest
    main(["generate", weights, "Once upon", "--tokens", "30", "--seed", "3"])

    assert first.startswith("Once upon")
    assert len(first) > len("Once upon\n")
    assert capsys.readouterr().out == first


def test_evaluate_measures_the_held_out_text(weights: str, settings: str, capsys):
    assert main(["evaluate", weights, settings, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)

    assert found["tokens"] == 176  # of 180 bytes, a tenth of the text
    assert found["bits_per_byte"] == pytest.approx(8, rel=0.3)  # nothing was learnt
    assert main(["evaluate", weights, settings, "--tokens", "8"]) == 0
    assert "bits a byte, over 8 bytes" in capsys.readouterr().out


def test_evaluate_reads_pairs_chats_and_text_whatever_the_weights_were_trained_on(
    weights: str, settings: str, tmp_path: Path, capsys
):
    rows = [{"prompt": f"{n}+{n}=", "chosen": f"{2 * n}", "rejected": f"{n}"} for n in range(1, 90)]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    pairs = tmp_path / "pairs.toml"
    cache = f'cache = "{tmp_path / "cache"}"'
    text = f'role = "trainer"\n[train]\ndata = "pairs.jsonl"\n{cache}\n[run]\nobjective = "dpo"\n'
    pairs.write_text(text)
    run = dataclasses.replace(
        RUN,
        objective=ObjectiveConfig(name="simpo"),
        batch=BatchConfig(rows=4, samples="whole"),
    )
    flat = ReferenceTrainer(RUN).flat
    named = ((name, x.detach()) for name, x in named_parameters(flat.numbers, flat.blocks))
    preferring = write_weights(tmp_path / "p.safetensors", named, run_to_json(run).decode()).path

    chats = [{"prompt": f"{n}+{n}=", "completion": f"{2 * n}"} for n in range(1, 90)]
    (tmp_path / "chats.jsonl").write_text("".join(json.dumps(row) + "\n" for row in chats))
    of_chats = tmp_path / "chats.toml"
    of_chats.write_text(f'role = "trainer"\n[train]\ndata = "chats.jsonl"\n{cache}\n')

    found = {}
    for what, file, by in (
        ("a", weights, str(pairs)),
        ("b", str(preferring), settings),
        ("c", weights, str(of_chats)),
    ):
        assert main(["evaluate", file, by, "--json"]) == 0, capsys.readouterr().err
        found[what] = json.loads(capsys.readouterr().out)

    assert 5 < found["a"]["tokens"] < 80  # answers of two digits and a line break
    assert found["b"]["tokens"] > 100
    assert 5 < found["c"]["tokens"] < 80  # completions alone are targets


def test_evaluate_says_how_well_each_text_of_a_mixture_is_predicted(
    weights: str, tmp_path: Path, capsys
):
    (tmp_path / "a.txt").write_text("some text to read " * 100)
    (tmp_path / "b.txt").write_text("1234567890" * 100)
    settings = tmp_path / "run.toml"
    settings.write_text(
        '[[train.mixture]]\ndata = "a.txt"\nweight = 3\n[[train.mixture]]\ndata = "b.txt"\n'
    )

    assert main(["evaluate", weights, str(settings), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    one, other = found["texts"]
    assert [Path(each["data"]).name for each in found["texts"]] == ["a.txt", "b.txt"]
    assert one["tokens"] + other["tokens"] == found["tokens"]
    assert 2 * other["tokens"] < one["tokens"]
    assert min(one["loss"], other["loss"]) < found["loss"] < max(one["loss"], other["loss"])
    assert main(["evaluate", weights, str(settings)]) == 0
    whole, *each = capsys.readouterr().out.splitlines()
    assert whole.startswith("loss ")
    assert [line.split(":")[0].strip() for line in each] == [
        str(tmp_path / "a.txt"),
        str(tmp_path / "b.txt"),
    ]


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        (["generate", "gone.safetensors"], "gone.safetensors: there is no such file"),
        (["evaluate", "gone.safetensors", "run.toml"], "run.toml: cannot be read"),
    ],
)
def test_what_cannot_be_used_is_one_line(flags: list[str], why: str, capsys):
    assert main(flags) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert why in said
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    "flags",
    [
        ["generate", "gone.safetensors"],
        ["evaluate", "gone.safetensors", "run.toml"],
        ["evaluate", "w.safetensors", "gone.toml"],
        ["export", "w.safetensors", "out"],
        ["check-model", "gone.toml"],
    ],
)
def test_a_file_is_looked_for_before_torch_is_loaded(
    weights: str, settings: str, flags: list[str], tmp_path: Path
):
    assert weights.endswith("w.safetensors")
    assert settings.endswith("run.toml")
    (tmp_path / "out").mkdir()
    (tmp_path / "torch.py").write_text("raise SystemExit('torch is loaded')\n")
    program = "import sys; from p2pswarm.command_line import main; sys.exit(main(sys.argv[1:]))"

    found = subprocess.run(
        [sys.executable, "-c", program, *flags],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])},
        capture_output=True,
        text=True,
        check=False,
    )

    assert found.returncode == 2, found.stderr
    assert re.fullmatch("error: [^\n]+\n", found.stderr)


def test_generate_takes_the_name_in_the_settings(weights: str, capsys):
    made = Path(weights).with_name("w-my-run-step-7.safetensors")
    Path(weights).rename(made)

    assert main(["generate", weights, "Once", "--tokens", "3"]) == 0
    assert capsys.readouterr().err == f"weights: {made}\n"


def test_settings_without_text_are_one_line(weights: str, tmp_path: Path, capsys):
    (tmp_path / "run.toml").write_text("")
    assert main(["evaluate", weights, str(tmp_path / "run.toml")]) == 2
    assert "train.data is missing" in capsys.readouterr().err


@pytest.mark.parametrize("temperature", ["-1", "nan", "hot"])
def test_a_temperature_that_is_none_is_refused(temperature: str, capsys):
    with pytest.raises(SystemExit):
        main(["generate", "w", f"--temperature={temperature}"])
    assert "is no number from 0 to 100" in capsys.readouterr().err


def test_what_a_model_writes_moves_no_cursor():
    assert shown("a\n\tb\x1b[2J\r") == "a\n\tb\ufffd[2J\ufffd"


TOKENIZER = train_tokenizer(300, [Path(__file__).read_bytes()])


@pytest.fixture
def token_weights(tmp_path: Path) -> Path:
    run = tokenised_run(RUN, TOKENIZER)
    flat = ReferenceTrainer(run).flat
    named = ((name, x.detach()) for name, x in named_parameters(flat.numbers, flat.blocks))
    path = write_weights(tmp_path / "w.safetensors", named, run_to_json(run).decode()).path
    tokenizer_beside(path).write_text(TOKENIZER.text)
    return path


def test_tokens_become_text_again(token_weights: Path, capsys):
    assert main(["generate", str(token_weights), "Once", "--tokens", "30", "--seed", "3"]) == 0
    assert len(capsys.readouterr().out) > len("Once\n")


def test_a_text_that_the_model_ends_ends(token_weights: Path):
    model = load_model(token_weights)
    model.run = dataclasses.replace(
        model.run, model=dataclasses.replace(model.run.model, document_end=_first(model))
    )

    assert list(model.generate("Once", temperature=0)) == []


def _first(model) -> int:
    return next(model.generate("Once", temperature=0))


def test_a_prompt_begins_as_documents_did(token_weights: Path, monkeypatch):
    model, seen = load_model(token_weights), []
    begins = dataclasses.replace(model.run.model, document_begin=9)
    model.run = dataclasses.replace(model.run, model=begins)
    scores = model.scores

    def watched(tokens_BT):  # noqa: N803
        seen.append(tokens_BT[0].tolist())
        return scores(tokens_BT)

    monkeypatch.setattr(model, "scores", watched)
    for prompt in ("Once", ""):
        next(model.generate(prompt, temperature=0))

    assert seen == [[9, *model.tokenizer.encode([b"Once"])[0].tolist()], [9]]


def test_bits_a_byte_count_bytes_and_not_tokens(token_weights: Path, settings: str, capsys):
    assert main(["evaluate", str(token_weights), settings, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    held_out = b"some text to read " * 10
    per_token = len(held_out) / (len(TOKENIZER.encode([held_out])[0]) + 1)

    bits = found["loss"] / math.log(2)
    assert found["bits_per_byte"] == pytest.approx(bits / per_token, rel=1e-6)
    main(["evaluate", str(token_weights), settings])
    assert "nats a token" in capsys.readouterr().out


def test_a_tokenizer_that_is_gone_or_another_is_one_line(token_weights: Path, capsys):
    tokenizer_beside(token_weights).write_text(train_tokenizer(301, [b"abc"]).text)
    assert main(["generate", str(token_weights), "a"]) != 0
    assert "not the tokenizer that these weights were trained with" in capsys.readouterr().err

    tokenizer_beside(token_weights).unlink()
    assert main(["generate", str(token_weights), "a"]) != 0
    assert "put the file that the run wrote beside its weights" in capsys.readouterr().err


def test_the_average_of_weights_has_the_tokenizer_of_the_run(token_weights: Path):
    average = token_weights.with_stem(f"{token_weights.stem}-average")
    token_weights.rename(average)

    assert load_model(average).tokenizer.digest == TOKENIZER.digest


def test_the_held_out_text_has_the_end_that_the_run_was_trained_with(
    token_weights: Path, settings: str, tmp_path: Path
):
    run = tokenised_run(RUN, TOKENIZER.ending_with(7))
    flat = ReferenceTrainer(run).flat
    named = ((name, x.detach()) for name, x in named_parameters(flat.numbers, flat.blocks))
    path = write_weights(tmp_path / "other.safetensors", named, run_to_json(run).decode()).path
    token_weights.with_name("w.tokenizer.json").rename(tokenizer_beside(path))

    model = load_model(path)
    assert model.tokenizer.end == 7
    config = load(Path(settings))
    first = evaluate(path, Path(settings), config, 1000, lambda _line: None).whole.loss
    assert first == pytest.approx(by_hand(model, b"some text to read " * 10), rel=1e-6)


def by_hand(model, text: bytes) -> float:
    """The loss on a text in windows of the model's length, each token at most once."""
    tokens = [*model.tokenizer.encode([text])[0].tolist(), model.run.model.document_end]
    length = model.run.model.sequence_length
    starts = range(0, (len(tokens) - 1) // length * length, length)
    windows = [torch.tensor([tokens[start : start + length + 1]]) for start in starts]
    return sum(model.nats(window) for window in windows) / (len(windows) * length)


def test_a_prompt_without_tokens_is_one_line(token_weights: Path):
    model = load_model(token_weights)
    word = {"type": "WordLevel", "vocab": {"word": 0}, "unk_token": "word"}
    model.tokenizer = Tokenizer(
        json.dumps({"model": word, "pre_tokenizer": {"type": "Whitespace"}}), "here"
    )
    model.run = dataclasses.replace(
        model.run, model=dataclasses.replace(model.run.model, document_end=-1)
    )

    with pytest.raises(Unusable, match="the prompt has no tokens"):
        next(model.generate(""))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_spoilt_weights_are_one_line(weights: str, temperature: float):
    model = load_model(weights)
    with torch.no_grad():
        next(model.blocks[-1].parameters()).fill_(math.nan)

    with pytest.raises(Unusable, match="its weights are spoilt"):
        next(model.generate("a", temperature=temperature))
