"""Dial-backs over sockets: peers of three loopback networks dial a node, or lie about it."""

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest

from p2pswarm.base.ids import Address, PeerId
from p2pswarm.net.config import TransportConfig
from p2pswarm.net.crypto.identity import Identity
from p2pswarm.net.endpoint.endpoint import Endpoint
from p2pswarm.net.endpoint.preface import KNOCK_MAGIC, knock, token_of
from p2pswarm.net.os.sockets import SocketNet
from p2pswarm.net.rpc.link_rpc import LinkRpc
from p2pswarm.reach.nat import reachability as machine
from p2pswarm.reach.nat.dial_back import DialBack, DialledBack, DialOutcome
from p2pswarm.reach.nat.dial_back_io import DialBackServer
from p2pswarm.reach.nat.reachability import Belief, NatKind, State
from p2pswarm.reach.nat.reachability_io import Reachability

PATIENCE_S = 20.0
NODE, NEAR, FAR, FARTHER = "127.0.0.1", "127.1.0.1", "127.2.0.1", "127.3.0.1"


class CountingNet(SocketNet):
    """Notes what is dialled."""

    def __init__(self):
        super().__init__()
        self.dialled: list[Address] = []

    async def dial(self, to: Address, from_port: int = 0):
        self.dialled.append(to)
        return await super().dial(to, from_port)


@dataclass
class Peer:
    endpoint: Endpoint
    rpc: LinkRpc
    net: CountingNet


@asynccontextmanager
async def peer_at(host: str, *, honest: bool = True) -> AsyncIterator[Peer]:
    """A node that listens; an honest one dials back who asks it to."""
    net = CountingNet()
    async with (
        Endpoint(Identity.generate(), net, TransportConfig(), os.urandom) as endpoint,
        LinkRpc(endpoint) as rpc,
    ):
        await endpoint.listen(Address(host, 0))
        if honest:
            DialBackServer(rpc, net, endpoint.seen_at, time.time)
        yield Peer(endpoint, rpc, net)


@asynccontextmanager
async def reachability(peer: Peer) -> AsyncIterator[Reachability]:
    bound = peer.endpoint.contact.address
    reach = Reachability(peer.endpoint, peer.rpc, bound, os.urandom, map_ports=False)
    task = asyncio.create_task(reach.run())
    try:
        async with asyncio.timeout(PATIENCE_S):
            yield reach
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def liar(peer: Peer, *, named: str = NODE, outcome: DialOutcome = DialOutcome.CONNECTED) -> None:
    """Claim to have dialled, without a dial."""

    def lie(_asker: PeerId, request: DialBack) -> DialledBack:
        return DialledBack(outcome, named, request.port, 0)

    peer.rpc.serve_unary(DialBack, lie)


async def test_two_networks_that_arrive_make_a_node_sure():
    async with peer_at(NODE) as node, peer_at(NEAR) as near, peer_at(FAR) as far:
        for other in (near, far):
            await node.endpoint.link(other.endpoint.contact)

        async with reachability(node) as reach:
            await reach.known()

        at = node.endpoint.contact.address
        assert reach.best() == Belief(State.PUBLIC, NatKind.NONE, at, sure=True)
        assert near.net.dialled == [at]
        assert set(reach.clocks_ms) == {NEAR, FAR}


async def test_one_network_alone_is_an_assumption():
    async with peer_at(NODE) as node, peer_at(NEAR) as near:
        await node.endpoint.link(near.endpoint.contact)

        async with reachability(node) as reach:
            await reach.known()

        at = node.endpoint.contact.address
        assert reach.best() == Belief(State.PUBLIC, NatKind.NONE, at, sure=False)


async def test_who_comes_after_the_first_round_is_waited_for(monkeypatch):
    monkeypatch.setattr(machine, "AGAIN_UNANSWERED_S", 0.3)
    async with peer_at(NODE) as node, peer_at(NEAR) as near, peer_at(FAR) as far:
        await node.endpoint.link(near.endpoint.contact)

        async with reachability(node) as reach:
            await reach.known()
            assert not reach.best().sure
            await node.endpoint.link(far.endpoint.contact)
            await asyncio.sleep(0.1)  # it is noticed
            await reach.known()

            assert reach.best().sure


async def test_a_claim_without_a_knock_is_a_failure():
    async with (
        peer_at(NODE) as node,
        peer_at(NEAR, honest=False) as near,
        peer_at(FAR, honest=False) as far,
    ):
        for other in (near, far):
            liar(other)
            await node.endpoint.link(other.endpoint.contact)

        async with reachability(node) as reach:
            await reach.known()

        assert reach.best().state is State.NATTED
        assert reach.best().sure


