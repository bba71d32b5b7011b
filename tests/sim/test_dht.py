"""Tables filled from what is true hold what they would hold after a while."""

import random

from worlds.dht import fill_tables

from p2pswarm.base.ids import Address, Contact, PeerId
from p2pswarm.discovery.dht.config import DhtConfig
from p2pswarm.discovery.dht.routing_table import Neighbour, Table, neighbour

CONFIG = DhtConfig(k=4, beta=1, replicas=3, replicas_success=1)
WHERE = Address("10.0.0.1", 1)


def everybody(count: int) -> list[Neighbour]:
    rng = random.Random(1)
    return [neighbour(Contact(PeerId(rng.randbytes(32)), WHERE), 0.0) for _ in range(count)]


def filled(count: int, dead: int = 0, seed: int = 1) -> tuple[list[Table], list[Neighbour]]:
    """The tables of `count` peers among whom some more are dead."""
    peers = everybody(count + dead)
    tables = [Table(PeerId(each.raw), CONFIG) for each in peers[:count]]
    fill_tables(tables, peers, seed)
    return tables, peers


def test_every_bucket_has_all_that_belong_into_it_or_k():
    tables, peers = filled(60)

    for table, own in zip(tables, peers, strict=True):
        there: dict[int, int] = {}
        for other in peers:
            if other.raw != own.raw:
                there[table.index(other.raw)] = there.get(table.index(other.raw), 0) + 1
        have: dict[int, int] = {}
        for each in table:
            have[table.index(each.raw)] = have.get(table.index(each.raw), 0) + 1
        assert have == {index: min(count, CONFIG.k) for index, count in there.items()}


def test_the_dead_are_in_tables_and_have_none():
    tables, peers = filled(20, dead=20)
    dead = {each.raw for each in peers[20:]}

    assert len(tables) == 20
    assert any(each.raw in dead for table in tables for each in table)


def test_one_peer_alone_has_an_empty_table():
    (table,), _ = filled(1)

    assert len(table) == 0


def test_the_same_seed_fills_the_same_tables_and_another_seed_others():
    def members(seed: int) -> list[list[bytes]]:
        return [[each.raw for each in table] for table in filled(60, seed=seed)[0]]

    assert members(1) == members(1)
    assert members(1) != members(2)
