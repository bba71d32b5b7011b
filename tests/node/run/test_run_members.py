"""What a node's run directory is good for: trainers are found that the DHT does not name."""

import asyncio
from contextlib import AsyncExitStack

from node.harness import Town, manifest_of, play, put
from node.test_follow_run import Seeker

from p2pswarm.discovery.gossip.messages import RunRole
from p2pswarm.discovery.gossip.record import Activity, RoleKind
from p2pswarm.node.run.discovery import find_run
from p2pswarm.node.run.run_choice import RunChoice
from p2pswarm.node.run.run_members import keep_saying, run_directory, trainers_named
from p2pswarm.node.serve import follow_run
from p2pswarm.settings.node_config import ServeConfig

SERVES = RunRole(RoleKind.SERVER, Activity.WORKING, 0)
STANDS_BY = RunRole(RoleKind.TRAINER, Activity.STANDING_BY)


def test_a_server_finds_a_standby_that_is_not_in_the_dht_through_its_neighbours():
    """Its trainer dies. A standby has told one other server, and nobody else, that it is there."""

    async def story() -> None:
        town, loop = Town(), asyncio.get_running_loop()
        async with town.node(), AsyncExitStack() as dying, AsyncExitStack() as up:
            trainer = await dying.enter_async_context(town.node())
            server, neighbour, standby = [
                await up.enter_async_context(town.node()) for _ in range(3)
            ]
            await put(trainer, manifest_of(trainer))
            choice, waiting = RunChoice(ServeConfig()), Seeker()
            lost = await find_run(server, choice, lambda _: None)
            for stack, standing, through in (
                (trainer, RunRole(RoleKind.TRAINER, Activity.WORKING), server),
                (server, SERVES, trainer),
                (neighbour, SERVES, trainer),
                (standby, STANDS_BY, neighbour),
            ):
                blocks = dying if stack is trainer else up
                directory = await blocks.enter_async_context(
                    run_directory(stack, stack.rpc, lost.run)
                )
                directory.set_role(standing)
                directory.enter_through([through.endpoint.contact])
            await asyncio.sleep(5.0)
            town.internet.kill(trainer.identity.peer_id, silent=True)
            began_s = loop.time()
            async with asyncio.TaskGroup() as tasks:
                following = tasks.create_task(follow_run(server, choice, lost, waiting, server.rpc))
                await waiting.told()
                following.cancel()

            assert waiting.heard == [[standby.endpoint.contact]]
            assert loop.time() - began_s < 5.0
            assert trainers_named(standby, b"another run     ") == []

    play(story())


def test_two_roles_of_one_node_say_both_in_one_directory():
    async def story() -> None:
        town = Town()
        async with town.node() as stack, asyncio.TaskGroup() as tasks:
            run = b"r" * 16
            async with run_directory(stack, stack.rpc, run) as first:
                async with run_directory(stack, stack.rpc, run) as second:
                    assert second is first
                    saying = [
                        tasks.create_task(keep_saying(first, lambda each=each: each))
                        for each in (SERVES, STANDS_BY)
                    ]
                    await asyncio.sleep(5.0)
                    (own,) = first.present()
                    assert own.roles == (SERVES, STANDS_BY)
                    saying[0].cancel()
                    await asyncio.sleep(5.0)
                    assert first.present()[0].roles == (STANDS_BY,)
                    saying[1].cancel()
                assert run in stack.directories
            assert run not in stack.directories

    play(story())
