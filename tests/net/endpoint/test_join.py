"""Joining bulk to a link: only its two ends can, and they agree on the keys."""

import pytest

from p2pswarm.base.errors import BadHandshake
from p2pswarm.net.endpoint.join import JOIN_ANSWER_BYTES, JOIN_BYTES, BulkJoin
from p2pswarm.net.endpoint.link_request import session_of

EXPORTER = b"e" * 32
NONCE_I, NONCE_R = b"i" * 16, b"r" * 16


def test_both_ends_agree_on_session_and_keys():
    ours = BulkJoin.make(EXPORTER, 3, NONCE_I)
    theirs = BulkJoin.parse(ours.raw)
    answer = theirs.answer(EXPORTER, NONCE_R)

    nonce = ours.check_answer(EXPORTER, answer)

    assert len(ours.raw) == JOIN_BYTES
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
        for key in BulkJoin.make(EXPORTER, number, nonce_i).keys(EXPORTER, nonce_r)
    ]

    assert len(set(keys)) == 8


@pytest.mark.parametrize("at", range(JOIN_BYTES))
def test_a_join_with_any_bit_changed_is_refused(at: int):
    raw = bytearray(BulkJoin.make(EXPORTER, 3, NONCE_I).raw)
    raw[at] ^= 1

    with pytest.raises(BadHandshake):
        BulkJoin.parse(bytes(raw)).answer(EXPORTER, NONCE_R)


@pytest.mark.parametrize("at", range(JOIN_ANSWER_BYTES))
def test_an_answer_with_any_bit_changed_is_refused(at: int):
    ours = BulkJoin.make(EXPORTER, 3, NONCE_I)
    answer = bytearray(ours.answer(EXPORTER, NONCE_R))
    answer[at] ^= 1

    with pytest.raises(BadHandshake):
        ours.check_answer(EXPORTER, bytes(answer))


def test_a_join_from_another_session_is_refused():
    with pytest.raises(BadHandshake):
        BulkJoin.make(b"x" * 32, 3, NONCE_I).answer(EXPORTER, NONCE_R)
