"""Machines whose clocks are wrong, or jump: runs are found again, and people are told why not."""

import asyncio

import pytest
from node.harness import Clock, Town, identity_of, play

from p2pswarm.base.errors import Unusable
from p2pswarm.commands.status.ask import statuses
from p2pswarm.node.run.discovery import announce, find_run, manifests
from p2pswarm.node.run.run_choice import CLOCKS_DIFFER, RunChoice
from p2pswarm.settings.node_config import ServeConfig

WRONG = {"an hour ahead": 3600.0, "two minutes ahead": 120.0, "a day behind": -86_400.0}


@pytest.mark.parametrize("ahead_s", WRONG.values(), ids=WRONG)
def test_a_server_whose_clock_is_wrong_says_so_and_finds_the_run_when_it_is_set(ahead_s):
    async def story() -> None:
        town, clock, said = Town(), Clock(ahead_s), []
        async with town.node() as trainer, asyncio.TaskGroup() as tasks:
            announcing = tasks.create_task(announce(trainer, identity_of()))
            async with town.node(clock) as server:
                finding = tasks.create_task(find_run(server, RunChoice(ServeConfig()), said.append))
                await asyncio.sleep(10.0)
                assert said[-1] == CLOCKS_DIFFER
                assert len(said) <= 2  # the run is not there in the first moment

                clock.ahead_s = 0.0

                assert (await finding).trainer == trainer.endpoint.contact
            announcing.cancel()

    play(story())


def test_status_says_that_clocks_differ_where_no_run_is_seen_because_of_them():
    async def story() -> None:
        town = Town()
        async with town.node() as trainer, asyncio.TaskGroup() as tasks:
            announcing = tasks.create_task(announce(trainer, identity_of()))
            await asyncio.sleep(3.0)
            async with town.node(Clock(300.0)) as asking:
                with pytest.raises(Unusable, match="set the clocks"):
                    await statuses(asking, "ours")
            announcing.cancel()

    play(story())


def test_a_peer_is_not_forgotten_because_the_clocks_differ():
    async def story() -> None:
        town = Town()
        async with town.node() as trainer, asyncio.TaskGroup() as tasks:
            announcing = tasks.create_task(announce(trainer, identity_of()))
            async with town.node(Clock(-86_400.0)) as server:
                await asyncio.sleep(3.0)

                assert await manifests(server) == {}

                assert server.dht.clocks_differ
                assert server.dht.table.get(trainer.identity.peer_id.raw) is not None
            announcing.cancel()

    play(story())


@pytest.mark.parametrize("ahead_s", [3600.0, -3600.0], ids=["forward", "back"])
def test_a_run_is_announced_again_when_the_clock_of_its_trainer_has_jumped_and_is_set(ahead_s):
    async def story() -> None:
        town, clock = Town(), Clock()
        async with town.node() as other, town.node(clock) as trainer, asyncio.TaskGroup() as tasks:
            announcing = tasks.create_task(announce(trainer, identity_of()))
            await asyncio.sleep(3.0)
            assert await manifests(other)

            clock.ahead_s = ahead_s
            await asyncio.sleep(40.0)
            clock.ahead_s = 0.0
            await asyncio.sleep(25.0)

            assert await manifests(other)
            announcing.cancel()

    play(story())
