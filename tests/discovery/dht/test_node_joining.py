"""JoinRound and staying: seeds, refreshing, and who is in the table."""

import asyncio

import pytest
from discovery.dht.harness import (
    SEED,
    STRANGER,
    SWARM_KEY,
    TTL_S,
    address,
    now_s,
    rpc_of,
    swarm,
    told,
)

from p2pswarm.base.errors import Busy, NoRoute, NotServing
from p2pswarm.base.ids import Address, Contact
from p2pswarm.discovery.dht.config import DhtConfig
from p2pswarm.discovery.dht.messages import Find, Found, Identify, Ping, Pong
from p2pswarm.discovery.dht.upkeep import REFRESH_PAUSE_S
from p2pswarm.net.os.addresses import Scope
from p2pswarm.sim.loop import run


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


def test_when_all_seeds_are_dead_they_are_named():
    async def main():
        async with swarm(2) as world:
            for node in world.nodes:
                world.net.kill(node.contact.peer, silent=False)
            newcomer = world.enter()

            with pytest.raises(NoRoute, match=str(world.nodes[1].contact.address)):
                await newcomer.bootstrap(address(*world.nodes[:2]))

    run(main(), SEED)


def test_a_seed_with_a_wrong_answer_is_no_seed():
    async def main():
        async with swarm(2) as world:
            rpc_of(world, world.nodes[0]).serve_unary(Identify, lambda *_: Pong())
            newcomer = world.enter()
            await newcomer.bootstrap(address(*world.nodes))
            assert len(newcomer.table) == 2

            rpc_of(world, world.nodes[1]).serve_unary(Identify, lambda *_: Found(told([])))
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


def test_closing_cancels_a_bootstrap_that_waits():
    async def main():
        async with swarm(2) as world, asyncio.TaskGroup() as group:
            world.net.kill(world.nodes[0].contact.peer)
            newcomer = world.enter()
            joining = group.create_task(newcomer.bootstrap(address(world.nodes[0])))
            await asyncio.sleep(0.1)

            await newcomer.close()
            await asyncio.sleep(0.1)

            assert joining.cancelled()

    run(main(), SEED)


def test_upkeep_that_was_cancelled_can_be_taken_up_again():
    """A refresh that is cut off is no refresh: it would make the table sure of what it is not."""

    async def main():
        async with swarm(30) as world, asyncio.TaskGroup() as group:
            node = world.nodes[29]
            first = group.create_task(node.maintain())
            await asyncio.sleep(REFRESH_PAUSE_S + 0.0005)
            first.cancel()
            assert node.table.next_refresh_s() == float("-inf")

            again = group.create_task(node.maintain())
            await asyncio.sleep(10)

            assert node.table.next_refresh_s() > now_s()
            again.cancel()

    run(main(), SEED)


def test_upkeep_with_nothing_to_do_sets_no_timer():
    """The simulated loop raises where nobody can ever wake up: nothing polls."""

    async def main():
        async with swarm(1) as world:
            await world.nodes[0].maintain()

    with pytest.raises(RuntimeError, match="stuck"):
        run(main(), SEED)


def test_upkeep_wakes_for_a_newcomer_whose_bucket_is_new():
    async def main():
        async with swarm(1) as world, asyncio.TaskGroup() as group:
            node = world.nodes[0]
            task = group.create_task(node.maintain())
            await asyncio.sleep(100)
            assert node.table.next_refresh_s() is None

            await world.enter().bootstrap(address(node))
            await asyncio.sleep(1)

            assert node.table.next_refresh_s() > now_s()
            task.cancel()

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


def test_bootstrapping_again_through_known_seeds_needs_no_lookup():
    async def main():
        async with swarm(5) as world:
            node = world.nodes[4]
            before = node.calls

            await node.bootstrap(address(world.nodes[0], world.nodes[1]))
            await asyncio.sleep(1)

            assert node.calls == before  # the greetings are no calls of the DHT's machines

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
            assert node.calls - calm >= 40
            task.cancel()

    run(main(), SEED)


def test_clients_are_in_nobodys_table():
    async def main():
        async with swarm(5) as world:
            client = world.enter(DhtConfig(server=False))
            await client.bootstrap(address(world.nodes[0]))
            await client.get(SWARM_KEY)
            await asyncio.sleep(1)

            assert len(client.table) == 5
            assert all(node.table.get(client.contact.peer.raw) is None for node in world.nodes[:5])
            with pytest.raises(NotServing):
                await world.rpcs[0].call(client.contact, Ping(), 1.0)

    run(main(), SEED)


def test_a_dead_contact_leaves_after_two_failures():
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
                await newcomer._runner.call(node.contact, Ping())
            await asyncio.sleep(6)

            assert [each.contact for each in node.table] == [newcomer.contact]

    run(main(), SEED)


def test_a_busy_peer_stays_in_the_table():
    async def main():
        async with swarm(2) as world:
            busy, node = world.nodes
            rpc_of(world, busy).serve_unary(Find, lambda *_: raise_(Busy()))

            await node.closest(SWARM_KEY)

            assert node.table.get(busy.contact.peer.raw) is not None

    run(main(), SEED)


def raise_(error: Exception) -> None:
    raise error


def test_a_peer_that_does_not_serve_the_dht_leaves_the_table():
    async def main():
        async with swarm(2) as world:
            other, node = world.nodes
            rpc_of(world, other).unary_handlers.clear()

            await node.closest(SWARM_KEY)

            assert len(node.table) == 0

    run(main(), SEED)


def test_peers_with_private_addresses_meet_at_a_public_node_that_hands_none_of_them_out():
    """They are its clients: what they publish is kept there, and found."""

    async def main():
        async with swarm(0) as world:
            public = world.enter(DhtConfig(least_scope=Scope.PUBLIC))
            private = [world.enter() for _ in range(4)]
            for node in private:
                await node.bootstrap(address(public))

            await private[0].put(SWARM_KEY, b"", b"value", TTL_S)

            assert len(public.table) == 0
            assert all([await node.get(SWARM_KEY) for node in private])

    run(main(), SEED)


@pytest.mark.parametrize("away_s", [5.0, 20.0, 75.0, 130.0])
@pytest.mark.parametrize("notices", ["a link that ends", "calls without an answer"])
def test_a_seed_that_comes_back_as_another_node_has_its_swarm_within_seconds(away_s, notices):
    """It knows nobody: whoever joins through it finds nobody until it is greeted."""

    async def main():
        async with swarm(5) as world, asyncio.TaskGroup() as tasks:
            seed, *members = world.nodes
            trainer = members[0]
            living = [tasks.create_task(each.maintain()) for each in members]
            living.append(tasks.create_task(announcing(trainer)))
            await asyncio.sleep(100.0)
            world.net.kill(seed.contact.peer)
            if notices == "a link that ends":
                for each in members:
                    each.on_link_end(seed.contact.peer)
            await asyncio.sleep(away_s)

            again = world.enter(address=seed.contact.address)
            await again.bootstrap([])
            await asyncio.sleep(10.0 if notices == "a link that ends" else 25.0)

            newcomer = world.enter()
            await newcomer.bootstrap(address(again))
            assert b"run" in await newcomer.get(SWARM_KEY)
            for task in living:
                task.cancel()

    async def announcing(node):
        while True:
            await node.put(SWARM_KEY, b"run", b"manifest", 60.0, republish=False)
            await asyncio.sleep(20.0)

    run(main(), SEED)
