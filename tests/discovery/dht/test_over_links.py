"""The same DHT over sockets: real handshakes, real signatures, nothing simulated."""

import os
import random
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
from discovery.dht.harness import SWARM_KEY, by_distance

from p2pswarm.base.errors import NoRoute
from p2pswarm.base.ids import Address, Contact
from p2pswarm.discovery.dht.config import DhtConfig
from p2pswarm.discovery.dht.node import Dht
from p2pswarm.net.config import TransportConfig
from p2pswarm.net.crypto.identity import Identity
from p2pswarm.net.endpoint.endpoint import Endpoint
from p2pswarm.net.os.sockets import SocketNet
from p2pswarm.net.rpc.link_rpc import LinkRpc

HERE = Address("127.0.0.1", 0)


@asynccontextmanager
async def node(*, server: bool = True) -> AsyncIterator[Dht]:
    identity = Identity.generate()
    async with Endpoint(identity, SocketNet(), TransportConfig(), os.urandom) as endpoint:
        await endpoint.listen(HERE)
        async with (
            LinkRpc(endpoint) as rpc,
            Dht(rpc, identity, DhtConfig(server=server), random.Random(1), time.time) as dht,
        ):
            yield dht


async def nobodys_address() -> Address:
    """One that was listened at, and is not any more."""
    async with node() as gone:
        return gone.contact.address


async def test_nodes_find_each_others_values_with_one_dead_seed_of_three():
    async with AsyncExitStack() as stack:
        nodes = [await stack.enter_async_context(node()) for _ in range(6)]
        seeds = [nodes[0].contact.address, await nobodys_address(), nodes[1].contact.address]
        for each in nodes[1:]:
            await each.bootstrap([Contact(None, seed) for seed in seeds])
        client = await stack.enter_async_context(node(server=False))
        await client.bootstrap([Contact(None, seed) for seed in seeds])

        assert await nodes[3].put(SWARM_KEY, b"a", b"value", 60.0) >= 5
        for each in [*by_distance(nodes), client]:
            found = await each.get(SWARM_KEY)
            assert found[b"a"].value == b"value"


async def test_dead_seeds_are_named():
    dead = await nobodys_address()
    async with node() as lonely:
        with pytest.raises(NoRoute, match=str(dead)):
            await lonely.bootstrap([Contact(None, dead)])
