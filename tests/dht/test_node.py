"""The DHT as its user meets it: a few nodes in virtual time."""

import asyncio
from dataclasses import replace

import pytest
from dht.swarm import KEY, LAN, address, by_distance, swarm

from p2pswarm.crypto.identity import Identity
from p2pswarm.dht.config import DhtConfig
from p2pswarm.dht.messages import (
    HOPS_MAX,
    Find,
    Found,
    Get,
    Got,
    Identify,
    Ping,
    Pong,
    Record,
    Store,
    Stored,
    peer_list,
)
from p2pswarm.dht.node import Dht
from p2pswarm.dht.records import sign
from p2pswarm.errors import BadMessage, Busy, NoRoute, NotServing, PeerError, Refused, Unusable
from p2pswarm.ids import Address, Contact, PeerId
from p2pswarm.rpc.base import Rpc
from p2pswarm.sim.dht import DhtWorld
from p2pswarm.sim.loop import run
from p2pswarm.sim.rpc import SimRpc

SEED = 1
TTL_S = 300.0
STRANGER = PeerId(b"s" * 32)


def now_s() -> float:
    return asyncio.get_running_loop().time()


def holders(world: DhtWorld, key: bytes = KEY) -> list[Dht]:
    return [node for node in world.nodes if key in node.store]


def rpc_of(world: DhtWorld, node: Dht) -> SimRpc:
    return world.rpcs[world.nodes.index(node)]


# Putting and getting


def test_what_one_puts_all_others_get():
    async def main():
        async with swarm(16) as world:
            assert await world.nodes[3].put(KEY, b"a", b"value", TTL_S) >= 5
            for node in world.nodes:
                found = await node.get(KEY)
                assert found[b"a"].value == b"value"

    run(main(), SEED)


def test_the_eight_closest_hold_a_value():
    """Five when `put` returns, the rest soon after; in a small swarm without any lookup."""

    async def main():
        async with swarm(16) as world:
            publisher = world.nodes[3]
            before = publisher.calls
            await publisher.put(KEY, b"", b"value", TTL_S)
            assert len(holders(world)) == 5
            await asyncio.sleep(1)

            assert by_distance(holders(world)) == by_distance(world.nodes)[:8]
            assert publisher.calls - before <= 8

    run(main(), SEED)


def test_in_a_small_swarm_a_get_is_one_call():
    async def main():
        async with swarm(16) as world:
            await world.nodes[3].put(KEY, b"", b"value", TTL_S)
            reader = by_distance(world.nodes)[-1]
            before = reader.calls

            await reader.get(KEY)

            assert reader.calls - before == 1

    run(main(), SEED)


def test_who_holds_a_value_gets_it_without_a_call():
    async def main():
        async with swarm(16) as world:
            await world.nodes[3].put(KEY, b"", b"value", TTL_S)
            holder = by_distance(world.nodes)[0]
            before = holder.calls

            assert b"" in await holder.get(KEY)
            assert holder.calls == before

    run(main(), SEED)


def test_who_is_no_holder_any_more_asks_those_who_are():
    """A stray copy may lack what others published since."""

    async def main():
        async with swarm(16) as world:
            stray = by_distance(world.nodes)[-1]
            await world.nodes[3].put(KEY, b"a", b"old", TTL_S)
            stray.store.offer((await stray.get(KEY))[b"a"], STRANGER, int(1000 * world.wall_s()))
            await world.nodes[4].put(KEY, b"b", b"new", TTL_S)

            assert sorted(await stray.get(KEY)) == [b"a", b"b"]

    run(main(), SEED)


def test_a_swarm_of_one_serves_itself():
    async def main():
        async with swarm(1) as world:
            assert await world.nodes[0].put(KEY, b"", b"value", TTL_S) == 1
            assert b"" in await world.nodes[0].get(KEY)

    run(main(), SEED)


def test_the_newer_value_is_found():
    async def main():
        async with swarm(16) as world:
            await world.nodes[3].put(KEY, b"", b"old", TTL_S)
            await world.nodes[3].put(KEY, b"", b"new", TTL_S)

            found = await by_distance(world.nodes)[-1].get(KEY)
            assert found[b""].value == b"new"

    run(main(), SEED)


def test_values_expire():
    async def main():
        async with swarm(16) as world:
            await world.nodes[3].put(KEY, b"", b"value", 20.0)
            await asyncio.sleep(20)

            assert [await node.get(KEY) for node in world.nodes] == [{}] * 16

    run(main(), SEED)


