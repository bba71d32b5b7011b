"""A folder of a tokenizer is read as AutoTokenizer of transformers reads it, or refused by name."""

import json
import sys
from pathlib import Path

import pytest
from core import core_of
from data.tokenizer_folders import END, KINDS, PLAIN, compared, make

from p2pswarm.base.errors import Unusable
from p2pswarm.data.tokenizer import Tokenizer, kept_tokenizer, read_tokenizer, tokenizer_of_run

pytest.importorskip("transformers")
REFUSED = {"code of the folder": "its tokenizer is code of the folder, which is not run"}
CORE = {
    "class GPT2Tokenizer",
    "class T5Tokenizer",
    "plain pieces",
    "prefix space of GPT2",
    "no prefix space of Llama",
    "model phi3 of Llama's class",
    "end in the map",
    "end in config.json",
    "end of the map against config.json",
    "tokens in the config alone",
    "tokens in added_tokens.json",
    "dropout",
    "alone",
    *REFUSED,
}


@pytest.mark.parametrize("name", core_of(KINDS, CORE))
def test_ids_and_the_end_are_those_of_the_library(tmp_path: Path, name: str):
    found = compared(make(tmp_path, name))

    if name in REFUSED:
        assert found.startswith(f"refused: {tmp_path}: {REFUSED[name]}")
        assert "\n" not in found
    else:
        assert found == "same"
        made = read_tokenizer(tmp_path)
        (tmp_path / "tokenizer.json").write_text(made.text)  # as an export with the first config
        again = read_tokenizer(tmp_path)
        assert (again.digest, again.end) == (made.digest, made.end)


@pytest.fixture(scope="module")
def base(tmp_path_factory) -> Path:
    return make(tmp_path_factory.mktemp("base"), "alone")


def folder(base: Path, place: Path, **files: object) -> Path:
    """A folder with the plain tokenizer and some files, by their names without .json."""
    place.mkdir(exist_ok=True)
    (place / "tokenizer.json").write_bytes((base / "tokenizer.json").read_bytes())
    for name, table in files.items():
        text = table if isinstance(table, str) else json.dumps(table)
        (place / f"{name}.json").write_text(text)
    return place


def test_what_no_file_says_is_guessed_and_told(base, tmp_path):
    for place in (base, folder(base, tmp_path, tokenizer_config=PLAIN)):
        found = read_tokenizer(place)
        (remark,) = found.remarks
        assert (found.end, found.end_text) == (0, "<|endoftext|>")
        assert remark.startswith(f"{place}/tokenizer.json: no file beside it says what ends a doc")
        assert "'<|endoftext|>' is taken" in remark
        assert found.reading_special().remarks == found.remarks
    words = make(tmp_path / "words", "plain pieces")
    assert "'[SEP]' is taken" in read_tokenizer(words).remarks[0]
    bare = json.loads((base / "tokenizer.json").read_text())
    bare["added_tokens"] = []
    bare["model"]["vocab"] = {f"t{n}": n for n in range(300)}
    bare["model"]["merges"] = []
    (tmp_path / "endless.json").write_text(json.dumps(bare))
    assert "a line break is taken" in read_tokenizer(tmp_path / "endless.json").remarks[0]


@pytest.mark.parametrize("file", ["config", "generation_config"])
def test_a_model_that_ends_texts_otherwise_is_told(base, tmp_path, file):
    there = {"tokenizer_config": PLAIN | END}
    place = folder(base, tmp_path, **there, **{file: {"eos_token_id": [1, 399]}})
    found = read_tokenizer(place)

    assert found.end == 0
    (remark,) = found.remarks
    assert f"ends a text with '<|endoftext|>', and {file}.json with '</s>': " in remark
    for ends in ([1, 0], 0, None, 10**6, 2**63, "0", True, [[0]], [-1]):
        assert read_tokenizer(folder(base, place, **{file: {"eos_token_id": ends}})).remarks == ()


def test_dropout_is_left_out_and_told(tmp_path):
    for name in ("dropout", "dropout alone"):
        found = read_tokenizer(make(tmp_path / name, name))
        assert "its BPE dropout of 0.5 is left out" in found.remarks[0]
        assert found.text == kept_tokenizer(tmp_path / name / "tokenizer.json").text
        assert json.loads(found.text)["model"]["dropout"] is None


def test_a_folder_that_changes_nothing_has_the_tokenizer_of_its_file(base, tmp_path):
    place = folder(base, tmp_path, tokenizer_config=PLAIN | END, config={"model_type": "llama"})

    found = read_tokenizer(place)
    assert (found.digest, found.remarks) == (kept_tokenizer(base / "tokenizer.json").digest, ())
    assert read_tokenizer(place / "tokenizer.json").digest == found.digest


