"""A family's function that fails, or makes no blocks: one line with its place."""

import re

import pytest
import torch
from models.of_ours import run_as_ours
from torch import nn

from p2pswarm.base.errors import Refused, Unusable
from p2pswarm.models.library.foreign_code import LINE_CHARS_MAX, blocks_of, foreign, said
from p2pswarm.settings.config import ModelConfig

MODEL = ModelConfig(family="odd")


def raising(_config):
    raise ValueError("cannot be\nmade")


def breaking(_config):
    yield nn.Linear(2, 2)
    raise KeyError("late")


def quitting(_config):
    raise SystemExit


class OwnError(Exception):
    """A class of the user's own, of no kind of Python's."""


def own(_config):
    raise OwnError("mine")


def asking_ours_wrongly(_config):
    return [nn.Linear(2, 2), ModelConfig(family="odd", layers=())["layers"]]


def without_config():
    return []


@pytest.mark.parametrize(
    ("build", "match"),
    [
        (raising, r"ValueError: cannot be \(test_foreign_code.py, line \d+\)"),
        (breaking, r"KeyError: 'late' \(test_foreign_code.py, line \d+\)"),
        (quitting, r"SystemExit \(test_foreign_code.py, line \d+\)"),
        (own, r"OwnError: mine \(test_foreign_code.py, line \d+\)"),
        (asking_ours_wrongly, r"TypeError: .*not subscriptable \(test_foreign_code.py, line \d+\)"),
        (without_config, "TypeError: .* takes 0 positional arguments"),
        (lambda _config: 5, "makes int and no list of torch modules"),
        (lambda _config: [nn.Linear(2, 2), 5], "block 1 of family 'odd' is int and no torch"),
    ],
)
def test_it_is_told_in_a_line(build, match):
    with pytest.raises(Unusable, match=match) as caught:
        blocks_of(build, MODEL)

    assert "\n" not in str(caught.value)


def test_any_iterable_of_modules_is_a_model():
    assert len(blocks_of(lambda _config: nn.Sequential(nn.Tanh(), nn.Tanh()), MODEL)) == 2


def test_the_line_is_the_users_and_not_the_librarys():
    with pytest.raises(RuntimeError) as caught:
        nn.Linear(2, 2)(torch.ones(3))

    assert re.search(r" \(test_foreign_code\.py, line [0-9]+\)$", said(caught.value))


def test_long_messages_are_cut_and_errors_of_ours_are_lines_already():
    assert len(said(ValueError("x" * 1000))) == LINE_CHARS_MAX + len("ValueError: ")
    assert said(Refused("no room.")) == "no room"


def test_without_a_line_of_the_user_it_is_the_librarys():
    transformers = pytest.importorskip("transformers")
    code = "def make(): return config.for_model('none')\nwith foreign('it'): make()"

    with pytest.raises(Unusable, match=r"it: ValueError: .* \(configuration_auto\.py, line \d+\)$"):
        run_as_ours(code, foreign=foreign, config=transformers.AutoConfig)


@pytest.mark.parametrize(
    "code",
    [
        "def bug(): raise KeyError('ours')\nwith foreign('it'): bug()",
        "with foreign('it'): assert 0, 'ours'",
        "def check(x): assert x, 'ours'\nwith foreign('it'): call(lambda: check(0))",
    ],
)
def test_what_our_own_code_raises_stays_as_it_is(code):
    with pytest.raises((KeyError, AssertionError), match="ours"):
        run_as_ours(code, foreign=foreign, call=lambda work: work())


@pytest.mark.parametrize(
    ("code", "match"),
    [
        ("with foreign('it', '; mend it'): five()", "it: TypeError: .*not callable; mend it$"),
        ("with foreign('it'): [][1]", "it: IndexError: list index out of range"),
        ("def add(): torch.ones(2) + torch.ones(3)\nwith foreign('it'): add()", "it: RuntimeError"),
        ("def look(): return {}['x']\nwith foreign('it'): call(look)", "it: KeyError: 'x' .test_f"),
        ("with foreign('it'): raise Refused('no room')", "^no room$"),
    ],
)
def test_what_code_of_others_raises_is_told(code, match):
    names = {"foreign": foreign, "torch": torch, "Refused": Refused, "five": 5}

    with pytest.raises((Unusable, Refused), match=match):
        run_as_ours(code, call=lambda work: work(), **names)


def test_a_line_that_announces_the_next_is_said_with_it():
    error = ValueError("not valid:\n  because:\n\n  of that.\n  and pages more")

    assert said(error) == "ValueError: not valid: because: of that"
    assert said(ValueError("a:")) == "ValueError: a:"
