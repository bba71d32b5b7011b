"""Every parser answers every kept input, and mutations of them, with its own errors alone."""

import itertools
import re
from pathlib import Path

import msgpack
import pytest
from fuzzing.base import joined, parts
from fuzzing.corpus import (
    CORPUS,
    beginnings,
    branches_of,
    kept,
    mutations,
    smallest_that_reach,
)
from fuzzing.examples import examples
from fuzzing.parsers import PARSERS, SLOW
from fuzzing.seeds import SEEDS
from hypothesis import given
from hypothesis import strategies as st

import p2pswarm
from p2pswarm.net.wire import message as wire

MUTATIONS = 200  # a parser: 2 s for all of them; bench/fuzz.py does a million
SLOW_MUTATIONS = 20


def test_every_parser_has_valid_inputs_and_no_other_has():
    assert set(PARSERS) == set(SEEDS)
    assert {path.stem for path in CORPUS.iterdir()} <= set(PARSERS)


@pytest.mark.parametrize("name", PARSERS)
def test_kept_inputs_are_read_or_refused(name: str):
    for data in beginnings(name):
        PARSERS[name](data)


@pytest.mark.parametrize("name", PARSERS)
def test_mutated_inputs_are_read_or_refused(name: str):
    count = SLOW_MUTATIONS if name in SLOW else MUTATIONS
    for data in itertools.islice(mutations(beginnings(name), seed=1), count):
        PARSERS[name](data)


@pytest.mark.parametrize("name", PARSERS)
def test_random_bytes_are_read_or_refused(name: str):
    @given(st.binary(max_size=300))
    def refused(data: bytes) -> None:
        PARSERS[name](data)

    refused()


def test_nearly_every_kind_of_message_is_among_the_valid_inputs():
    kinds = {msgpack.unpackb(data, use_list=False)[0] for data in SEEDS["message"]()}

    assert len(kinds) > 0.9 * len(wire._readers)


def test_no_kind_of_message_is_forgotten():
    """Their codes are read from the source: whoever adds a module of messages need not know."""
    sources = [path.read_text() for path in Path(p2pswarm.__file__).parent.rglob("*.py")]
    codes = {int(code) for text in sources for code in re.findall(r"\n@message\((\d+)", text)}
    examples()

    assert len(codes) > 100
    assert codes <= set(wire._readers)


def test_the_corpus_is_small():
    """It is read on every run of the tests, and by people who clone."""
    assert sum(path.stat().st_size for path in CORPUS.iterdir()) < 40_000


@given(st.lists(st.binary(max_size=20)))
def test_an_input_has_the_parts_that_it_was_joined_of(pieces: list[bytes]):
    assert list(parts(joined(*pieces))) == pieces


def test_mutations_differ_and_repeat_from_their_seed():
    first, again = (list(itertools.islice(mutations([b"abc"], seed=3), 50)) for _ in range(2))

    assert first == again
    assert len(set(first)) > 25
    assert kept("nobody") == []


def test_the_smallest_inputs_are_kept_that_take_every_branch_which_larger_ones_take():
    parse, known = PARSERS["address"], SEEDS["address"]()
    inputs = list(itertools.islice(mutations(known, seed=5), 100))

    chosen = smallest_that_reach(parse, known, inputs, most_bytes=10_000)

    def all_of(these: list[bytes]) -> set[tuple[str, int, int]]:
        return {branch for data in these for branch in branches_of(parse, data)}

    assert all_of([*known, *chosen]) == all_of([*known, *inputs])
    assert 0 < len(chosen) < len(inputs) / 2
    for left_out in chosen:
        assert not all_of([left_out]) <= all_of([*known, *chosen[: chosen.index(left_out)]])


def test_no_more_bytes_are_kept_than_allowed():
    parse, known = PARSERS["address"], SEEDS["address"]()
    inputs = list(itertools.islice(mutations(known, seed=5), 100))

    chosen = smallest_that_reach(parse, known, inputs, most_bytes=40)

    assert 0 < sum(len(data) for data in chosen) <= 40