async def test_who_declines_has_no_vote():
    async with peer_at(NODE) as node, peer_at(NEAR, honest=False) as near:
        liar(near, outcome=DialOutcome.NOT_TRIED)
        await node.endpoint.link(near.endpoint.contact)

        async with reachability(node) as reach:
            await reach.known()

        assert reach.best() == Belief(State.PROBING)


@pytest.mark.parametrize("outcome", [DialOutcome.CONNECTED, DialOutcome.FAILED])
async def test_who_has_dialled_the_other_family_meanwhile_has_no_vote_in_this_one(outcome):
    async with peer_at(NODE) as node, peer_at(NEAR, honest=False) as near:
        liar(near, named="2a00:77::5", outcome=outcome)
        await node.endpoint.link(near.endpoint.contact)

        async with reachability(node) as reach:
            await reach.known()

        assert reach.best() == Belief(State.PROBING)


async def test_a_name_that_is_no_host_is_dropped():
    async with peer_at(NODE) as node, peer_at(NEAR, honest=False) as near:
        liar(near, named="no host at all")
        await node.endpoint.link(near.endpoint.contact)

        async with reachability(node) as reach:
            await reach.known()

        assert reach.best() == Belief(State.PROBING)


async def test_a_node_that_others_join_through_asks_those_who_came():
    async with peer_at(NODE) as node, peer_at(NEAR) as near:
        async with reachability(node) as reach:
            changed = asyncio.Event()
            reach.on_change = lambda belief: changed.set() if belief.address else None
            await near.endpoint.link(node.endpoint.contact)
            await changed.wait()

        assert reach.best().address == node.endpoint.contact.address
        assert (
            near.net.dialled == [node.endpoint.contact.address] * 2
        )  # its link, and the dial-back


async def test_only_the_host_of_the_link_is_dialled_whatever_port_is_asked_for():
    async with peer_at(NODE) as node, peer_at(NEAR) as near:
        answer = await node.rpc.call(near.endpoint.contact, DialBack(9, bytes(16)), PATIENCE_S)

        assert isinstance(answer, DialledBack)
        assert (answer.outcome, answer.host) == (DialOutcome.FAILED, NODE)
        assert near.net.dialled == [Address(NODE, 9)]


async def test_a_flood_of_requests_is_declined():
    async with peer_at(NODE) as node, peer_at(NEAR) as near:
        contact = near.endpoint.contact
        outcomes = [
            (await node.rpc.call(contact, DialBack(9, bytes(16)), PATIENCE_S)).outcome
            for _ in range(8)
        ]

        assert outcomes == [DialOutcome.FAILED] * 4 + [DialOutcome.NOT_TRIED] * 4
        assert len(near.net.dialled) == 4


@pytest.mark.parametrize("sent", [knock(b"n" * 16), KNOCK_MAGIC + b"short", KNOCK_MAGIC])
async def test_knocks_that_nobody_waits_for_do_no_harm(sent):
    async with peer_at(NODE) as node, peer_at(NEAR) as near, reachability(node):
        connection = await near.net.dial(node.endpoint.contact.address)
        await connection.send(sent)
        connection.close()

        link = await near.endpoint.link(node.endpoint.contact)

        assert link.peer == node.endpoint.peer_id


def test_what_is_sent_is_not_what_was_asked_for():
    assert knock(b"n" * 16) == KNOCK_MAGIC + token_of(b"n" * 16)
    assert b"n" * 16 not in knock(b"n" * 16)


class Elsewhere:
    """Sees every peer at an address of its choice."""

    def __init__(self, at: Address | None):
        self._at = at

    def __call__(self, _peer: PeerId) -> Address | None:
        return self._at


@pytest.mark.parametrize(
    "seen",
    [
        None,
        Address(NODE, 9, circuit=b"p" * 32),
        Address(NODE, 9, web="wss"),
        Address("198.51.100.1", 9, circuit=b"p" * 32),
    ],
)
async def test_a_peer_behind_a_relay_or_a_proxy_has_nobody_dialled(seen):
    async with peer_at(NODE) as node, peer_at(NEAR, honest=False) as near:
        DialBackServer(near.rpc, near.net, Elsewhere(seen), time.time)

        answer = await node.rpc.call(near.endpoint.contact, DialBack(9, bytes(16)), PATIENCE_S)

        assert isinstance(answer, DialledBack)
        assert answer.outcome == DialOutcome.NOT_TRIED
        assert near.net.dialled == []
