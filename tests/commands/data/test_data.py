"""`p2pswarm data`, from its command line to what it prints."""

import json
from pathlib import Path

import pytest
from data.chats.chat_folders import make

from p2pswarm.command_line import main
from p2pswarm.data.tokenizer import Tokenizer, train_tokenizer

LINES = [f"line {number} of a text about cats and hats" for number in range(900)]
ROWS = 4


def settings(folder: Path, train: str, samples: str = "drawn") -> str:
    (folder / "run.toml").write_text(
        f'role = "trainer"\n[train]\ncache = "cache"\n{train}\n[run.batch]\nrows = {ROWS}\n'
        f'samples = "{samples}"\n[run.model]\nsequence_length = 24\n'
    )
    return str(folder / "run.toml")


@pytest.fixture
def text(tmp_path: Path) -> Path:
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.txt").write_text("\n".join(LINES))
    (tmp_path / "texts" / "b.bin").write_bytes(b"\0" * 9)
    return tmp_path


@pytest.fixture
def tokenizer(tmp_path: Path) -> Tokenizer:
    made = train_tokenizer(320, [Path(__file__).read_bytes()])
    (tmp_path / "tokenizer.json").write_text(made.text)
    return made


def told(capsys, *flags: str) -> dict:
    assert main(["data", *flags, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_text_is_told_with_its_files_its_sides_and_what_is_passed_over(text: Path, capsys):
    assert main(["data", settings(text, 'data = "texts"'), "--show", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()

    size = len("\n".join(LINES))
    assert lines[0] == f"{text}/texts: 1 file of {size:,} bytes (a.txt); a file is a document"
    assert lines[1] == f"  {text}/texts: passed over: 1 binary (b.bin)"
    assert lines[2].startswith("  to train on: ")
    assert lines[2].endswith("% of the bytes, 10.0% was asked)")
    assert "tokens: bytes, 256 of them; a document ends with a line break" in lines
    assert [line for line in lines if line.startswith("row ")] == [
        f"row {number}: 25 tokens" for number in range(2)
    ]


def test_sides_are_counted_in_rows_and_bytes(tmp_path: Path, capsys):
    rows = "".join(json.dumps({"text": line}) + "\n" for line in LINES)
    (tmp_path / "a.jsonl").write_text(rows)
    (found,) = told(capsys, settings(tmp_path, 'data = "*.jsonl"'))["texts"]

    assert found["kind"] == "a row"
    assert found["train"]["documents"] + found["held_out"]["documents"] == len(LINES)
    assert 60 < found["held_out"]["documents"] < 120
    both = found["train"]["text_bytes"] + found["held_out"]["text_bytes"]
    assert both == sum(map(len, LINES))
    assert found["file_bytes"] == len(rows)


@pytest.mark.parametrize("samples", ["drawn", "once", "packed", "streamed"])
def test_rows_are_the_runs_and_parted_where_documents_end(tmp_path, tokenizer, samples, capsys):
    rows = "".join(json.dumps({"text": f"{line}\n"}) + "\n" for line in LINES)
    (tmp_path / "a.jsonl").write_text(rows)
    file = settings(tmp_path, 'data = "*.jsonl"\ntokenizer = "tokenizer.json"', samples)
    found = told(capsys, file, "--show", "9")

    assert (found["end"], found["end_text"], found["vocabulary"]) == (0, "<|endoftext|>", 320)
    assert len(found["rows"]) == 9
    for row in found["rows"]:
        assert len(row["tokens"]) == 25
        assert len(row["documents"]) == 1 + row["tokens"].count(0)
        for document in row["documents"][1:-1]:
            assert samples == "packed" or document.rstrip("\n") in LINES
    whole = found["texts"][0]["train"]
    assert whole is None if samples == "streamed" else whole["documents"] > 700
    assert main(["data", file, "--show", "9"]) == 0
    printed = capsys.readouterr().out
    ends = sum(row["tokens"].count(0) for row in found["rows"])
    assert printed.count("= '<|endoftext|>', token 0 ends a document") == ends > 0


def test_what_is_guessed_of_a_tokenizer_is_told(text: Path, tokenizer, capsys):
    file = settings(text, 'data = "texts"\ntokenizer = "tokenizer.json"')

    (remark,) = told(capsys, file)["remarks"]
    assert remark.endswith(
        "'<|endoftext|>' is taken; eos_token in tokenizer_config.json would say it"
    )


def test_each_text_of_a_mixture_is_told(text: Path, capsys):
    rows = [json.dumps({"text": f"some other text {number}"}) for number in range(300)]
    (text / "b.jsonl").write_text("\n".join(rows))
    parts = '[[train.mixture]]\ndata = "texts"\n[[train.mixture]]\ndata = "*.jsonl"\nweight = 3\n'
    (text / "run.toml").write_text(
        f'role = "trainer"\n[train]\nheld_out_share = 0.5\ncache = "cache"\n{parts}'
    )
    kinds = [each["kind"] for each in told(capsys, str(text / "run.toml"))["texts"]]

    assert kinds == ["a file", "a row"]


@pytest.mark.parametrize(
    ("train", "why"),
    [
        ("", "train.data is missing"),
        ('data = "gone"', "there is no such file"),
        ('data = "texts"\ntokenizer = "gone"', "there is no such folder"),
    ],
)
def test_settings_that_cannot_be_used_are_one_line(text: Path, train: str, why: str, capsys):
    assert main(["data", settings(text, train)]) == 2
    error = capsys.readouterr().err
    assert why in error
    assert error.count("\n") == 1


def test_packed_rows_need_an_end(text: Path, capsys):
    assert main(["data", settings(text, 'data = "texts"', "packed")]) == 2
    assert 'samples = "packed" needs a token that ends a document' in capsys.readouterr().err


def test_targets_of_chats_are_told_and_shown(tmp_path: Path, capsys):
    make(tmp_path / "tokenizer")
    rows = [
        {
            "messages": [
                {"role": "user", "content": f"What is {n} + 1?"},
                {"role": "assistant", "content": f"It is \x1b[31m\n{n + 1}."},
            ]
        }
        for n in range(60)
    ]
    (tmp_path / "chats.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    train = 'data = "chats.jsonl"\ntokenizer = "tokenizer"'
    path = settings(tmp_path, train)
    text = (
        (tmp_path / "run.toml").read_text().replace("sequence_length = 24", "sequence_length = 63")
    )
    (tmp_path / "run.toml").write_text(text)

    found = told(capsys, path, "--show", "1")
    assert main(["data", path, "--show", "1"]) == 0
    lines = capsys.readouterr().out.splitlines()

    (row,) = found["rows"]
    assert len(row["tokens"]) == len(row["targets"]) == 64
    assert 0 < sum(row["targets"]) < 63
    assert (
        found["texts"][0]["train"]["documents"] + found["texts"][0]["held_out"]["documents"] == 60
    )
    assert f"row 0: 64 tokens, {sum(row['targets'])} targets (⟦so⟧)" in lines
    assert "  | <|im_start|>assistant" in lines
    assert "  | ⟦It is ?[31m⟧" in lines
    assert any(line.startswith("  | ⟦") and line.endswith(".<|im_end|>⟧") for line in lines)
