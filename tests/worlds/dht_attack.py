"""A DHT some of whose nodes are hostile: they censor, lie, and stand next to a key.

Hostile nodes know each other and act as one. To whoever looks something up they name only each
other, or peers that do not exist; they say that they keep every record and keep none, and answer
gets with nothing or with forged records. They are in honest tables as far as the bounds of these
allow, as if they had been there from the start.

Whoever makes enough keys gets ids next to any key, closer than all honest ones, for a second of
processor time. Such *ground* ids stand anywhere within a radius of the key.

Units:   radii in expected honest nodes: a radius of 1 has one honest node on average.
Errors:  ValueError for shares that are none.
Source:  Sridhar et al., "Content Censorship in the InterPlanetary File System" (NDSS 2024), for the
         attack with ground ids; Cholez et al., "Evaluation of Sybil Attacks Protection Schemes in
         KAD" (AIMS 2009).
"""

import hashlib
import random
from bisect import bisect
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from worlds.dht import DhtWorld, DhtWorldConfig, fill_tables

from p2pswarm.base.ids import Address, Contact, PeerId
from p2pswarm.discovery.dht.config import DhtConfig
from p2pswarm.discovery.dht.messages import (
    Find,
    Found,
    Get,
    Got,
    Identified,
    Identify,
    PeerList,
    Ping,
    Pong,
    Record,
    Store,
    Stored,
)
from p2pswarm.discovery.dht.node import Dht
from p2pswarm.discovery.dht.records import Verdict
from p2pswarm.discovery.dht.routing_table import ID_BITS, Neighbour, neighbour
from p2pswarm.sim.network_conditions import PORT, WorldConfig
from p2pswarm.sim.process import unsigned
from p2pswarm.sim.rpc import SimRpc

FIRST_OCTETS = range(11, 100)  # of public IPv4 addresses without special networks among them
SYBIL_NET = "100.0"  # the /16 of those that have one; public, and no honest node's
K = 20  # contacts in an answer


def unsigned_list(named: Iterable[Contact]) -> PeerList:
    """A list of these peers, which says that each was found where its contact is."""
    found = [(each.peer, each) for each in named]
    cards = [unsigned(peer, contact) for peer, contact in found if peer is not None]
    return PeerList(tuple(cards), bytes(len(cards)))


@dataclass(frozen=True, kw_only=True, slots=True)
class AttackConfig:
    """Who is hostile, and where."""

    nodes: int = 2000
    """Honest and hostile ones, without those next to keys."""
    hostile: float = 0.2
    """Share of the nodes that is hostile, at random ids."""
    one_net: float = 0.3
    """Share of the hostile nodes whose addresses are in one /16; the others have one each."""
    lying: float = 0.5
    """Share of the hostile nodes that also invent peers and forge records."""
    ground: int = 0
    """Hostile ids next to each attacked key."""
    ground_nets: int = 0
    """How many networks of a /16 these share; 0: each has one of its own."""
    radius: float = 0.0
    """How far from the key these stand; 0: closer than all honest nodes."""
    seed: int = 1
    world: WorldConfig = field(default_factory=WorldConfig)
    dht: DhtConfig = field(default_factory=DhtConfig)

    def __post_init__(self) -> None:
        if not (0 <= self.hostile < 1 and 0 <= self.one_net <= 1 and 0 <= self.lying <= 1):
            raise ValueError("a share lies in 0..1, and somebody is honest")


def public_address(number: int) -> Address:
    """An address in a /16 that no other of the first 22,000 is in."""
    wide, rest = divmod(number, len(FIRST_OCTETS) * 256)
    first, second = divmod(rest, 256)
    return Address(f"{FIRST_OCTETS[first]}.{second}.{wide >> 8 & 255}.{(wide & 255) + 1}", PORT)


