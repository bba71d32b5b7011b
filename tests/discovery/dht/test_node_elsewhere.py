"""Records are under other keys, too, and are found there when their own key gives nothing."""

import asyncio
import hashlib
from itertools import pairwise

from discovery.dht.harness import (
    ALICE,
    BOB,
    KEY,
    NOW_MS,
    SEED,
    STRANGER,
    SWARM_KEY,
    TTL_S,
    by_distance,
    holders,
    swarm,
)
from hypothesis import given
from hypothesis import strategies as st

from p2pswarm.base.ids import PEER_ID_BYTES
from p2pswarm.discovery.dht.config import DhtConfig
from p2pswarm.discovery.dht.crowding import ELSEWHERE, keys_elsewhere
from p2pswarm.discovery.dht.put_value import Publisher
from p2pswarm.discovery.dht.records import SignatureCache, sign
from p2pswarm.sim.loop import run

SIZE = 30


@given(st.binary(min_size=PEER_ID_BYTES, max_size=PEER_ID_BYTES))
def test_the_other_keys_are_as_far_apart_as_hashes_are(key: bytes):
    keys = [key, *keys_elsewhere(key)]

    assert len(set(keys)) == 1 + ELSEWHERE == 3
    assert all(len(each) == PEER_ID_BYTES for each in keys)
    assert len({each[:4] for each in keys}) == len(keys)
    assert keys_elsewhere(key) == keys[1:]


def test_the_other_keys_are_those_of_the_page_on_the_wire():
    """Every node has to look in the same place."""
    tag = b"p2pswarm-dht-elsewhere:"

    assert keys_elsewhere(KEY) == [
        hashlib.sha256(tag + bytes([number]) + KEY).digest() for number in (0, 1)
    ]


def test_a_copy_is_the_same_value_signed_for_another_key():
    publisher = Publisher(ALICE, DhtConfig(), None)
    record = sign(ALICE, KEY, b"sub", b"value", 7, NOW_MS + 60_000)

    copies = publisher.copies(record)

    assert [each.key for each in copies] == keys_elsewhere(KEY)
    for each in copies:
        assert SignatureCache().holds(each)
        assert (each.subkey, each.value, each.seq, each.expires_ms) == (
            record.subkey, record.value, record.seq, record.expires_ms
        )  # fmt: skip


def test_a_put_stores_under_the_other_keys_within_some_seconds_and_does_not_wait():
    async def main():
        async with swarm(SIZE) as world:
            publisher = world.nodes[3]
            assert await publisher.put(SWARM_KEY, b"a", b"value", TTL_S) <= 8
            await asyncio.sleep(5)

            for key in (SWARM_KEY, *keys_elsewhere(SWARM_KEY)):
                near = by_distance(world.nodes, key)[:20]  # the tables of newcomers have gaps
                assert len(set(holders(world, key)) & set(near)) >= 6

    run(main(), SEED)


def test_where_all_peers_hold_a_record_there_are_no_copies():
    async def main():
        async with swarm(16) as world:
            await world.nodes[3].put(SWARM_KEY, b"a", b"value", TTL_S)
            await asyncio.sleep(5)

            assert not any(holders(world, key) for key in keys_elsewhere(SWARM_KEY))

    run(main(), SEED)


def keep_elsewhere(world, identity, subkey: bytes, number: int) -> None:
    """Have the peers of another key alone hold a record."""
    key = keys_elsewhere(SWARM_KEY)[number]
    now_ms = int(1000 * world.wall_s())
    record = sign(identity, key, subkey, b"value", 1, now_ms + 200_000)
    for node in by_distance(world.nodes, key)[:8]:
        node.store.offer(record, STRANGER, now_ms)


def test_what_its_own_key_hides_is_found_under_either_other_key():
    async def main():
        for number in range(ELSEWHERE):
            async with swarm(SIZE) as world:
                keep_elsewhere(world, ALICE, b"a", number)
                for node in by_distance(world.nodes)[::20]:
                    found = await node.get(SWARM_KEY)
                    assert found[b"a"].value == b"value"
                    assert await node.get(SWARM_KEY) == found  # it does not count as missed

    run(main(), SEED)


def test_a_quorum_merges_what_is_under_all_other_keys():
    async def main():
        async with swarm(SIZE) as world:
            keep_elsewhere(world, ALICE, b"a", 0)
            keep_elsewhere(world, BOB, b"b", 1)

            assert set(await world.nodes[9].get(SWARM_KEY, quorum=3)) == {b"a", b"b"}

    run(main(), SEED)


def test_what_is_nowhere_is_looked_for_once_in_a_while():
    async def main():
        async with swarm(SIZE) as world:
            node, calls = by_distance(world.nodes)[-1], []
            for _ in range(4):
                calls.append(node.calls)
                assert await node.get(SWARM_KEY) == {}
            assert calls[1] > calls[0]
            assert calls[1:] == calls[1:2] * 3

            await asyncio.sleep(6)
            calls.append(node.calls)
            assert await node.get(SWARM_KEY) == {}
            assert node.calls > calls[-1]
            assert all(before <= after for before, after in pairwise(calls))

    run(main(), SEED)


def test_what_was_missed_is_found_as_soon_as_it_was_put():
    async def main():
        async with swarm(SIZE) as world:
            reader = world.nodes[9]
            assert await reader.get(SWARM_KEY) == {}
            await world.nodes[3].put(SWARM_KEY, b"a", b"value", TTL_S)
            await asyncio.sleep(5.5)

            assert b"a" in await reader.get(SWARM_KEY)

    run(main(), SEED)
