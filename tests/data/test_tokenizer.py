"""Tokenizers: read from a folder or learnt, the same everywhere, and refused in one line."""

import json
from pathlib import Path

import numpy as np
import pytest
from core import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from local_hub import local_hub

from p2pswarm.base.errors import Unusable
from p2pswarm.data.tokenizer import (
    END,
    Tokenizer,
    hub_tokenizer,
    read_tokenizer,
    tokenizer_of_run,
    train_tokenizer,
)

TEXTS = [Path(__file__).read_bytes(), "né à Zürich".encode()]


@pytest.fixture(scope="module")
def learnt() -> Tokenizer:
    return train_tokenizer(300, TEXTS)


def folder(tmp_path: Path, tokenizer: Tokenizer, **config) -> Path:
    (tmp_path / "tokenizer.json").write_text(tokenizer.text)
    if config:
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    return tmp_path


def test_the_same_text_gives_the_same_tokenizer(learnt: Tokenizer):
    again = train_tokenizer(300, iter(TEXTS))

    assert again.digest == learnt.digest
    assert (learnt.size, learnt.end, learnt.dtype) == (300, 0, np.uint16)
    assert train_tokenizer(301, TEXTS).digest != learnt.digest


@settings(max_examples=examples(50))
@given(text=st.text())
def test_every_text_comes_back(learnt: Tokenizer, text: str):
    (tokens,) = learnt.encode([text.encode("utf-8", "replace")])
    plain = text.encode("utf-8", "replace").decode()

    assert "".join(learnt.decode(tokens.tolist())) == plain
    assert all(0 <= token < learnt.size for token in tokens)


@settings(max_examples=examples(50))
@given(tokens=st.lists(st.integers(1, 299), max_size=30))
def test_pieces_are_the_text_as_a_whole(learnt: Tokenizer, tokens: list[int]):
    pieces = list(learnt.decode(tokens))
    whole = learnt._tokenizer.decode(tokens)

    assert "".join(pieces).replace("\ufffd", "") == whole.replace("\ufffd", "")


def test_bytes_that_are_no_text_are_shown_and_do_not_hold_back_the_rest(learnt: Tokenizer):
    (broken,) = (learnt._tokenizer.encode("ü").ids[:1],)
    (after,) = learnt.encode([b"abc" * 20])

    assert "abcabc" in "".join(learnt.decode([*broken, *after.tolist()]))


def test_a_folder_is_read_and_means_the_same(learnt: Tokenizer, tmp_path: Path):
    read = read_tokenizer(folder(tmp_path, learnt))

    assert (read.digest, read.size, read.end) == (learnt.digest, learnt.size, learnt.end)
    assert read_tokenizer(tmp_path / "tokenizer.json").digest == learnt.digest


def test_truncation_padding_and_white_space_make_no_other_tokenizer(learnt, tmp_path: Path):
    found = json.loads(learnt.text)
    found["truncation"] = {
        "direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0,
    }  # fmt: skip
    (tmp_path / "tokenizer.json").write_text(json.dumps(found, indent=7))
    read = read_tokenizer(tmp_path)

    assert read.digest == learnt.digest
    assert len(read.encode([TEXTS[0]])[0]) == len(learnt.encode([TEXTS[0]])[0]) > 4


def test_the_config_beside_it_says_what_ends_a_text(learnt: Tokenizer, tmp_path: Path):
    token = learnt._tokenizer.id_to_token(7)

    assert read_tokenizer(folder(tmp_path, learnt, eos_token=token)).end == 7
    table = {"content": token, "__type": "AddedToken"}
    assert read_tokenizer(folder(tmp_path, learnt, eos_token=table)).end == 7
    assert read_tokenizer(folder(tmp_path, learnt, eos_token=None)).end == 0
    assert read_tokenizer(folder(tmp_path, learnt, eos_token="<new>")).end == learnt.size


def test_tokens_over_65536_take_four_bytes(learnt: Tokenizer):
    found = json.loads(learnt.text)
    found["added_tokens"].append({**found["added_tokens"][0], "id": 65_536, "content": "<far>"})
    found["model"]["vocab"]["<far>"] = 65_536
    far = Tokenizer(json.dumps(found), "here")

    assert (far.size, far.dtype) == (65_537, np.uint32)
    assert far.reading_special().encode([b"<far>"])[0].tolist() == [65_536]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "no tokenizer that can be read"),
        ("[]", "it is no JSON object"),
        ("{}", "no tokenizer that can be read"),
        ('{"model": {"type": "BPE", "vocab": {"a": -1}, "merges": []}}', "no tokenizer that can"),
        ('{"model": {"type": "BPE", "vocab": {}, "merges": []}}', "without tokens"),
    ],
)
def test_what_is_no_tokenizer_is_one_line(tmp_path: Path, text: str, why: str):
    (tmp_path / "tokenizer.json").write_text(text)

    with pytest.raises(Unusable, match=why) as told:
        read_tokenizer(tmp_path)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize("kind", ["WordLevel", "WordPiece"])
