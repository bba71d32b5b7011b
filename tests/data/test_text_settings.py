"""The text that a program names: what is no text is refused in one line."""

from pathlib import Path

import pytest

import p2pswarm as ps
from p2pswarm.data.text_settings import Bytes, Mixture, Tokenised, settings_of


def test_a_path_is_text_as_bytes():
    for path in ("a.txt", Path("a.txt")):
        assert settings_of(path) == settings_of(Bytes(path))
    assert settings_of("a.txt")["data"] == Path("a.txt")


def test_values_say_what_the_file_of_settings_would():
    mixed = settings_of(Mixture({"a.txt": 1.0, Path("b.txt"): 3.0}, "train:300"))

    assert mixed["mixture"] == [{"data": "a.txt", "weight": 1.0}, {"data": "b.txt", "weight": 3.0}]
    assert settings_of(Tokenised("a.txt", "folder", special_tokens="tokens"))["special_tokens"] == (
        "tokens"
    )
    templated = settings_of(Tokenised("a.jsonl", "folder", chat_template="chat.jinja"))
    assert templated["chat_template"] == Path("chat.jinja")


WRONG = [
    ["a.txt", "b.txt"],
    ("a.txt", "b.txt"),
    {"a.txt": 1},
    None,
    3,
    b"a.txt",
    Bytes(["a.txt", "b.txt"]),
    Tokenised(None, "folder"),
    Tokenised("a.txt", "folder", chat_template=3),
    Mixture(["a.txt", "b.txt"]),
    Mixture({3: 1.0}),
]


@pytest.mark.parametrize("data", WRONG, ids=repr)
def test_what_is_no_text_is_refused_with_what_would_do(data):
    run = ps.Run("r")
    for call in (
        lambda: settings_of(data),
        lambda: ps.train(run, data),
        lambda: ps.Trainer(ps.Node(), run, data=data),
    ):
        with pytest.raises(ValueError, match=r"^(data|path|weights|chat_template) is ") as told:
            call()
        assert "\n" not in str(told.value)
        assert len(str(told.value)) < 200
    assert "Mixture" in str(told.value) or not isinstance(data, list | tuple)
