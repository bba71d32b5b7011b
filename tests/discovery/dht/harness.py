"""Peers, contacts, round trips and whole small swarms for the DHT's tests."""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager

from worlds.dht import DhtWorld, DhtWorldConfig

from p2pswarm.base.ids import Address, Contact, PeerId
from p2pswarm.discovery.dht.call_outcomes import TimeoutEstimator
from p2pswarm.discovery.dht.config import DhtConfig
from p2pswarm.discovery.dht.lookup import Lookup, LookupOptions
from p2pswarm.discovery.dht.messages import PeerList, Record, peers_in
from p2pswarm.discovery.dht.node import Dht
from p2pswarm.discovery.dht.records import RecordStore, SignatureCache, Verdict, sign
from p2pswarm.discovery.dht.routing_table import Table
from p2pswarm.discovery.dht.unverified_contacts import UnverifiedContacts
from p2pswarm.net.crypto.identity import Identity
from p2pswarm.net.endpoint.link_table import ProvenAddress
from p2pswarm.sim.network_conditions import WorldConfig
from p2pswarm.sim.process import UnsignedCards, read_unsigned, unsigned
from p2pswarm.sim.rpc import SimRpc

KEY = bytes(32)  # so that a peer's distance to it is its number
OWN = (1 << 200).to_bytes(32)
CONFIG = DhtConfig()
EPOCH_S = 1_700_000_000.0
NOW_MS = int(1000 * EPOCH_S)
ALICE = Identity.generate(b"alice")
BOB = Identity.generate(b"bob")
HOME = "10.0.0.1:1"

SEED = 1
TTL_S = 300.0
LAN = WorldConfig(rtt_median_s=0.001, rtt_least_s=0.0005)
SWARM_KEY = hashlib.sha256(b"the key of these tests").digest()
STRANGER = PeerId(b"s" * 32)


def anywhere(_: Contact) -> ProvenAddress:
    """Every peer was dialled where it says that it is."""
    return ProvenAddress.DIALLED


class HomeCards(UnsignedCards):
    """Whoever has said nothing else is at HOME."""

    def of(self, peer: PeerId):
        return super().of(peer) or read_unsigned(unsigned(peer, contact_at(peer.raw, HOME)))


CARDS = HomeCards()


def told(named: Iterable[tuple[bytes, str]]) -> PeerList:
    """A list of peers by id, each found at the address of this text; bad bytes if it is none."""
    cards = []
    for peer, text in named:
        try:
            cards.append(unsigned(PeerId(peer), Contact(None, Address.parse(text))))
        except ValueError:
            cards.append(b"no card")
    return PeerList(tuple(cards), bytes(len(cards)))


def listed(packed: PeerList) -> list[Contact]:
    """The peers in a list."""
    return [contact for contact, _ in peers_in(packed, read_unsigned)]


def contact_at(peer: bytes, text: str) -> Contact:
    return Contact(PeerId(peer), Address.parse(text))


def raw(number: int) -> bytes:
    return number.to_bytes(32)


def contact(number: int) -> Contact:
    return Contact(PeerId(raw(number)), Address("10.0.0.1", 1))


def contacts(*numbers: int) -> list[Contact]:
    return [contact(number) for number in numbers]


def a_lookup(*start: int, settle: int = 3, patience_s: float = 5.0) -> Lookup:
    options = LookupOptions(width=20, settle=settle, patience_s=patience_s)
    lookup = Lookup(KEY, OWN, options, TimeoutEstimator(CONFIG), 0.0, UnverifiedContacts(CARDS))
    lookup.on_contacts(contacts(*start))
    return lookup


def a_table(*known: int, config: DhtConfig = CONFIG) -> Table:
    """The table of peer `OWN`, which has heard of some others at time 0."""
    table = Table(PeerId(OWN), config)
    for number in known:
        table.on_contact(contact(number), 0.0)
    return table


def a_sure_table(*known: int, config: DhtConfig = CONFIG) -> Table:
    """A table that knows that there is nobody else."""
    table = a_table(*known, config=config)
    table.on_refresh(OWN, [raw(number) for number in known], 0.0)
    return table


# What a node keeps for others


def record(
    value: bytes = b"v",
    seq: int = 1,
    ttl_ms: int = 60_000,
    *,
    key: bytes = KEY,
    subkey: bytes = b"",
    by: Identity = ALICE,
) -> Record:
    return sign(by, key, subkey, value, seq, NOW_MS + ttl_ms)


def a_store(**changes: int) -> RecordStore:
    return RecordStore(DhtConfig(**changes), SignatureCache())  # type: ignore[arg-type]


def offer(store: RecordStore, *records: Record, sender: Identity = ALICE) -> list[Verdict]:
    return [store.offer(each, sender.peer_id, NOW_MS) for each in records]


def read(store: RecordStore, key: bytes = KEY, now_ms: int = NOW_MS) -> list[Record]:
    return list(store.read(key, now_ms))


def key_at(distance: int) -> bytes:
    return (distance << 240).to_bytes(32)


# Small swarms of real nodes in virtual time


def now_s() -> float:
    return asyncio.get_running_loop().time()


def address(*nodes: Dht) -> list[Contact]:
    """What a bootstrap flag tells of them."""
    return [Contact(None, node.contact.address) for node in nodes]


@asynccontextmanager
async def swarm(
    count: int, config: DhtConfig | None = None, world: WorldConfig = LAN
) -> AsyncIterator[DhtWorld]:
    """`count` nodes, joined through the first; everybody knows everybody if they are few."""
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


def by_distance(nodes: Sequence[Dht], key: bytes = SWARM_KEY) -> list[Dht]:
    """The closest to a key first."""

    def distance(node: Dht) -> int:
        assert node.contact.peer is not None
        return node.contact.peer.distance(key)

    return sorted(nodes, key=distance)


def holders(world: DhtWorld, key: bytes = SWARM_KEY) -> list[Dht]:
    return [node for node in world.nodes if key in node.store]


def rpc_of(world: DhtWorld, node: Dht) -> SimRpc:
    return world.rpcs[world.nodes.index(node)]