def test_our_own_values_live_on_until_they_are_withdrawn():
    async def main():
        async with swarm(16) as world, asyncio.TaskGroup() as group:
            upkeep = [group.create_task(node.maintain()) for node in world.nodes]
            reader, publisher = by_distance(world.nodes)[-1], world.nodes[3]
            await publisher.put(KEY, b"kept", b"value", 30.0)
            await publisher.put(KEY, b"once", b"value", 30.0, republish=False)
            await publisher.put(KEY, b"gone", b"value", 30.0)
            publisher.withdraw(KEY, b"gone")
            await asyncio.sleep(100)

            assert list(await reader.get(KEY)) == [b"kept"]
            assert sum(len(node.store) for node in world.nodes) == 8
            for task in upkeep:
                task.cancel()

    run(main(), SEED)


def test_what_is_not_there_is_not_looked_for_again_at_once():
    async def main():
        async with swarm(16) as world:
            reader = world.nodes[3]
            assert await reader.get(KEY) == {}
            before = reader.calls
            assert await reader.get(KEY) == {}
            assert reader.calls == before

            await asyncio.sleep(5)
            assert await reader.get(KEY) == {}
            assert reader.calls > before

    run(main(), SEED)


def test_what_we_put_ourselves_is_looked_for_at_once():
    async def main():
        async with swarm(16) as world:
            node = by_distance(world.nodes)[-1]
            assert await node.get(KEY) == {}

            await node.put(KEY, b"", b"value", TTL_S)

            assert b"" in await node.get(KEY)

    run(main(), SEED)


def test_who_asks_for_the_same_key_shares_the_lookup():
    async def main():
        async with swarm(16) as world:
            await world.nodes[3].put(KEY, b"", b"value", TTL_S)
            reader = by_distance(world.nodes)[-1]
            before = reader.calls

            found = await asyncio.gather(*[reader.get(KEY) for _ in range(10)])

            assert reader.calls - before == 1
            assert all(b"" in each for each in found)

    run(main(), SEED)


def test_one_who_waits_may_give_up_alone():
    async def main():
        async with swarm(16) as world, asyncio.TaskGroup() as group:
            await world.nodes[3].put(KEY, b"", b"value", TTL_S)
            reader = by_distance(world.nodes)[-1]
            first = group.create_task(reader.get(KEY))
            second = group.create_task(reader.get(KEY))
            await asyncio.sleep(0)
            first.cancel()

            assert b"" in await second

    run(main(), SEED)


def test_a_quorum_finds_what_one_holder_lacks():
    async def main():
        async with swarm(16) as world:
            await world.nodes[3].put(KEY, b"a", b"value", TTL_S)
            await world.nodes[4].put(KEY, b"b", b"value", TTL_S)
            for node in holders(world)[:4]:
                node.store._forget(KEY, b"a")

            found = await by_distance(world.nodes)[-1].get(KEY, quorum=5)

            assert sorted(found) == [b"a", b"b"]

    run(main(), SEED)


def test_a_holder_that_lacks_a_record_is_put_right():
    async def main():
        async with swarm(16) as world:
            await world.nodes[3].put(KEY, b"", b"value", TTL_S)
            await asyncio.sleep(1)
            forgetful = by_distance(world.nodes)[0]
            forgetful.store._forget(KEY, b"")
            reader = by_distance(world.nodes)[-1]

            await reader.get(KEY, quorum=7)
            await asyncio.sleep(1)

            assert KEY in forgetful.store

    run(main(), SEED)


def test_many_subkeys_come_page_by_page():
    """300 publishers' worth of records under one key, more than two messages hold."""

    async def main():
        async with swarm(4) as world:
            names = [b"%03d" % i for i in range(300)]
            for number, name in enumerate(names):
                await world.nodes[number % 4].put(KEY, name, b"v" * 200, TTL_S)
            reader = world.enter()
            await reader.bootstrap(address(world.nodes[0]))

            assert sorted(await reader.get(KEY)) == names

    run(main(), SEED)


def test_lookups_are_needed_in_a_large_swarm():
    """60 nodes fill buckets: nobody knows all, and values are found all the same."""

    async def main():
        async with swarm(60) as world:
            await world.nodes[3].put(KEY, b"", b"value", TTL_S)
            closest = await world.nodes[9].closest(KEY)

            for node in world.nodes[::7]:
                assert b"" in await node.get(KEY)
            peers = [node.contact for node in by_distance(world.nodes)]
            assert closest[:8] == [each for each in peers if each != world.nodes[9].contact][:8]

    run(main(), SEED)


