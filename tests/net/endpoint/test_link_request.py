"""Tests of `net/endpoint/link_request.py`."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pswarm.base.errors import BadHandshake, UnknownLink
from p2pswarm.net.endpoint.link_request import (
    JOIN,
    JOIN_ANSWER_BYTES,
    REQUEST_BYTES,
    RESUME,
    RESUME_ANSWER_BYTES,
    RESUME_CONFIRM_BYTES,
    UNKNOWN_LINK,
    BulkJoin,
    PathNumbers,
    Resume,
    session_of,
)

EXPORTER = b"e" * 32
NONCE_I, NONCE_R = b"i" * 16, b"r" * 16


def test_both_ends_agree_on_session_and_keys():
    ours = BulkJoin.make(JOIN, EXPORTER, 3, NONCE_I)
    theirs = BulkJoin.parse(JOIN, ours.raw)
    answer = theirs.answer(EXPORTER, NONCE_R)

    nonce = ours.check_answer(EXPORTER, answer)

    assert len(ours.raw) == REQUEST_BYTES
    assert len(answer) == JOIN_ANSWER_BYTES
    assert theirs.session == session_of(EXPORTER)
    assert nonce == NONCE_R
    assert ours.keys(EXPORTER, nonce) == theirs.keys(EXPORTER, NONCE_R)


def test_every_number_and_nonce_gives_other_keys():
    variants = [
        (1, NONCE_I, NONCE_R),
        (2, NONCE_I, NONCE_R),
        (1, b"j" * 16, NONCE_R),
        (1, NONCE_I, b"s" * 16),
    ]

    keys = [
        key
        for number, nonce_i, nonce_r in variants
        for key in BulkJoin.make(JOIN, EXPORTER, number, nonce_i).keys(EXPORTER, nonce_r)
    ]

    assert len(set(keys)) == 8


@pytest.mark.parametrize("at", range(REQUEST_BYTES))
def test_a_join_with_any_bit_changed_is_refused(at: int):
    raw = bytearray(BulkJoin.make(JOIN, EXPORTER, 3, NONCE_I).raw)
    raw[at] ^= 1

    with pytest.raises(BadHandshake):
        BulkJoin.parse(JOIN, bytes(raw)).answer(EXPORTER, NONCE_R)


@pytest.mark.parametrize("at", range(JOIN_ANSWER_BYTES))
def test_an_answer_with_any_bit_changed_is_refused(at: int):
    ours = BulkJoin.make(JOIN, EXPORTER, 3, NONCE_I)
    answer = bytearray(ours.answer(EXPORTER, NONCE_R))
    answer[at] ^= 1

    with pytest.raises(BadHandshake):
        ours.check_answer(EXPORTER, bytes(answer))


def test_a_join_from_another_session_is_refused():
    with pytest.raises(BadHandshake):
        BulkJoin.make(JOIN, b"x" * 32, 3, NONCE_I).answer(EXPORTER, NONCE_R)


def test_both_ends_learn_what_the_other_wants_first():
    ours = Resume.make(RESUME, EXPORTER, 2, NONCE_I)
    theirs = Resume.parse(RESUME, ours.raw)
    theirs.check(EXPORTER, PathNumbers(dialled=False))
    answer = theirs.answer(EXPORTER, NONCE_R, 1 << 40)

    nonce, wanted = ours.read_answer(EXPORTER, answer)
    confirm = ours.confirm(EXPORTER, nonce, 7)

    assert (nonce, wanted) == (NONCE_R, 1 << 40)
    assert theirs.read_confirm(EXPORTER, NONCE_R, confirm) == 7
    assert theirs.session == session_of(EXPORTER)
    assert [len(ours.raw), len(answer), len(confirm)] == [
        REQUEST_BYTES,
        RESUME_ANSWER_BYTES,
        RESUME_CONFIRM_BYTES,
    ]


@pytest.mark.parametrize("at", range(REQUEST_BYTES))
def test_a_resume_with_any_bit_changed_is_refused(at: int):
    raw = bytearray(Resume.make(RESUME, EXPORTER, 2, NONCE_I).raw)
    raw[at] ^= 1

    with pytest.raises(BadHandshake):
        Resume.parse(RESUME, bytes(raw)).check(EXPORTER, PathNumbers(dialled=False))


@given(at=st.integers(0, RESUME_ANSWER_BYTES - 1), bit=st.integers(0, 7))
def test_an_answer_with_any_bit_changed_is_refused_in_a_resumption(at: int, bit: int):
    ours = Resume.make(RESUME, EXPORTER, 2, NONCE_I)
    answer = bytearray(ours.answer(EXPORTER, NONCE_R, 5))
    answer[at] ^= 1 << bit

    with pytest.raises(BadHandshake):
        ours.read_answer(EXPORTER, bytes(answer))


@given(at=st.integers(0, RESUME_CONFIRM_BYTES - 1), bit=st.integers(0, 7))
def test_a_confirm_with_any_bit_changed_is_refused(at: int, bit: int):
    ours = Resume.make(RESUME, EXPORTER, 2, NONCE_I)
    confirm = bytearray(ours.confirm(EXPORTER, NONCE_R, 5))
    confirm[at] ^= 1 << bit

    with pytest.raises(BadHandshake):
        ours.read_confirm(EXPORTER, NONCE_R, bytes(confirm))


def test_a_confirm_that_was_heard_before_confirms_nothing_again():
    """It depends on the acceptor's nonce, which is new each time."""
    ours = Resume.make(RESUME, EXPORTER, 2, NONCE_I)
    confirm = ours.confirm(EXPORTER, NONCE_R, 5)

    with pytest.raises(BadHandshake):
        ours.read_confirm(EXPORTER, b"s" * 16, confirm)


def test_a_resume_that_comes_again_or_back_to_its_sender_is_refused():
    ours = Resume.make(RESUME, EXPORTER, 2, NONCE_I)
    dialler, acceptor = PathNumbers(dialled=True), PathNumbers(dialled=False)
    acceptor.newest = 2

    with pytest.raises(BadHandshake, match="comes after"):
        ours.check(EXPORTER, acceptor)
    with pytest.raises(BadHandshake, match="a number of ours"):
        ours.check(EXPORTER, dialler)


def test_a_peer_that_does_not_know_the_link_says_so():
    with pytest.raises(UnknownLink):
        Resume.make(RESUME, EXPORTER, 2, NONCE_I).read_answer(EXPORTER, UNKNOWN_LINK)


@given(st.lists(st.booleans(), max_size=50), st.lists(st.integers(0, 99), max_size=50))
def test_no_two_connections_have_one_number_and_each_is_newer_than_the_path(asks, switches):
    sides = PathNumbers(dialled=True), PathNumbers(dialled=False)
    given_out = set()
    for step, dialled in enumerate(asks):
        side = sides[not dialled]
        number = side.take()
        assert number > side.newest
        assert number % 2 != dialled
        assert number not in given_out
        given_out.add(number)
        if switches[step : step + 1] and switches[step] < 50 and number > sides[0].newest:
            for each in sides:
                each.newest = number