def test_a_run_finds_its_tokenizer_in_the_folder_that_it_was_read_from(tmp_path):
    place = make(tmp_path, "prefix space of GPT2")
    found = read_tokenizer(place)
    file = place / "tokenizer.json"

    for ours in (found, found.reading_special()):
        again = tokenizer_of_run(file, ours.digest, 7)
        assert again is not None
        assert (again.digest, again.end) == (ours.digest, 7)
    assert found.digest != kept_tokenizer(file).digest
    assert tokenizer_of_run(file, "0" * 64, 7) is None
    assert Tokenizer(found.text, "exported").digest == found.digest


def test_without_transformers_a_folder_with_more_is_refused_with_the_remedy(
    base, tmp_path, monkeypatch
):
    monkeypatch.setitem(sys.modules, "transformers", None)

    assert read_tokenizer(base).end == 0
    with pytest.raises(Unusable, match=r"pip install '.\[hf\]'"):
        read_tokenizer(folder(base, tmp_path, tokenizer_config=PLAIN))


NO_JSON = ["", "{", "[" * 100_000, "[]", '"x"', "\ud800"]


@pytest.mark.parametrize("text", NO_JSON, ids=range(len(NO_JSON)))
@pytest.mark.parametrize(
    "file", ["tokenizer_config", "config", "special_tokens_map", "added_tokens"]
)
def test_what_is_no_json_beside_a_tokenizer_is_named(base, tmp_path, file, text):
    place = folder(base, tmp_path)
    (place / f"{file}.json").write_text(text, "utf-8", "surrogatepass")

    with pytest.raises(Unusable, match=rf"{file}\.json is n(ot JSON|o JSON object)") as told:
        read_tokenizer(place)
    assert "\n" not in str(told.value)


ODD = [
    {"tokenizer_class": 3},
    {"tokenizer_class": "T5Tokenizer"},
    {"tokenizer_class": "ByT5Tokenizer"},
    {"tokenizer_class": "TapasTokenizer"},
    {"tokenizer_class": "LayoutLMv2Tokenizer"},
    {"tokenizer_class": "MistralCommonBackend"},
    {"added_tokens_decoder": [3]},
    {"added_tokens_decoder": {"x": "y"}},
    {"eos_token": 3},
    {"model_max_length": "long"},
    {"fast_tokenizer_files": ["tokenizer.4.0.0.json"]},
    {"extra_special_tokens": 5},
]


@pytest.mark.parametrize("config", ODD, ids=repr)
def test_a_folder_that_the_library_cannot_read_is_one_line(base, tmp_path, config):
    place = folder(base, tmp_path, tokenizer_config=config)
    with pytest.raises(Unusable) as told:
        read_tokenizer(place)
    assert str(told.value).startswith(f"{place}: ")
    assert "\n" not in str(told.value)


def test_a_class_that_does_more_to_a_text_is_refused_by_name(base, tmp_path, monkeypatch):
    import transformers  # noqa: PLC0415 - it takes seconds

    class LoudTokenizer(transformers.PreTrainedTokenizerFast):
        def _encode_plus(self, text, *args, **more):
            return super()._encode_plus(text.upper(), *args, **more)

    transformers.AutoTokenizer.register("loud", fast_tokenizer_class=LoudTokenizer, exist_ok=True)
    place = folder(base, tmp_path, tokenizer_config={"tokenizer_class": "LoudTokenizer"})

    with pytest.raises(Unusable, match="LoudTokenizer of transformers does more to a text than"):
        read_tokenizer(place)


def test_a_panic_of_the_library_is_one_line(base, tmp_path):
    found = json.loads((base / "tokenizer.json").read_text())
    found["model"]["continuing_subword_prefix"] = "a" * 5_000
    (tmp_path / "tokenizer.json").write_text(json.dumps(found))

    with pytest.raises(Unusable, match=r"no tokenizer that can be read: ") as told:
        read_tokenizer(tmp_path)
    assert "\n" not in str(told.value)


def test_a_number_of_a_token_beyond_all_vocabularies_is_refused_at_once(base, tmp_path):
    place = folder(base, tmp_path, tokenizer_config=PLAIN | END)
    found = json.loads((place / "tokenizer.json").read_text())
    found["model"]["vocab"]["cat"] = 2**31
    (place / "tokenizer.json").write_text(json.dumps(found))

    with pytest.raises(Unusable, match=r"has tokens up to number 2,147,483,648, 4,194,304 are all"):
        read_tokenizer(place)
