"""Hostile nodes among honest ones: what honest nodes publish is found, and nothing else."""

import asyncio
import random

import pytest
from sim.seed import SEED
from worlds.dht_attack import AttackConfig, AttackedDht, public_address

from p2pswarm.discovery.dht.crowding import PATIENCE_S
from p2pswarm.sim.loop import run

TTL_S = 3600.0
TOO_LONG_S = 8.0  # of a get: a lookup that is misled, and then the region


async def found_by(config: AttackConfig, values: int, readers: int) -> tuple[int, int, float]:
    """How many gets there were, how many found what was put, and the longest time of one."""
    rng = random.Random(config.seed)
    keys = [rng.randbytes(32) for _ in range(values)]
    attacked = AttackedDht(config, keys)
    now = asyncio.get_running_loop().time
    gets = good = 0
    longest_s = 0.0
    for key in keys:
        writer, *others = rng.sample(attacked.honest, 1 + readers)
        subkey = writer.contact.peer.raw
        await writer.put(key, subkey, key, TTL_S, republish=False)
        await asyncio.sleep(5)
        for node in others:
            begin_s = now()
            records = await node.get(key)
            longest_s = max(longest_s, now() - begin_s)
            gets += 1
            assert set(records) <= {subkey}, "a forged record was believed"
            good += subkey in records and records[subkey].value == key
    assert attacked.asked > 0
    await attacked.world.close()
    return gets, good, longest_s


@pytest.mark.parametrize(
    ("nodes", "hostile", "ground"),
    [
        pytest.param(300, 0.2, 0, id="a fifth is hostile", marks=pytest.mark.full),
        pytest.param(300, 0.0, 20, id="20 ids next to each key", marks=pytest.mark.full),
        pytest.param(300, 0.2, 20, id="both"),
    ],
)
def test_what_honest_nodes_publish_is_found(nodes, hostile, ground):
    config = AttackConfig(nodes=nodes, hostile=hostile, ground=ground, seed=SEED)

    gets, good, longest_s = run(found_by(config, values=4, readers=10), SEED)

    assert good >= gets - 1
    assert longest_s < TOO_LONG_S


@pytest.mark.parametrize("ground", [20, 200])
def test_a_small_swarm_finds_what_more_ids_than_it_has_peers_stand_next_to(ground):
    gets = good = 0
    for seed in range(SEED, SEED + 2):
        config = AttackConfig(nodes=11, hostile=0.0, ground=ground, seed=seed)
        of_seed, good_of_seed, _ = run(found_by(config, values=1, readers=10), seed)
        gets, good = gets + of_seed, good + good_of_seed

    assert good >= gets - 1


@pytest.mark.full
def test_200_ids_of_one_network_next_to_a_key_hide_it_from_nobody():
    config = AttackConfig(nodes=300, hostile=0.0, ground=200, ground_nets=1, seed=SEED)

    gets, good, _ = run(found_by(config, values=2, readers=10), SEED)

    assert good >= gets - 1


@pytest.mark.full
def test_200_ids_of_as_many_networks_next_to_a_key_do_not_eclipse_the_peers_around_it():
    """They are closer to each point of the key's region than most of a reader's table."""
    config = AttackConfig(nodes=300, hostile=0.2, ground=200, seed=SEED)

    gets, good, _ = run(found_by(config, values=2, readers=20), SEED)

    assert good >= gets - 1


@pytest.mark.full
def test_200_ids_scattered_around_a_key_do_not_hide_it():
    """They look nearly as chance does to who knows few of them, so no crowd need be seen."""
    gets = good = 0
    for seed in range(SEED, SEED + 3):
        config = AttackConfig(nodes=500, hostile=0.2, ground=200, radius=32.0, seed=seed)
        of_seed, good_of_seed, longest_s = run(found_by(config, values=1, readers=12), seed)
        gets, good = gets + of_seed, good + good_of_seed
        assert longest_s < TOO_LONG_S + PATIENCE_S

    assert good >= gets - 1


def test_every_node_of_an_attacked_world_has_an_address_of_its_own():
    addresses = {public_address(number) for number in range(50_000)}

    assert len(addresses) == 50_000
    assert len({each.host.rsplit(".", 2)[0] for each in list(addresses)}) > 20_000


def test_a_share_that_is_none_is_refused():
    with pytest.raises(ValueError, match="share"):
        AttackConfig(hostile=1.0)


async def merged_by_a_quorum(seed: int) -> bool:
    """Whether a reader gets what two have put to a crowded key of a small swarm."""
    rng = random.Random(seed)
    key = rng.randbytes(32)
    attacked = AttackedDht(AttackConfig(nodes=200, hostile=0.0, ground=20, seed=seed), [key])
    writer, other, reader = rng.sample(attacked.honest, 3)
    for node in (writer, other):
        await node.put(key, node.contact.peer.raw, b"value", TTL_S, republish=False)
    await asyncio.sleep(5)
    records = await reader.get(key, quorum=3)
    await attacked.world.close()
    return set(records) == {node.contact.peer.raw for node in (writer, other)}


@pytest.mark.full
def test_a_get_of_a_quorum_looks_around_a_crowd_too():
    """A writer that takes a swarm of 200 for a smaller one sees no crowd, about one of twenty."""
    good = [run(merged_by_a_quorum(seed), seed) for seed in range(SEED, SEED + 8)]

    assert sum(good) >= 6
