"""A few real DHT nodes in virtual time, joined through the first of them."""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from p2pswarm.dht.config import DhtConfig
from p2pswarm.dht.node import Dht
from p2pswarm.ids import Contact
from p2pswarm.sim.dht import DhtWorld, DhtWorldConfig
from p2pswarm.sim.world import WorldConfig

LAN = WorldConfig(rtt_median_s=0.001, rtt_least_s=0.0005)
KEY = hashlib.sha256(b"the key of these tests").digest()


def address(*nodes: Dht) -> list[Contact]:
    """What a bootstrap flag tells of them."""
    return [Contact(None, node.contact.address) for node in nodes]


@asynccontextmanager
async def swarm(
    count: int, config: DhtConfig | None = None, world: WorldConfig = LAN
) -> AsyncIterator[DhtWorld]:
    """`count` nodes; everybody knows everybody if they are few."""
    config = config or DhtConfig()
    made = DhtWorld(DhtWorldConfig(nodes=0, stale=0.0, world=world, dht=config))
    for number in range(count):
        node = made.enter()
        await node.bootstrap(address(*made.nodes[: min(number, 1)]))
    await asyncio.sleep(2)
    try:
        yield made
    finally:
        await made.close()


def by_distance(nodes: Sequence[Dht], key: bytes = KEY) -> list[Dht]:
    """The closest to a key first."""

    def distance(node: Dht) -> int:
        assert node.contact.peer is not None
        return node.contact.peer.distance(key)

    return sorted(nodes, key=distance)