def test_dead_holders_do_not_hold_up_a_put():
    async def main():
        async with swarm(16) as world:
            for node in by_distance(world.nodes)[:4]:
                world.net.kill(node.contact.peer)
            publisher = by_distance(world.nodes)[-1]
            begin_s = now_s()

            assert await publisher.put(KEY, b"", b"value", TTL_S) >= 5
            assert now_s() - begin_s < 0.1
            assert b"" in await by_distance(world.nodes)[-2].get(KEY)

    run(main(), SEED)


def test_the_late_replicas_reach_whoever_should_have_them():
    """Ourselves among them; one that died meanwhile is replaced by the next."""

    async def main():
        async with swarm(16) as world:
            closest = by_distance(world.nodes)
            publisher = closest[5]
            await publisher.put(KEY, b"", b"value", TTL_S)
            world.net.kill(closest[7].contact.peer)
            await asyncio.sleep(3)

            assert by_distance(holders(world)) == [*closest[:7], closest[8]]

    run(main(), SEED)


def test_when_no_record_may_wait_only_the_late_replicas_are_lost():
    async def main():
        async with swarm(16, DhtConfig(batches=0)) as world:
            assert await world.nodes[3].put(KEY, b"", b"value", TTL_S) >= 5
            await asyncio.sleep(1)
            assert len(holders(world)) == 5
            assert not world.nodes[3]._runner.running

    run(main(), SEED)


# What goes wrong, and whose fault it is


def test_a_client_without_peers_has_nowhere_to_put():
    async def main():
        async with swarm(0) as world:
            client = world.enter(DhtConfig(server=False))
            with pytest.raises(NoRoute, match="nobody could be reached"):
                await client.put(KEY, b"", b"value", TTL_S)
            assert await client.get(KEY) == {}

    run(main(), SEED)


def test_when_all_peers_are_gone_a_put_says_so():
    async def main():
        async with swarm(3) as world:
            client = world.enter(DhtConfig(server=False))
            await client.bootstrap(address(world.nodes[0]))
            for node in world.nodes[:3]:
                world.net.kill(node.contact.peer)

            with pytest.raises(NoRoute):
                await client.put(KEY, b"", b"value", TTL_S)
            assert await client.get(KEY) == {}

    run(main(), SEED)


def test_a_wrong_clock_is_named():
    async def main():
        async with swarm(3) as world:
            client = world.enter(DhtConfig(server=False))
            await client.bootstrap(address(world.nodes[0]))
            client._wall_s = lambda: world.wall_s() - 3600

            with pytest.raises(Unusable, match="clock"):
                await client.put(KEY, b"", b"value", TTL_S)

    run(main(), SEED)


def test_a_full_quota_is_named():
    async def main():
        async with swarm(3, DhtConfig(records_per_publisher=1)) as world:
            client = world.enter(DhtConfig(server=False))
            await client.bootstrap(address(world.nodes[0]))
            await client.put(KEY, b"a", b"value", TTL_S)

            with pytest.raises(Refused, match="QUOTA"):
                await client.put(KEY, b"b", b"value", TTL_S, republish=False)

    run(main(), SEED)


@pytest.mark.parametrize("ttl_s", [0.0, 3601.0])
def test_a_life_that_no_peer_would_grant_is_our_callers_mistake(ttl_s):
    async def main():
        async with swarm(1) as world:
            with pytest.raises(ValueError, match="a value lives up to 3600 s"):
                await world.nodes[0].put(KEY, b"", b"value", ttl_s)

    run(main(), SEED)


def test_closing_cancels_whoever_waits():
    async def main():
        async with swarm(16) as world, asyncio.TaskGroup() as group:
            reader = by_distance(world.nodes)[-1]
            waiting = group.create_task(reader.get(KEY))
            putting = group.create_task(reader.put(KEY, b"", b"value", TTL_S))
            await asyncio.sleep(0)

            async with reader:
                pass
            await asyncio.sleep(1)

            assert waiting.cancelled()
            assert putting.cancelled()
            assert not reader._runner._tasks

    run(main(), SEED)


