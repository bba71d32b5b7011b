"""Signed values: who may say what, and which of two counts."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pswarm.discovery.dht.messages import Record
from p2pswarm.discovery.dht.records import (
    PROOFS_MAX,
    SignatureCache,
    may_write,
    merge,
    rank,
    sign,
    written_by,
)
from p2pswarm.net.crypto.identity import Identity

OURS = Identity.generate(b"ours")
THEIRS = Identity.generate(b"theirs")
KEY = bytes(32)


def record(value: bytes = b"v", seq: int = 1, subkey: bytes = b"sub") -> Record:
    return sign(OURS, KEY, subkey, value, seq, 1000)


def test_what_we_sign_is_found_true():
    assert SignatureCache().holds(record())


@pytest.mark.parametrize(
    "change",
    [
        {"key": b"k" * 32},
        {"subkey": b"buS"},
        {"value": b"w"},
        {"seq": 2},
        {"expires_ms": 1001},
        {"public_key": THEIRS.public_key},
        {"signature": bytes(64)},
    ],
    ids=lambda change: next(iter(change)),
)
def test_no_field_can_be_changed(change):
    assert not SignatureCache().holds(replace(record(), **change))


def test_value_and_subkey_cannot_change_places():
    """The subkey's length is signed."""
    assert not SignatureCache().holds(
        replace(record(b"bcd", subkey=b"a"), subkey=b"ab", value=b"cd")
    )


def test_only_a_peer_itself_may_sign_for_its_id():
    ours = record(subkey=OURS.peer_id.raw)

    assert may_write(ours)
    assert SignatureCache().holds(ours)
    with pytest.raises(ValueError, match="not ours"):
        record(subkey=THEIRS.peer_id.raw)
    stolen = replace(ours, subkey=THEIRS.peer_id.raw)
    assert not may_write(stolen)
    assert not SignatureCache().holds(stolen)


def test_a_record_is_its_publishers_word():
    assert written_by(record(), OURS.peer_id)
    assert not written_by(record(), THEIRS.peer_id)


@pytest.mark.parametrize(
    ("key", "subkey", "value"),
    [(b"short", b"", b""), (KEY, b"s" * 65, b""), (KEY, b"", b"v" * 4097)],
)
def test_what_no_node_would_keep_is_not_signed(key, subkey, value):
    with pytest.raises(ValueError, match="not"):
        sign(OURS, key, subkey, value, 1, 1000)


def test_no_signature_is_checked_twice():
    """Checked once, a record is known even when the key that checks it is gone."""
    signatures = SignatureCache()
    true = record()
    assert signatures.holds(true)

    assert signatures.holds(replace(true))
    assert not signatures.holds(replace(true, value=b"forged"))


def test_only_so_many_proofs_are_remembered():
    signatures = SignatureCache()
    signatures._true.update(dict.fromkeys(range(PROOFS_MAX)))

    assert signatures.holds(record())
    assert len(signatures._true) == PROOFS_MAX


records = st.builds(
    Record,
    key=st.just(KEY),
    subkey=st.just(b"a"),
    value=st.sampled_from([b"x", b"y"]),
    seq=st.integers(0, 2),
    expires_ms=st.integers(0, 2),
    public_key=st.sampled_from([OURS.public_key, THEIRS.public_key]),
    signature=st.sampled_from([bytes(64), b"s" * 64]),
)


@given(st.lists(records), st.randoms(use_true_random=False))
def test_merging_is_the_same_in_any_order_and_however_often(some, rng):
    once: dict[bytes, Record] = {}
    again: dict[bytes, Record] = {}
    merge(once, some)

    shuffled = some * 2
    rng.shuffle(shuffled)
    for each in shuffled:
        merge(again, [each])

    assert again == once


@given(records, records)
def test_the_higher_seq_counts_then_the_later_end(a, b):
    chosen = max(a, b, key=rank)

    assert (chosen.seq, chosen.expires_ms) == max((a.seq, a.expires_ms), (b.seq, b.expires_ms))
