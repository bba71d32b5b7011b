"""Who looks for a run only once: a peer that answers late is not one that knows of none."""

import asyncio
from contextlib import asynccontextmanager

import pytest
from node.harness import Town, manifest_of, play, put

from p2pswarm.base.errors import Unusable
from p2pswarm.commands.status.ask import NOBODY_SURE, offers_of
from p2pswarm.commands.status.texts import NO_RUN
from p2pswarm.node.run.discovery import ONCE_S


@asynccontextmanager
async def deaf(town, stack, other, for_s: float):
    """Nothing comes to a node for so long; the others go on greeting their seeds."""
    world = town.internet.world
    host = world.hosts[stack.identity.peer_id.raw]
    paths = [(world.hosts[other.identity.peer_id.raw], host)]

    async def hear_again():
        await asyncio.sleep(for_s)
        world.mend(paths)

    world.cut(paths)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(hear_again())
        greeting = tasks.create_task(other.dht.maintain())
        yield
        greeting.cancel()


@pytest.mark.parametrize("for_s", [0.8, 2.0, 4.0])
def test_a_trainer_that_is_too_busy_to_answer_at_once_is_found(for_s):
    async def story() -> None:
        town = Town()
        async with town.node() as trainer, town.node() as asking:
            await put(trainer, manifest_of(trainer))
            async with deaf(town, trainer, asking, for_s):
                (offer,) = await offers_of(asking, "ours")

            assert offer.trainer.peer == trainer.identity.peer_id

    play(story())


def test_where_all_have_answered_it_is_said_at_once_that_there_is_no_run():
    async def story() -> None:
        town = Town()
        async with town.node(), town.node() as asking:
            begun_s = asyncio.get_running_loop().time()
            with pytest.raises(Unusable, match=NO_RUN):
                await offers_of(asking, "")

            assert asyncio.get_running_loop().time() - begun_s < 1.0

    play(story())


def test_where_nobody_answers_that_is_said():
    async def story() -> None:
        town = Town()
        async with town.node() as trainer, town.node() as asking:
            await put(trainer, manifest_of(trainer))
            async with deaf(town, trainer, asking, 3 * ONCE_S):
                with pytest.raises(Unusable, match=NOBODY_SURE):
                    await offers_of(asking, "")

    play(story())
