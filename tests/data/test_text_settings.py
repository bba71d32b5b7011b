"""The text that a program names: what is no text is refused in one line."""

from pathlib import Path

import pytest

import p2pswarm as ps
from p2pswarm.data.text_settings import Bytes, Mixture, Tokenised, settings_of


def test_a_path_is_text_as_bytes():
    for path in ("a.txt", Path("a.txt")):
        assert settings_of(path) == settings_of(Bytes(path))
    assert settings_of("a.txt")["data"] == Path("a.txt")


WRONG = [
    ["a.txt", "b.txt"],
    ("a.txt", "b.txt"),
    {"a.txt": 1},
    None,
    3,
    b"a.txt",
    Bytes(["a.txt", "b.txt"]),
    Tokenised(None, "folder"),
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
        with pytest.raises(ValueError, match=r"^(data|path|weights) is ") as told:
            call()
        assert "\n" not in str(told.value)
        assert len(str(told.value)) < 200
    assert "Mixture" in str(told.value) or not isinstance(data, list | tuple)