def test_closing_leaves_what_waits_for_the_post():
    async def main():
        async with swarm(16) as world:
            publisher = world.nodes[3]
            await publisher.put(KEY, b"", b"value", TTL_S)
            await publisher.close()
            await asyncio.sleep(1)

            assert len(holders(world)) == 5

    run(main(), SEED)


# Who is in the table


def test_clients_are_in_nobodys_table():
    async def main():
        async with swarm(5) as world:
            client = world.enter(DhtConfig(server=False))
            await client.bootstrap(address(world.nodes[0]))
            await client.get(KEY)
            await asyncio.sleep(1)

            assert len(client.table) == 5
            assert all(node.table.get(client.contact.peer.raw) is None for node in world.nodes[:5])
            with pytest.raises(NotServing):
                await world.rpcs[0].call(client.contact, Ping(""), 1.0)

    run(main(), SEED)


def test_a_dead_contact_leaves_when_it_failed_twice():
    async def main():
        async with swarm(5) as world:
            dead, node = world.nodes[4], world.nodes[2]
            world.net.kill(dead.contact.peer)
            for i in range(2):
                await node.closest(bytes([i]) * 32)
                await asyncio.sleep(5)

            assert node.table.get(dead.contact.peer.raw) is None

    run(main(), SEED)


def test_a_full_bucket_checks_its_silent_contact_before_it_takes_a_newcomer():
    """The silent one is dead, so at the second failed check the newcomer has its place."""
    config = DhtConfig(k=1, beta=1, replicas=1, replicas_success=1)

    async def main():
        async with swarm(1, config) as world:
            node = world.nodes[0]
            own = node.contact.peer.raw[0]
            fars = []
            while len(fars) < 2:
                newcomer = world.enter()
                if (newcomer.contact.peer.raw[0] ^ own) & 128:
                    fars.append(newcomer)
            silent, newcomer = fars
            await silent.bootstrap(address(node))
            assert [each.contact for each in node.table] == [silent.contact]
            world.net.kill(silent.contact.peer)

            for _ in range(2):
                await asyncio.sleep(6)
                await newcomer._runner.call(node.contact, Ping(newcomer._runner.listen_address))
            await asyncio.sleep(6)

            assert [each.contact for each in node.table] == [newcomer.contact]

    run(main(), SEED)


class Liar:
    """A server whose answers are made up."""

    def __init__(self, world: DhtWorld) -> None:
        node = world.enter()
        self.rpc: Rpc = rpc_of(world, node)
        self.node = node
        self.asked = 0

    def answer(self, request: type, reply: object) -> None:
        def told(_peer: PeerId, _request: object) -> object:
            self.asked += 1
            if isinstance(reply, Exception):
                raise reply
            return reply

        self.rpc.serve_unary(request, told)


STRAY = sign(Identity.generate(b"x"), b"k" * 32, b"", b"v", 1, 1_700_000_300_000)
FORGED = replace(STRAY, key=KEY, value=b"forged")


@pytest.mark.parametrize(
    "lie",
    [
        Pong(),
        Got((STRAY,), False, peer_list([])),
        Got((), False, peer_list([(b"x" * 32, "no address")])),
        PeerError("breach"),
    ],
    ids=["another answer", "a record of another key", "no contacts", "breaks the rpc"],
)
def test_liars_are_dropped_and_the_value_is_found(lie):
    async def main():
        async with swarm(8) as world:
            liar = Liar(world)
            await liar.node.bootstrap(address(world.nodes[0]))
            liar.answer(Get, lie)
            await world.nodes[3].put(KEY, b"", b"value", TTL_S)
            reader = world.enter(DhtConfig(server=False, replicas_success=8))
            await reader.bootstrap(address(world.nodes[0]))
            await asyncio.sleep(1)
            reader.timeouts._trips[liar.node.contact.peer.raw].srtt_s = 0.0  # so it is asked first

            found = await reader.get(KEY)

            assert liar.asked == 1
            assert found[b""].value == b"value"
            assert reader.table.get(liar.node.contact.peer.raw) is None

    run(main(), SEED)


