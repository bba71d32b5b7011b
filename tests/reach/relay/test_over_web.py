"""Two nodes that have only the web meet at a relay over WebSocket."""

import os
from contextlib import AsyncExitStack
from dataclasses import replace

import pytest

from p2pswarm.base.errors import DialFailed
from p2pswarm.base.ids import Contact
from p2pswarm.net.os.sockets import SocketNet
from p2pswarm.net.os.web_net import WebNet
from p2pswarm.net.os.web_socket import WebUpgrade
from tests.reach.relay.harness import LOOPBACK, behind_nat, host, relay


class OnlyTheWeb(SocketNet):
    """A firewall that lets nothing through but WebSocket."""

    async def dial(self, to):
        raise DialFailed(f"{to}: dropped by the firewall")


@pytest.fixture
async def web():
    """A relay that also takes WebSockets, its address for them, and a network with only those."""
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        middle = await enter(relay())
        at = await middle.endpoint.listen(LOOPBACK, await enter(WebUpgrade()))
        yield middle, replace(at, web="ws"), await enter(WebNet(OnlyTheWeb()))


async def test_two_nodes_call_and_stream_through_a_relay_over_websocket(web):
    middle, address, net = web
    tensor = os.urandom(2_000_000)
    at = Contact(middle.peer, address)
    async with behind_nat(at, net=net) as target, behind_nat(at, net=net) as dialler:
        assert str(target.contact.address) == f"{address}/{target.peer}"

        assert await dialler.ask(target.contact) == f"hello {dialler.peer.short}"
        await dialler.send(target.contact, tensor)
        assert target.got == tensor
        await target.send(dialler.contact, tensor)
        assert dialler.got == tensor


async def test_one_over_tcp_meets_one_over_websocket(web):
    middle, address, net = web
    at = Contact(None, address)
    async with behind_nat(at, net=net) as target, host(listens=False) as dialler:
        through = middle.endpoint.contact.address.through(target.peer)

        assert await dialler.ask(Contact(target.peer, through)) == f"hello {dialler.peer.short}"


async def test_a_node_is_called_itself_over_websocket(web):
    middle, address, net = web
    async with host(listens=False, net=net) as dialler:
        assert await dialler.ask(Contact(middle.peer, address)) == f"hello {dialler.peer.short}"
