"""Nodes on loopback that are reached through a relay, and punch; no router stands between them."""

import asyncio
import os
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from p2pswarm.base.ids import Address, PeerId
from p2pswarm.net.config import TransportConfig
from p2pswarm.net.crypto.identity import Identity
from p2pswarm.net.endpoint.endpoint import Endpoint
from p2pswarm.net.endpoint.link_io import Link
from p2pswarm.net.link.path import PathKind
from p2pswarm.net.os.sockets import SocketNet
from p2pswarm.net.rpc.link_rpc import LinkRpc
from p2pswarm.reach.punch.observed_addresses_io import OutsideView
from p2pswarm.reach.punch.puncher import Puncher
from p2pswarm.reach.relay.circuit_net import CircuitNet
from p2pswarm.reach.relay.reservations_io import RelayKeeper
from tests.reach.relay.harness import LOOPBACK, PATIENCE_S, Host, relay

DIAL_S = 0.5  # on one machine nobody is late


@dataclass
class PunchingHost:
    """A node, and what punches for it."""

    node: Host
    puncher: Puncher

    @property
    def peer(self) -> PeerId:
        return self.node.peer

    def link(self, peer: PeerId) -> Link:
        """The link to a peer, which is up."""
        return next(each for each in self.node.endpoint.links() if each.peer == peer)

    async def moved(self, peer: PeerId, kind: PathKind = PathKind.PUNCHED) -> Link:
        """The link to a peer, once it goes by a path of this kind."""
        link = self.link(peer)
        async with asyncio.timeout(PATIENCE_S):
            while link.path is None or link.path.kind is not kind:
                link.path_change.clear()
                await link.path_change.wait()
        return link


@asynccontextmanager
async def punching(relay_node: Host, *, punches: bool = True, **settings):
    """A node that listens, and names the relay alone. `punches`: whether it begins to."""
    net = SocketNet()
    inner = CircuitNet(net)
    config = TransportConfig(**settings)
    async with Endpoint(Identity.generate(), inner, config, os.urandom) as endpoint:
        await endpoint.listen(LOOPBACK)
        async with (
            LinkRpc(endpoint) as rpc,
            RelayKeeper(endpoint, rpc, inner) as keeper,
            Puncher(
                endpoint, rpc, net, os.urandom, OutsideView(endpoint, net, list), DIAL_S
            ) as puncher,
        ):
            node = Host(endpoint, rpc, inner)
            node.keeper = keeper
            keeper.offer([relay_node.endpoint.contact])
            async with asyncio.timeout(PATIENCE_S):
                await keeper.reachable()
            endpoint.announced = keeper.addresses[0]
            if punches:
                puncher.view.keep_seen_at(lambda: keeper.relays)
                endpoint.candidates.offered = puncher
            yield PunchingHost(node, puncher)


@asynccontextmanager
async def meeting(*, punches: bool = True, **settings):
    """A relay that vouches, and two nodes: dialler, target, relay."""
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        middle = await enter(relay())
        view = OutsideView(middle.endpoint, SocketNet(), list)
        await enter(Puncher(middle.endpoint, middle.rpc, SocketNet(), os.urandom, view))
        target = await enter(punching(middle, punches=punches, **settings))
        dialler = await enter(punching(middle, punches=punches, **settings))
        yield dialler, target, middle


class Victim:
    """A third party, which counts who dials it."""

    def __init__(self):
        self.dials = 0

    @property
    def address(self) -> Address:
        return Address(*self._server.sockets[0].getsockname())

    def _count(self, reader, writer):
        del reader
        self.dials += 1
        writer.close()

    async def __aenter__(self):
        self._server = await asyncio.start_server(self._count, LOOPBACK.host, 0)
        return self

    async def __aexit__(self, *error):
        self._server.close()