def test_a_forged_record_is_passed_over():
    async def main():
        async with swarm(8) as world:
            liar = Liar(world)
            await liar.node.bootstrap(address(world.nodes[0]))
            liar.answer(Get, Got((FORGED,), False, peer_list([])))
            await world.nodes[3].put(KEY, b"", b"value", TTL_S)
            reader = world.enter(DhtConfig(server=False, replicas_success=8))
            await reader.bootstrap(address(world.nodes[0]))
            await asyncio.sleep(1)
            reader.timeouts._trips[liar.node.contact.peer.raw].srtt_s = 0.0  # so it is asked first

            found = await reader.get(KEY)

            assert liar.asked == 1
            assert found[b""].value == b"value"

    run(main(), SEED)


def test_what_its_publisher_did_not_sign_is_returned_to_nobody():
    """Not to others, not to its holder's own user; and its holders forget it when it was read."""

    async def main():
        async with swarm(8) as world:
            publisher = by_distance(world.nodes)[-1]
            false = replace(await signed(publisher, world), value=b"unsigned")
            for node in world.nodes:
                await rpc_of(world, publisher).call(node.contact, Store("", (false,)), 1.0)
            assert len(holders(world)) == 8

            assert [await node.get(KEY) for node in world.nodes] == [{}] * 8
            await asyncio.sleep(1)
            await carried(world.nodes[0], world)
            await asyncio.sleep(1)
            assert KEY not in world.nodes[0].store

    run(main(), SEED)


async def signed(node: Dht, world: DhtWorld) -> Record:
    return sign(node._publisher._identity, KEY, b"", b"v", 1, int(1000 * (world.wall_s() + TTL_S)))


def test_who_is_busy_stays_in_the_table():
    async def main():
        async with swarm(2) as world:
            busy, node = world.nodes
            rpc_of(world, busy).serve_unary(Find, lambda *_: raise_(Busy()))

            await node.closest(KEY)

            assert node.table.get(busy.contact.peer.raw) is not None

    run(main(), SEED)


def raise_(error: Exception) -> None:
    raise error


def test_who_does_not_serve_the_dht_leaves_the_table():
    async def main():
        async with swarm(2) as world:
            other, node = world.nodes
            rpc_of(world, other).unary_handlers.clear()

            await node.closest(KEY)

            assert len(node.table) == 0

    run(main(), SEED)


def test_an_address_that_is_none_is_a_breach():
    async def main():
        async with swarm(1) as world:
            with pytest.raises(BadMessage, match="not a contact"):
                world.nodes[0]._on_ping(STRANGER, Ping("nowhere"))

    run(main(), SEED)


# Carrying on what others ask


def carried(node: Dht, world: DhtWorld, hops: int = HOPS_MAX) -> Got:
    """What `node` answers to a get that it may carry on."""
    return rpc_of(world, world.nodes[-1]).call(
        node.contact, Get("", KEY, b"", False, hops), timeout_s=5.0
    )


def test_who_is_asked_asks_on():
    async def main():
        async with swarm(16) as world:
            await world.nodes[3].put(KEY, b"", b"value", TTL_S)
            await asyncio.sleep(1)
            client = world.enter(DhtConfig(server=False))
            far = by_distance(world.nodes[:16])[-1]

            plain = await carried(far, world, hops=0)
            found = await carried(far, world)

            assert plain.records == ()
            assert [record.value for record in found.records] == [b"value"]
            assert client.calls == 0

    run(main(), SEED)


def test_who_finds_nothing_says_whom_it_knows():
    async def main():
        async with swarm(16) as world:
            got = await carried(world.nodes[0], world)

            assert got.records == ()
            assert len(got.peer_list.listen_addresses) == 14  # all but the asked and the runner

    run(main(), SEED)


def test_what_is_too_large_to_be_carried_is_left_to_the_asker():
    async def main():
        async with swarm(16) as world:
            for i in range(20):
                await world.nodes[3].put(KEY, b"%d" % i, b"v" * 4000, TTL_S)
            await asyncio.sleep(1)
            client = world.enter(DhtConfig(server=False))
            await client.bootstrap(address(world.nodes[0]))

            got = await carried(by_distance(world.nodes[:16])[-1], world)

            assert got.records == ()
            assert len(got.peer_list.listen_addresses) > 0
            assert len(await client.get(KEY)) == 20

    run(main(), SEED)


def test_only_so_much_is_carried_for_others():
    async def main():
        async with swarm(16, DhtConfig(carrying=1)) as world:
            await world.nodes[3].put(KEY, b"", b"value", TTL_S)
            await asyncio.sleep(1)
            far = by_distance(world.nodes)[-1]

            answers = await asyncio.gather(*[carried(far, world) for _ in range(3)])

            assert [len(got.records) for got in answers] == [1, 0, 0]

    run(main(), SEED)


