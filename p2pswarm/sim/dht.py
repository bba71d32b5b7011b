"""A DHT of thousands of nodes in one process, which have joined already.

Their tables are full from the start (`sim/full_tables.py`). A share of the entries is stale: their
peers are dead and never answer. This is pessimistic, because real tables drop peers that they find
dead. All other code that runs is the DHT's own.

Units:   virtual seconds.
"""

import asyncio
import random
from dataclasses import dataclass, field

from p2pswarm.base.ids import Address, Contact, PeerId
from p2pswarm.discovery.dht.config import DhtConfig
from p2pswarm.discovery.dht.node import Dht
from p2pswarm.discovery.dht.routing_table import Neighbour, neighbour
from p2pswarm.net.crypto.identity import Identity
from p2pswarm.sim.full_tables import fill_tables
from p2pswarm.sim.rpc import SimRpc, SimWorld
from p2pswarm.sim.world import WorldConfig

EPOCH_S = 1_700_000_000.0  # the wall clock when a simulation starts
DEAD_NET = "172.16.0.1"  # no host has this address


@dataclass(frozen=True, kw_only=True, slots=True)
class DhtWorldConfig:
    """The number of nodes, and their network."""

    nodes: int = 1000
    stale: float = 0.3
    """Share of the table entries whose peers are dead."""
    seed: int = 1
    world: WorldConfig = field(default_factory=WorldConfig)
    dht: DhtConfig = field(default_factory=DhtConfig)


class DhtWorld:
    """Nodes with full tables. Make it inside a running loop, and close it."""

    def __init__(self, config: DhtWorldConfig) -> None:
        self.config = config
        self.net = SimWorld(config.seed, config.world)
        self.rng = random.Random(config.seed)
        self.nodes: list[Dht] = []
        self.rpcs: list[SimRpc] = []
        for _ in range(config.nodes):
            self.enter()
        if self.nodes:
            everybody = [neighbour(rpc.contact, 0.0) for rpc in self.rpcs] + self._dead()
            fill_tables([node.table for node in self.nodes], everybody, config.seed)

    def wall_s(self) -> float:
        """The wall clock of all nodes, in seconds since 1970."""
        return EPOCH_S + asyncio.get_running_loop().time()

    def enter(
        self,
        config: DhtConfig | None = None,
        identity: Identity | None = None,
        address: Address | None = None,
    ) -> Dht:
        """Add a node, which knows no peer yet."""
        identity = identity or Identity.generate(self.rng.randbytes(32))
        rpc = self.net.rpc(identity.peer_id, address=address)
        config = config or self.config.dht
        if not config.server:
            self.net.cards.say(identity.peer_id)
        rng = random.Random(self.rng.random())
        self.nodes.append(Dht(rpc, identity, config, rng, self.wall_s))
        self.rpcs.append(rpc)
        return self.nodes[-1]

    def link_tables(self) -> None:
        """Give both ends of every table entry a link, as they have after a while."""
        rpcs = {rpc.host.peer.raw: rpc for rpc in self.rpcs}
        for node, rpc in zip(self.nodes, self.rpcs, strict=True):
            for each in node.table:
                other = rpcs.get(each.raw)
                if other is not None:
                    rpc.note_link(other.host, other, 0.0)

    async def close(self) -> None:
        """End every node."""
        for node in self.nodes:
            await node.close()

    def _dead(self) -> list[Neighbour]:
        """Dead peers, so many that their share of all entries is `stale`."""
        stale = self.config.stale
        count = round(self.config.nodes * stale / (1 - stale))
        address = Address(DEAD_NET, 1)
        ids = [PeerId(self.rng.randbytes(32)) for _ in range(count)]
        dead = [Contact(peer, address) for peer in ids]
        for peer, contact in zip(ids, dead, strict=True):
            self.net.cards.say(peer, contact)
        return [neighbour(contact, 0.0) for contact in dead]
