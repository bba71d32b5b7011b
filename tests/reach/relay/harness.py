"""Nodes on loopback of which some cannot be dialled, and relays between them."""

import asyncio
import os
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Annotated

from p2pswarm.base.ids import Address, Contact, PeerId
from p2pswarm.net.config import TransportConfig
from p2pswarm.net.crypto.identity import Identity
from p2pswarm.net.endpoint.endpoint import Endpoint
from p2pswarm.net.os.sockets import SocketNet
from p2pswarm.net.rpc.base import Priority, Stream
from p2pswarm.net.rpc.link_rpc import LinkRpc
from p2pswarm.net.wire.message import Message, Size, message
from p2pswarm.reach.relay.circuit_net import CircuitNet
from p2pswarm.reach.relay.relay import Relay, RelayRates
from p2pswarm.reach.relay.relay_table import RelayLimits
from p2pswarm.reach.relay.reservations_io import RelayKeeper

LOOPBACK = Address("127.0.0.1", 0)
PATIENCE_S = 20.0  # a hang fails the test; nothing here takes a second


@message(9941)
@dataclass(frozen=True, slots=True)
class Ask(Message):
    text: Annotated[str, Size(50)]


@message(9942)
@dataclass(frozen=True, slots=True)
class Answer(Message):
    text: Annotated[str, Size(50)]


@message(9943)
@dataclass(frozen=True, slots=True)
class Bulk(Message):
    nbytes: int
    transfer: int


class Host:
    """A node without a DHT: it answers `Ask`, and takes and keeps what is sent in bulk."""

    def __init__(self, endpoint: Endpoint, rpc: LinkRpc, net: CircuitNet):
        self.endpoint, self.rpc, self.net = endpoint, rpc, net
        self.keeper: RelayKeeper | None = None
        self.relay: Relay | None = None
        self.got = b""
        rpc.serve_unary(Ask, self._answer)
        rpc.serve_stream(Bulk, self._take)

    @property
    def peer(self) -> PeerId:
        return self.endpoint.peer_id

    @property
    def contact(self) -> Contact:
        """Where to dial it: through its first relay, if it has one."""
        if self.keeper is not None:
            return Contact(self.peer, self.keeper.addresses[0])
        return self.endpoint.contact

    def _answer(self, peer: PeerId, asked: Ask) -> Answer:
        return Answer(f"{asked.text} {peer.short}")

    async def _take(self, stream: Stream, asked: Bulk) -> None:
        memory = bytearray(asked.nbytes)
        arrival = stream.expect(memoryview(memory))
        await stream.send(Bulk(0, arrival.transfer))
        await arrival.wait()
        self.got = bytes(memory)

    async def ask(self, to: Contact, text: str = "hello") -> str:
        reply = await self.rpc.call(to, Ask(text), PATIENCE_S)
        assert isinstance(reply, Answer)
        return reply.text

    async def send(self, to: Contact, data: bytes) -> None:
        """Send bytes in bulk; returns when they are there."""
        async with self.rpc.open_stream(to, Bulk(len(data), 0), PATIENCE_S) as stream:
            granted = await stream.receive()
            assert isinstance(granted, Bulk)
            await stream.send_bulk(granted.transfer, memoryview(data), Priority.TENSOR)
            assert await stream.receive() is None


@asynccontextmanager
async def host(*, listens: bool, net: SocketNet | None = None, **settings):
    inner = CircuitNet(net or SocketNet())
    config = TransportConfig(**settings)
    async with Endpoint(Identity.generate(), inner, config, os.urandom) as endpoint:
        if listens:
            await endpoint.listen(LOOPBACK)
        async with LinkRpc(endpoint) as rpc:
            yield Host(endpoint, rpc, inner)


@asynccontextmanager
async def relay(limits: RelayLimits | None = None, rates: RelayRates | None = None):
    async with (
        host(listens=True) as node,
        Relay(node.endpoint, node.rpc, os.urandom, limits, rates) as node.relay,
    ):
        yield node


@asynccontextmanager
async def behind_nat(*relays: Contact, net: SocketNet | None = None, **settings):
    """A node that does not listen, and is reachable through relays."""
    async with (
        host(listens=False, net=net, **settings) as node,
        RelayKeeper(node.endpoint, node.rpc, node.net) as node.keeper,
    ):
        node.keeper.offer(relays)
        async with asyncio.timeout(PATIENCE_S):
            await node.keeper.reachable()
        yield node


@asynccontextmanager
async def meeting(limits: RelayLimits | None = None, rates: RelayRates | None = None):
    """A relay, and two nodes that cannot be dialled: dialler, target, relay."""
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        middle = await enter(relay(limits, rates))
        target = await enter(behind_nat(middle.endpoint.contact))
        dialler = await enter(behind_nat(middle.endpoint.contact))
        yield dialler, target, middle