def test_text_that_a_tokenizer_cannot_write_is_one_line(kind: str):
    model = {"type": kind, "vocab": {"a": 0}, "unk_token": "[UNK]"}
    model |= {"continuing_subword_prefix": "##", "max_input_chars_per_word": 100}
    tokenizer = Tokenizer(json.dumps({"model": model}), "words.json")

    with pytest.raises(Unusable, match=r"words.json: it cannot write the text: .* name one that"):
        tokenizer.encode([b"zebra"])


def test_an_error_of_the_text_itself_passes_through_the_library():
    def texts():
        yield b"some"
        raise Unusable("line 500 has no text")

    with pytest.raises(Unusable, match=r"^line 500 has no text$"):
        train_tokenizer(300, texts())


def test_tokens_that_cannot_be_read_are_one_line(learnt: Tokenizer):
    with pytest.raises(Unusable, match="it cannot read tokens: "):
        list(learnt.decode([-1]))


def test_a_place_without_a_tokenizer_names_what_would_do(tmp_path: Path):
    with pytest.raises(Unusable, match=r'no tokenizer.json in it: .* or "train:32000"'):
        read_tokenizer(tmp_path)
    with pytest.raises(Unusable, match="there is no such folder"):
        read_tokenizer(tmp_path / "gone")


@pytest.mark.parametrize("config", [{"eos_token": "a"}, None])
def test_the_hub_gives_the_tokenizer_of_a_folder(learnt: Tokenizer, config, monkeypatch):
    files = {"tokenizer.json": learnt.text.encode()}
    if config:
        files["tokenizer_config.json"] = json.dumps(config).encode()
    name = f"tokenizers/{'with' if config else 'without'}-config"
    with local_hub() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.at("trainer"))
        hub.publish(name, files)

        found = hub_tokenizer(name)
        again = hub_tokenizer(f"{name}@{hub.models[name].commit}")

    assert found.digest == again.digest
    assert (found.digest == learnt.digest) is (config is None)  # "a" became a special token
    assert found.end_text == again.end_text == ("a" if config else END)


def test_a_tokenizer_that_is_neither_here_nor_on_the_hub_is_one_line(monkeypatch):
    with local_hub() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.at("trainer"))
        hub.publish("tokenizers/none", {"config.json": b"{}"})
        for name, why in (("nobody/knows", "has no such model"), ("tokenizers/none", "has no tok")):
            with pytest.raises(Unusable, match=f"train.tokenizer: there is no such folder.*{why}"):
                hub_tokenizer(name)
    with pytest.raises(Unusable, match=r"cannot be reached.*: put its tokenizer\.json and") as told:
        hub_tokenizer("nobody/knows")
    assert "\n" not in str(told.value)


def test_the_name_of_a_special_token_in_a_text_is_its_letters(learnt: Tokenizer):
    text = f"one{END}two".encode()
    read = learnt.reading_special()

    assert learnt.end not in learnt.encode([text])[0]
    assert list(read.encode([text])[0]).count(learnt.end) == 1
    assert (read.digest == learnt.digest, read.end) == (False, learnt.end)


def test_a_run_finds_its_tokenizer_whatever_lies_beside_the_file(learnt: Tokenizer, tmp_path: Path):
    file = folder(tmp_path, learnt, eos_token="<gone>") / "tokenizer.json"

    for ours, end in ((learnt, 7), (learnt.reading_special(), -1)):
        found = tokenizer_of_run(file, ours.digest, end)
        assert found is not None
        assert (found.digest, found.end) == (ours.digest, None if end < 0 else end)
    assert tokenizer_of_run(file, "another", 0) is None


def bytewise() -> Tokenizer:
    """As Llama 2's: a mark where words begin, and bytes for what it has no token for."""
    words = [*(f"<0x{byte:02X}>" for byte in range(256)), "\u2581", "\u2581Once", "\u2581more"]
    model = {"type": "Unigram", "unk_id": 0, "byte_fallback": True}
    model["vocab"] = [["<unk>", 0.0], *([word, -float(len(words))] for word in words)]
    steps = [
        {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0},
    ]
    mark = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "first", "split": True}
    decoder = {"type": "Sequence", "decoders": steps}
    found = {"version": "1.0", "added_tokens": [], "normalizer": None, "post_processor": None}
    return Tokenizer(
        json.dumps(found | {"pre_tokenizer": mark, "decoder": decoder, "model": model}), "here"
    )


def test_characters_that_follow_each_other_as_bytes_are_printed():
    tokenizer = bytewise()
    (tokens,) = tokenizer.encode(["Once 日本 é more".encode()])

    assert "".join(tokenizer.decode(tokens.tolist())) == "Once 日本 é more"
    broken, byte = tokens[6:7].tolist(), tokenizer.encode([b"Once more"])[0].tolist()
    assert "".join(tokenizer.decode([*broken, *byte])).endswith("Once more")


def test_what_goes_on_from_a_text_keeps_its_first_space():
    tokenizer = bytewise()
    once, more = tokenizer.encode([b"Once more"])[0].tolist()

    assert "".join(tokenizer.decode([more], after=[once])) == " more"
    assert "".join(tokenizer.decode([more])) == "more"


def test_tokens_without_text_do_not_hold_back_the_rest(learnt: Tokenizer):
    (after,) = learnt.encode([b"abc"])

    assert "".join(learnt.decode([0] * 50 + after.tolist())) == "abc"
