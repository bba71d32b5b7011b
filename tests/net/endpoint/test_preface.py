"""Tests of `net/endpoint/preface.py`."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st
from net.link.harness import PATIENCE_S, End, contact_of, listening

from p2pswarm.base.errors import BadHandshake, DialFailed
from p2pswarm.base.ids import Address, PeerId
from p2pswarm.net.endpoint.preface import (
    CIRCUIT_ANSWER_BYTES,
    CIRCUIT_REQUEST_BYTES,
    OBSERVATION_ANSWER_BYTES,
    OBSERVATION_MAGIC,
    SEAL_S,
    CircuitRequest,
    CircuitStatus,
    ObservationSeals,
    check_circuit_answer,
    circuit_answer,
    knock,
    observation_answer,
    observation_request,
    read_observation,
    token_of,
)
from p2pswarm.net.os.sockets import SocketNet


@pytest.mark.parametrize("host", ["203.0.113.7", "2001:db8::7"])
def test_an_answer_names_where_a_connection_comes_from(host):
    data = observation_answer(Address(host, 4000))

    assert read_observation(data).address == Address(host, 4000)
    assert len(data) < len(observation_request())


@given(data=st.binary(max_size=40))
def test_any_other_answer_is_a_bad_handshake(data):
    with pytest.raises(BadHandshake):
        read_observation(data)


@given(data=st.binary(min_size=34, max_size=34))
def test_any_address_is_read_or_refused(data):
    try:
        read_observation(OBSERVATION_MAGIC + data)
    except BadHandshake:
        return


SEEN = Address("203.0.113.7", 4000)


@pytest.mark.parametrize("later_s", [0.0, 200.0, 300.0])
def test_a_seal_shows_its_maker_that_it_saw_an_address_a_while_ago(later_s):
    seals = ObservationSeals(b"k" * 32)

    seal = seals.seal(SEEN, 1000.0)

    assert seals.vouches(SEEN, seal, 1000.0 + later_s)
    assert not seals.vouches(SEEN, seal, 1000.0 + 2 * SEAL_S)


def test_a_seal_is_good_for_its_address_and_maker_alone():
    seals = ObservationSeals(b"k" * 32)
    seal = seals.seal(SEEN, 0.0)

    assert not seals.vouches(Address(SEEN.host, 4001), seal, 0.0)
    assert not seals.vouches(Address("203.0.113.8", 4000), seal, 0.0)
    assert not ObservationSeals(b"l" * 32).vouches(SEEN, seal, 0.0)


def test_nobody_gets_a_seal_of_a_relays_address():
    seals = ObservationSeals(b"k" * 32)
    through = SEEN.through(PeerId(b"p" * 32))

    seal = seals.seal(through, 0.0)

    assert not seals.vouches(SEEN, seal, 0.0)


async def test_an_endpoint_tells_where_it_sees_a_connection():
    async with End() as end, asyncio.timeout(PATIENCE_S):
        await listening(end)
        net = SocketNet()
        ours = await net.listen(Address("127.0.0.1", 0))
        connection = await net.dial(end.contact.address, from_port=ours.address.port)
        await connection.send(observation_request())

        seen = read_observation(await connection.receive(OBSERVATION_ANSWER_BYTES))

        now_s = asyncio.get_running_loop().time()
        assert seen.address == ours.address
        assert end.seals.vouches(seen.address, seen.seal, now_s)
        connection.close()
        ours.close()


async def test_a_knock_is_told_by_its_token():
    async with End() as end, asyncio.timeout(PATIENCE_S):
        await listening(end)
        heard: asyncio.Queue[bytes] = asyncio.Queue()
        end.acceptor.on_knock = heard.put_nowait
        connection = await SocketNet().dial(end.contact.address)
        await connection.send(knock(b"n" * 16))
        connection.close()

        assert await heard.get() == token_of(b"n" * 16)


async def test_who_links_is_seen_where_its_connection_comes_from():
    async with End() as end, End() as other, asyncio.timeout(PATIENCE_S):
        await listening(end)
        ups = []
        other.on_up = ups.append

        link = await other.link(contact_of(end))

        assert ups == [link]
        assert other.seen_at(end.peer_id) == end.contact.address
        assert other.seen_at(other.peer_id) is None
        assert other.dialled_at(end.peer_id) == end.contact.address
        assert end.seen_at(other.peer_id) is not None  # its dial had a port of its own
        assert end.dialled_at(other.peer_id) is None  # it listens nowhere
        assert other.dialled_at(other.peer_id) is None


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
