"""A peer that breaks the protocol again and again, over real links, and an honest one beside it."""

import asyncio
import os
from dataclasses import dataclass

import pytest

from p2pswarm.base.errors import BadMessage, DialFailed, LinkLost, SwarmError
from p2pswarm.base.ids import Address
from p2pswarm.net.config import TransportConfig
from p2pswarm.net.crypto.identity import Identity
from p2pswarm.net.endpoint.endpoint import Endpoint
from p2pswarm.net.os.sockets import SocketNet
from p2pswarm.net.rpc.link_rpc import LinkRpc
from p2pswarm.net.wire.message import Message, message

PATIENCE_S = 20.0


@message(64_901)
@dataclass(frozen=True, slots=True)
class AskWell(Message):
    well: bool


class Peer:
    """A node that listens on loopback; a bad question ends its link."""

    async def __aenter__(self):
        self.endpoint = Endpoint(Identity.generate(), SocketNet(), TransportConfig(), os.urandom)
        await self.endpoint.listen(Address("127.0.0.1", 0))
        self.rpc = LinkRpc(self.endpoint)
        self.rpc.serve_unary(AskWell, self._answer)
        return self

    async def __aexit__(self, *error):
        await self.rpc.close()
        await self.endpoint.close()

    @staticmethod
    def _answer(peer, asked):
        if not asked.well:
            raise BadMessage("as a hostile peer's")
        return asked

    async def ask(self, other, *, well=True):
        return await self.rpc.call(other.rpc.contact, AskWell(well), PATIENCE_S)


async def offend(eve, node):
    """Three breaches: each costs the link."""
    for _ in range(3):
        with pytest.raises(SwarmError):
            await eve.ask(node, well=False)


async def test_who_breaks_the_protocol_three_times_is_not_let_in_and_not_dialled():
    async with asyncio.timeout(PATIENCE_S), Peer() as node, Peer() as eve, Peer() as ann:
        await ann.ask(node)
        await offend(eve, node)

        with pytest.raises(SwarmError):
            await eve.ask(node)
        assert list(eve.endpoint.bans.banned_by) == [node.endpoint.peer_id.raw]
        with pytest.raises(DialFailed, match="is banned for another"):
            await node.ask(eve)
        assert await ann.ask(node) == AskWell(True), "the same host, and nothing has changed"
        assert await node.ask(ann) == AskWell(True)
        async with Peer() as bob:
            assert await bob.ask(node) == AskWell(True), "a newcomer of the same host"
        now_s = asyncio.get_running_loop().time()
        assert [ban.peer for ban in node.endpoint.bans.current(now_s)] == [eve.endpoint.peer_id.raw]
        assert eve.endpoint.bans.current(now_s) == [], "nobody told it anything bad"


async def test_a_ban_closes_the_links_that_are_up():
    async with asyncio.timeout(PATIENCE_S), Peer() as node, Peer() as eve:
        await offend(eve, node)

        assert eve.endpoint.peer_id not in [link.peer for link in node.endpoint.links()]


async def test_what_a_peer_answers_is_no_offence_of_who_asks():
    """The asked side says BadMessage of us; we do not ban it for that."""
    async with asyncio.timeout(PATIENCE_S), Peer() as node, Peer() as eve:
        await offend(eve, node)
        now_s = asyncio.get_running_loop().time()

        assert eve.endpoint.bans.reason(node.endpoint.peer_id, now_s) == ""


async def test_who_is_banned_hears_why_and_for_how_long_and_its_user_reads_it_once(caplog):
    async with asyncio.timeout(PATIENCE_S), Peer() as node, Peer() as eve:
        await offend(eve, node)

        for _ in range(3):
            with pytest.raises(LinkLost, match="banned this node for another 1 min: it says that"):
                await eve.ask(node)

    (said,) = [line for line in caplog.messages if "it has banned this node" in line]
    assert said.startswith(f"link to {node.endpoint.peer_id.short}: ")
    assert "this node sent messages that are malformed or forged; wait, and run the same" in said
