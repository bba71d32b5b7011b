"""A family's function that fails, or makes no blocks: one line with its place."""

import re

import pytest
import torch
from torch import nn

from p2pswarm.config import ModelConfig
from p2pswarm.errors import Refused, Unusable
from p2pswarm.models.foreign_code import LINE_CHARS_MAX, blocks_of, said

MODEL = ModelConfig(family="odd")


def raising(_config):
    raise ValueError("cannot be\nmade")


def breaking(_config):
    yield nn.Linear(2, 2)
    raise KeyError("late")


def quitting(_config):
    raise SystemExit


def without_config():
    return []


@pytest.mark.parametrize(
    ("build", "match"),
    [
        (raising, r"ValueError: cannot be \(test_foreign_code.py, line 17\)"),
        (breaking, r"KeyError: 'late' \(test_foreign_code.py, line 22\)"),
        (quitting, r"SystemExit \(test_foreign_code.py, line 26\)"),
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
