"""A DHT of thousands of nodes in one process, which have joined already.

Units:   virtual seconds.
Shapes:  `own` (tables,), `ascending` and `order` (ids,), living and dead; `shares` (tables, draws).
Source:  Maymounkov and Mazieres, "Kademlia" (2002), 2.2, for the contents of a table.
"""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from p2pswarm.base.ids import Address, Contact, PeerId
from p2pswarm.discovery.dht.config import DhtConfig
from p2pswarm.discovery.dht.node import Dht
from p2pswarm.discovery.dht.routing_table import Neighbour, Table, neighbour
from p2pswarm.net.crypto.identity import Identity
from p2pswarm.sim.network_conditions import WorldConfig
from p2pswarm.sim.rpc import SimRpc, SimWorld

PREFIX_BITS = 64  # bits of an id that we compare: a machine word; 10,000 ids differ within 27
DRAWS_SPARE = 12  # more draws than a bucket's k members, since some are doubles


def fill_tables(tables: Sequence[Table], everybody: Sequence[Neighbour], seed: int) -> None:
    """Fill the tables of the first peers of `everybody`, in their order.

    If 10,000 nodes joined one after another, that would take longer than the measurement. So their
    tables are filled directly: each bucket gets `k` random peers of those that belong into it, or
    all if they are fewer.

    Source: Maymounkov and Mazieres, "Kademlia" (2002), 2.2, for the contents of a table.
    """
    prefixes = np.array(
        [each.number >> 8 * len(each.raw) - PREFIX_BITS for each in everybody], np.uint64
    )
    order = np.argsort(prefixes)
    ascending = prefixes[order]
    own = prefixes[: len(tables)]
    members = [everybody[place] for place in order.tolist()]
    level = 0
    alone = False
    while not alone and level < PREFIX_BITS:
        first, end = _range_of_bucket(own, ascending, level)
        alone = not np.any(_count_in_prefix(own, ascending, level) > 1)
        _fill_level(level, tables, members, np.stack((first, end), axis=1), seed)
        level += 1


def _fill_level(
    level: int,
    tables: Sequence[Table],
    members: Sequence[Neighbour],
    ranges: NDArray[np.int64],
    seed: int,
) -> None:
    k = tables[0].config.k
    chance = np.random.Generator(np.random.PCG64([seed, level]))
    shares = chance.random((len(tables), k + DRAWS_SPARE))
    for table, (first, end), share in zip(tables, ranges.tolist(), shares, strict=True):
        count = end - first
        if count > k:
            drawn = dict.fromkeys((first + (share * count).astype(int)).tolist())
            places = list(drawn)[:k]
        else:
            places = list(range(first, end))
        if places:
            table.fill(level, [members[place] for place in places])


def _range_of_bucket(
    own: NDArray[np.uint64], ascending: NDArray[np.uint64], level: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The range of sorted ids that share exactly `level` leading bits with each of `own`."""
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
    """How many ids share `level` leading bits or more with each of `own`, itself included."""
    free = np.uint64(PREFIX_BITS - level) if level else np.uint64(0)
    if not level:
        return np.full(len(own), len(ascending))
    first = (own >> free) << free
    last = first | ((np.uint64(1) << free) - np.uint64(1))
    left = np.searchsorted(ascending, first, side="left")
    return np.searchsorted(ascending, last, side="right") - left


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
    """Nodes with full tables. Make it inside a running loop, and close it.

    Their tables are full from the start. A share of the entries is stale: their
    peers are dead and never answer. This is pessimistic, because real tables drop peers that they
    find dead. All other code that runs is the DHT's own.
    """

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


CLOSEST = 8  # as many as hold a record


def whole_share(nodes: Sequence[Dht]) -> float:
    """The share of nodes whose tables have their `CLOSEST` neighbours of all `nodes`.

    If that is so, every lookup ends at the right nodes, whoever begins it. It is found out by
    looking into tables and asks nobody, so it changes nothing.
    """
    numbers = [int.from_bytes(_raw(node)) for node in nodes]
    whole = 0
    for node, own in zip(nodes, numbers, strict=True):
        closest = sorted(numbers, key=lambda each: each ^ own)[1 : CLOSEST + 1]
        known = {each.number for each in node.table.nearest(_raw(node), 2 * CLOSEST)}
        whole += known.issuperset(closest)
    return whole / len(nodes)


def _raw(node: Dht) -> bytes:
    assert node.contact.peer is not None, "a node knows its own id"
    return node.contact.peer.raw
