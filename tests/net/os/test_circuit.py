"""The bytes of a circuit."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pswarm.base.errors import BadHandshake, DialFailed
from p2pswarm.net.os.circuit import (
    CIRCUIT_ANSWER_BYTES,
    CIRCUIT_REQUEST_BYTES,
    CircuitRequest,
    CircuitStatus,
    check_circuit_answer,
    circuit_answer,
)


def test_the_bytes_are_those_of_the_page():
    ask = CircuitRequest(peer=b"p" * 32).raw
    take = CircuitRequest(ticket=b"t" * 16).raw

    assert ask == b"PSC1\x01" + bytes(27) + b"p" * 32
    assert take == b"PSC1\x02" + bytes(43) + b"t" * 16
    assert circuit_answer(CircuitStatus.NOT_TAKEN) == b"PSC1\x03\0\0\0"
    assert len(ask) == len(take) == CIRCUIT_REQUEST_BYTES == 8 * CIRCUIT_ANSWER_BYTES


@given(st.binary(min_size=32, max_size=32), st.binary(min_size=16, max_size=16))
def test_what_was_asked_is_read(peer, ticket):
    for request in (CircuitRequest(peer=peer), CircuitRequest(ticket=ticket)):
        assert CircuitRequest.parse(request.raw) == request


@given(st.binary(max_size=80) | st.binary(min_size=60, max_size=60).map(lambda raw: b"PSC1" + raw))
def test_any_other_bytes_are_refused_or_mean_themselves(raw):
    try:
        request = CircuitRequest.parse(raw)
    except BadHandshake:
        return
    assert request.raw == raw


@pytest.mark.parametrize("at", [5, 20, 31])
def test_padding_is_zeros(at):
    raw = bytearray(CircuitRequest(peer=b"p" * 32).raw)
    raw[at] = 1

    with pytest.raises(BadHandshake, match="padded"):
        CircuitRequest.parse(bytes(raw))


def test_an_answer_is_joined_or_says_why_not():
    check_circuit_answer(circuit_answer(CircuitStatus.JOINED), "r:1")
    for status in list(CircuitStatus)[1:]:
        with pytest.raises(DialFailed, match="relay r:1: "):
            check_circuit_answer(circuit_answer(status), "r:1")
    with pytest.raises(DialFailed, match="status 200"):
        check_circuit_answer(b"PSC1\xc8\0\0\0", "r:1")


@pytest.mark.parametrize("raw", [b"", b"PSC1\0", b"PSW2\0\0\0\0", b"PSC1\0\0\0\x01"])
def test_what_no_relay_answers_is_refused(raw):
    with pytest.raises(BadHandshake):
        check_circuit_answer(raw, "r:1")
