"""A DHT of thousands of nodes in one process, joined already.

Letting 10,000 nodes join one after another would take longer than what is to be
measured. So their tables are filled from what is true: each bucket gets `k` of the
nodes that belong into it, chosen at random, or all if they are fewer. A share of the
entries is stale: their peers are dead, were never pruned, and never answer. That is
pessimistic, as real tables drop whom they find dead. From there on every line that
runs is the service's own.

Units:   virtual seconds.
Shapes:  `own` (nodes,), `ascending` and `order` (ids,), living and dead; `shares` (nodes, draws).
Source:  Maymounkov and Mazieres, "Kademlia" (2002), 2.2, for what a table holds.
"""

import asyncio
import random
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from p2pswarm.crypto.identity import Identity
from p2pswarm.dht.bucket import Neighbour
from p2pswarm.dht.config import DhtConfig
from p2pswarm.dht.node import Dht
from p2pswarm.dht.routing_table import neighbour
from p2pswarm.ids import Address, Contact, PeerId
from p2pswarm.sim.rpc import SimRpc, SimWorld
from p2pswarm.sim.world import WorldConfig

EPOCH_S = 1_700_000_000.0  # the wall clock when a simulation starts
PREFIX_BITS = 64  # of an id, compared in one machine word; 10,000 ids part after 27
DRAWS_SPARE = 12  # draws of a bucket's k members that may be doubles
DEAD_NET = "172.16.0.1"  # where nobody lives


@dataclass(frozen=True, kw_only=True, slots=True)
class DhtWorldConfig:
    """How many nodes, and what they live in."""

    nodes: int = 1000
    stale: float = 0.3
    """Share of the table entries whose peers are dead."""
    seed: int = 1
    world: WorldConfig = field(default_factory=WorldConfig)
    dht: DhtConfig = field(default_factory=DhtConfig)


class DhtWorld:
    """Nodes with full tables; make it inside a running loop, and close it."""

    def __init__(self, config: DhtWorldConfig) -> None:
        self.config = config
        self.net = SimWorld(config.seed, config.world)
        self.rng = random.Random(config.seed)
        self.nodes: list[Dht] = []
        self.rpcs: list[SimRpc] = []
        for _ in range(config.nodes):
            self.enter()
        if self.nodes:
            self._fill()

    def wall_s(self) -> float:
        """Everybody's wall clock."""
        return EPOCH_S + asyncio.get_running_loop().time()

    def enter(self, config: DhtConfig | None = None) -> Dht:
        """One more node, which knows nobody yet."""
        identity = Identity.generate(self.rng.randbytes(32))
        rpc = self.net.rpc(identity.peer_id)
        rng = random.Random(self.rng.random())
        self.nodes.append(Dht(rpc, identity, config or self.config.dht, rng, self.wall_s))
        self.rpcs.append(rpc)
        return self.nodes[-1]

    def link_tables(self) -> None:
        """Let both ends of every table entry hold a link, as they do after a while."""
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

    def _fill(self) -> None:
        """Give every node the table that it would have."""
        everybody = [neighbour(rpc.contact, 0.0) for rpc in self.rpcs] + self._dead()
        prefixes = np.array(
            [each.number >> 8 * len(each.raw) - PREFIX_BITS for each in everybody], np.uint64
        )
        order = np.argsort(prefixes)
        ascending = prefixes[order]
        own = prefixes[: len(self.nodes)]
        level = 0
        alone = False
        while not alone and level < PREFIX_BITS:
            first, end = _range_of_bucket(own, ascending, level)
            alone = not np.any(_count_in_prefix(own, ascending, level) > 1)
            self._fill_level(level, everybody, order, np.stack((first, end), axis=1))
            level += 1

    def _fill_level(
        self,
        level: int,
        everybody: list[Neighbour],
        order: NDArray[np.int64],
        ranges: NDArray[np.int64],
    ) -> None:
        k = self.config.dht.k
        chance = np.random.Generator(np.random.PCG64([self.config.seed, level]))
        shares = chance.random((len(self.nodes), k + DRAWS_SPARE))
        for node, (first, end), share in zip(self.nodes, ranges.tolist(), shares, strict=True):
            count = end - first
            if count > k:
                drawn = dict.fromkeys((first + (share * count).astype(int)).tolist())
                places = list(drawn)[:k]
            else:
                places = list(range(first, end))
            if places:
                node.table.fill(level, [everybody[order[place]] for place in places])

    def _dead(self) -> list[Neighbour]:
        """As many as make `stale` of all entries."""
        stale = self.config.stale
        count = round(self.config.nodes * stale / (1 - stale))
        address = Address(DEAD_NET, 1)
        ids = [PeerId(self.rng.randbytes(32)) for _ in range(count)]
        return [neighbour(Contact(peer, address), 0.0) for peer in ids]


def _range_of_bucket(
    own: NDArray[np.uint64], ascending: NDArray[np.uint64], level: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Where in the sorted ids those stand that share exactly `level` leading bits with each."""
    free = np.uint64(PREFIX_BITS - 1 - level)
    sibling = ((own >> free) ^ np.uint64(1)) << free
    last = sibling | ((np.uint64(1) << free) - np.uint64(1))
    return (
        np.searchsorted(ascending, sibling, side="left"),
        np.searchsorted(ascending, last, side="right"),
    )


def _count_in_prefix(
    own: NDArray[np.uint64], ascending: NDArray[np.uint64], level: int
) -> NDArray[np.int64]:
    """How many ids share `level` leading bits or more with each, itself included."""
    free = np.uint64(PREFIX_BITS - level) if level else np.uint64(0)
    if not level:
        return np.full(len(own), len(ascending))
    first = (own >> free) << free
    last = first | ((np.uint64(1) << free) - np.uint64(1))
    left = np.searchsorted(ascending, first, side="left")
    return np.searchsorted(ascending, last, side="right") - left