# Joining


def test_one_dead_seed_of_three_costs_nothing():
    """Dead without a word, as behind a firewall: ready within half a second."""

    async def main():
        async with swarm(16) as world:
            world.net.kill(world.nodes[1].contact.peer)
            newcomer = world.enter()
            begin_s = now_s()

            await newcomer.bootstrap(address(*world.nodes[:3]))

            assert now_s() - begin_s <= 0.5
            assert len(newcomer.table) >= 3

    run(main(), SEED)


def test_seeds_that_all_are_dead_are_named():
    async def main():
        async with swarm(2) as world:
            for node in world.nodes:
                world.net.kill(node.contact.peer, silent=False)
            newcomer = world.enter()

            with pytest.raises(NoRoute, match=str(world.nodes[1].contact.address)):
                await newcomer.bootstrap(address(*world.nodes[:2]))

    run(main(), SEED)


def test_a_seed_that_speaks_nonsense_is_no_seed():
    async def main():
        async with swarm(2) as world:
            rpc_of(world, world.nodes[0]).serve_unary(Identify, lambda *_: Pong())
            newcomer = world.enter()
            await newcomer.bootstrap(address(*world.nodes))
            assert len(newcomer.table) == 2

            rpc_of(world, world.nodes[1]).serve_unary(Identify, lambda *_: Found(peer_list([])))
            with pytest.raises(NoRoute):
                await world.enter().bootstrap(address(*world.nodes[:2]))

    run(main(), SEED)


def test_a_node_that_is_its_own_only_seed_starts_a_swarm():
    """By its address; or by one that it did not know to be its own."""

    async def main():
        async with swarm(1) as world:
            node = world.nodes[0]
            await node.bootstrap(address(node))
            node._upkeep.seeds._own = Contact(STRANGER, Address("10.9.9.9", 1))

            await node.bootstrap(address(node))

            assert len(node.table) == 0

    run(main(), SEED)


def test_nodes_that_start_together_all_meet():
    async def main():
        async with swarm(3) as world:
            newcomers = [world.enter() for _ in range(13)]
            seeds = address(*world.nodes[:3])
            async with asyncio.TaskGroup() as group:
                for node in newcomers:
                    group.create_task(node.bootstrap(seeds))
            async with asyncio.TaskGroup() as group:
                upkeep = [group.create_task(node.maintain()) for node in world.nodes]
                await asyncio.sleep(20)
                for task in upkeep:
                    task.cancel()

            assert [len(node.table) for node in world.nodes] == [15] * 16

    run(main(), SEED)


def test_bootstrapping_again_looks_round_again():
    async def main():
        async with swarm(5) as world:
            node = world.nodes[4]
            before = node.calls

            await node.bootstrap(address(world.nodes[0], world.nodes[1]))
            await asyncio.sleep(1)

            assert node.calls == before  # the greetings are no calls of the DHT's machines

    run(main(), SEED)


def test_verdicts_of_a_future_version_are_no_success():
    async def main():
        async with swarm(2) as world:
            rpc_of(world, world.nodes[0]).serve_unary(Store, lambda *_: Stored(b"\xff"))
            client = world.enter(DhtConfig(server=False))
            await client.bootstrap(address(world.nodes[0]))
            world.net.kill(world.nodes[1].contact.peer)

            with pytest.raises(NoRoute):
                await client.put(KEY, b"", b"value", TTL_S)

    run(main(), SEED)


def test_stale_buckets_are_looked_into():
    async def main():
        async with swarm(30) as world, asyncio.TaskGroup() as group:
            node = world.nodes[29]
            task = group.create_task(node.maintain())
            await asyncio.sleep(10)
            once = node.calls
            assert len(node.table) > 20
            assert node.table.next_refresh_s() > now_s()
            await asyncio.sleep(300)
            calm = node.calls
            await asyncio.sleep(400)

            assert calm - once < 40  # seeds only
            assert node.calls - calm > 40
            task.cancel()

    run(main(), SEED)


def test_the_same_seed_is_the_same_swarm():
    async def main() -> str:
        async with swarm(12, world=LAN) as world:
            await world.nodes[3].put(KEY, b"", b"value", TTL_S)
            await world.nodes[5].get(KEY)
            return world.net.digest

    assert run(main(), SEED) == run(main(), SEED)