class AttackedDht:
    """Honest nodes with full tables, and hostile ones; made in a running loop. Close its world."""

    def __init__(self, config: AttackConfig, keys: Sequence[bytes] = ()) -> None:
        """`keys`: those that the attacker has ground ids for."""
        self.config = config
        empty = DhtWorldConfig(nodes=0, seed=config.seed, world=config.world, dht=config.dht)
        self.world = DhtWorld(empty)
        rng = self.world.rng
        hostile = round(config.nodes * config.hostile)
        for number in range(config.nodes - hostile):
            self.world.enter(address=public_address(number))
        self.honest: list[Dht] = list(self.world.nodes)
        self._hostile: list[Neighbour] = []
        """Ascending by id."""
        self.asked = 0
        """Requests that hostile nodes have got."""
        for number in range(hostile):
            in_one = rng.random() < config.one_net
            address = (
                Address(f"{SYBIL_NET}.{number >> 8}.{number & 255}", PORT)
                if in_one
                else public_address(len(self.world.net.world.hosts))
            )
            self._enter(PeerId(rng.randbytes(32)), address)
        for key in keys:
            self._grind(key)
        self._hostile.sort(key=lambda each: each.number)
        self._numbers = [each.number for each in self._hostile]
        honest = [neighbour(rpc.contact, 0.0) for rpc in self.world.rpcs]
        tables = [node.table for node in self.honest]
        fill_tables(tables, honest + self._hostile, config.seed)

    def _grind(self, key: bytes) -> None:
        """Put ids next to a key."""
        target = int.from_bytes(key)
        nearest = min(node.contact.peer.distance(key) for node in self.honest if node.contact.peer)
        expected = (1 << ID_BITS) // len(self.honest)
        most = int(self.config.radius * expected) or nearest
        nets = self.config.ground_nets
        for count in range(self.config.ground):
            number = target ^ self.world.rng.randrange(1, most)
            at = public_address(len(self.world.net.world.hosts))
            if nets:
                host = len(self._hostile)
                at = Address(f"101.{count % nets}.{host >> 8 & 255}.{host & 255}", PORT)
            self._enter(PeerId(number.to_bytes(32)), at)

    def _enter(self, peer: PeerId, address: Address) -> None:
        rpc = self.world.net.rpc(peer, address=address)
        self._hostile.append(neighbour(rpc.contact, 0.0))
        lies = self.world.rng.random() < self.config.lying
        _HostileNode(self, rpc, lies=lies)

    def friends(self, target: bytes) -> list[Contact]:
        """The hostile nodes next to a target: nearly the closest ones, and found at once."""
        at = bisect(self._numbers, int.from_bytes(target))
        near = self._hostile[max(0, at - K) : at + K]
        near.sort(key=lambda each: each.number ^ int.from_bytes(target))
        return [each.contact for each in near[:K]]


class _HostileNode:
    """What one hostile node answers."""

    def __init__(self, attack: AttackedDht, rpc: SimRpc, *, lies: bool) -> None:
        self._attack = attack
        self._own = rpc.host.peer.raw
        self._lies = lies
        rpc.serve_unary(Identify, lambda _, m: Identified(self._own, self._near(m.target)))
        rpc.serve_unary(Find, lambda _, m: Found(self._near(m.target)))
        rpc.serve_unary(Get, self._got)
        rpc.serve_unary(Store, lambda _, m: Stored(bytes([Verdict.KEPT] * len(m.records))))
        rpc.serve_unary(Ping, lambda _, __: Pong())

    def _near(self, target: bytes) -> PeerList:
        self._attack.asked += 1
        named = self._attack.friends(target)
        if self._lies:  # half of them are invented, closer than anybody
            chance = random.Random(target + self._own)
            close = (int.from_bytes(target) ^ chance.getrandbits(128) for _ in range(K // 2))
            hosts = (public_address(chance.randrange(1 << 20, 1 << 22)) for _ in range(K // 2))
            invented = [
                Contact(PeerId(number.to_bytes(32)), at)
                for number, at in zip(close, hosts, strict=True)
            ]
            named = invented + named[: K // 2]
        return unsigned_list(named)

    def _got(self, _: PeerId, get: Get) -> Got:
        forged: tuple[Record, ...] = ()
        if self._lies and not get.after:
            digest = hashlib.sha256(get.key).digest()
            forged = (Record(get.key, b"", b"forged", 2**62, 2**53, digest, digest + digest),)
        return Got(forged, False, self._near(get.key))
