"""The directories of a node: several roles share one, others get answers, and leaving is told."""

import asyncio

import pytest
from sim.seed import SEED
from worlds.dht import EPOCH_S
from worlds.gossip import RUN, GossipWorld, GossipWorldConfig

from p2pswarm.base.errors import NotServing
from p2pswarm.discovery.gossip.directory_io import RUNS_MAX, Directories, DirectoryContext
from p2pswarm.discovery.gossip.messages import Compare, RunRole
from p2pswarm.discovery.gossip.record import Activity, RoleKind
from p2pswarm.net.cards.card import Card
from p2pswarm.sim.loop import run

QUESTION = Compare(RUN, bytes(8), b"\xff" * 8, b"")
STANDS_BY = RunRole(RoleKind.TRAINER, Activity.STANDING_BY)


def surroundings(world: GossipWorld) -> DirectoryContext:
    member = world.place()
    card = Card.make(member.identity, 1, [member.rpc.contact.address])
    return DirectoryContext(member.rpc, member.identity, lambda: card, world._rng, lambda: EPOCH_S)


def play(main) -> None:
    async def whole() -> None:
        async with asyncio.TaskGroup() as tasks:
            world = GossipWorld(GossipWorldConfig(members=3, seed=SEED), tasks)
            for member in world.members:
                world.join(member, [world.members[0].rpc.contact])
            await world.until_one(20.0)
            await main(world)
            world.close()

    run(whole(), SEED)


def test_two_roles_of_a_node_have_one_directory_which_lasts_until_both_are_done():
    async def main(world: GossipWorld) -> None:
        entry = world.members[0].rpc.contact
        around = surroundings(world)
        member = world.members.pop()
        me = member.identity.peer_id
        async with Directories(around) as directories:
            async with directories.open(RUN) as first:
                first.enter_through([entry])
                first.set_role(RunRole(RoleKind.SERVER, Activity.WORKING, 1))
                async with directories.open(RUN) as second:
                    assert second is first
                    second.set_role(STANDS_BY)
                    await asyncio.sleep(20)
                    assert len(first.present()) == 4
                    second.withdraw(RoleKind.TRAINER)
                await asyncio.sleep(20)
                seen = world.members[1].directory.get(me)
                assert [each.role for each in seen.roles] == [RoleKind.SERVER]
                first.withdraw(RoleKind.SERVER)
            await asyncio.sleep(20)
            assert world.members[1].directory.get(me) is None
            with pytest.raises(NotServing):
                await world.members[0].rpc.call(around.rpc.contact, QUESTION, 1.0)

    play(main)


def test_a_trainer_is_found_by_its_role_without_the_dht():
    async def main(world: GossipWorld) -> None:
        around = surroundings(world)
        world.members.pop()
        async with Directories(around) as directories, directories.open(RUN) as mine:
            mine.enter_through([world.members[2].rpc.contact])
            mine.set_role(STANDS_BY)
            there = world.members[0].directory
            while not there.contacts(RoleKind.TRAINER):
                await there.changed.wait()
            assert there.contacts(RoleKind.TRAINER) == [around.rpc.contact]
            assert mine.contacts(RoleKind.TRAINER) == []
            assert len(mine.contacts(RoleKind.SERVER)) >= 1

    play(main)


def test_a_node_takes_part_in_so_many_runs():
    async def main(world: GossipWorld) -> None:
        around = surroundings(world)
        world.members.pop()
        async with Directories(around) as directories, asyncio.TaskGroup() as tasks:
            over = asyncio.Event()

            async def take_part(number: int) -> None:
                async with directories.open(bytes([number]) * 16):
                    await over.wait()

            for number in range(RUNS_MAX):
                tasks.create_task(take_part(number))
            await asyncio.sleep(1)
            with pytest.raises(ValueError, match="8 runs"):
                async with directories.open(b"o" * 16):
                    pass
            over.set()

    play(main)


def test_who_ends_the_node_leaves_all_runs():
    async def main(world: GossipWorld) -> None:
        around = surroundings(world)
        me = world.members.pop().identity.peer_id
        async with Directories(around) as directories:
            async with directories.open(RUN) as mine:
                mine.enter_through([world.members[0].rpc.contact])
                mine.set_role(STANDS_BY)
                await asyncio.sleep(20)
                assert world.members[2].directory.get(me) is not None
                mine.withdraw(RoleKind.TRAINER)
            await asyncio.sleep(10)
            assert world.members[2].directory.get(me) is None

    play(main)
