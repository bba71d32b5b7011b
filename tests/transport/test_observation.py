"""Observations and knocks: what a connection is for is told by its first bytes, and bounded."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transport.harness import PATIENCE_S, End, contact_of, listening

from p2pswarm.errors import BadHandshake
from p2pswarm.ids import Address
from p2pswarm.net.sockets import SocketNet
from p2pswarm.transport import observation
from p2pswarm.transport.knock import knock, token_of


@pytest.mark.parametrize("host", ["203.0.113.7", "2001:db8::7"])
def test_an_answer_names_where_a_connection_comes_from(host):
    data = observation.answer(Address(host, 4000))

    assert observation.read_answer(data) == Address(host, 4000)
    assert len(data) < len(observation.request())


@given(data=st.binary(max_size=40))
def test_any_other_answer_is_a_bad_handshake(data):
    with pytest.raises(BadHandshake):
        observation.read_answer(data)


@given(data=st.binary(min_size=18, max_size=18))
def test_any_address_is_read_or_refused(data):
    try:
        observation.read_answer(observation.MAGIC + data)
    except BadHandshake:
        return


async def test_an_endpoint_tells_where_it_sees_a_connection():
    async with End() as end, asyncio.timeout(PATIENCE_S):
        await listening(end)
        net = SocketNet()
        ours = await net.listen(Address("127.0.0.1", 0))
        connection = await net.dial(end.contact.address, from_port=ours.address.port)
        await connection.send(observation.request())

        seen = observation.read_answer(await connection.receive(observation.ANSWER_BYTES))

        assert seen == ours.address
        connection.close()
        ours.close()


async def test_a_knock_is_told_by_its_token():
    async with End() as end, asyncio.timeout(PATIENCE_S):
        await listening(end)
        heard: asyncio.Queue[bytes] = asyncio.Queue()
        end.expect_knocks(heard.put_nowait)
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
