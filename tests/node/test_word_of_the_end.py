"""A standby that knows no chain yet: what it makes of a stranger's word that the run is over."""

import asyncio
import dataclasses

from node.harness import RUN as OPEN
from node.harness import Town, manifest_of, play, put

from p2pswarm.node.run.discovery import announce_end
from p2pswarm.node.run.run_entry import OVER_AFTER_S, enter_run
from p2pswarm.node.stack.stack import NodeStack
from p2pswarm.run.manifest import RunIdentity
from p2pswarm.run.messages.run import RunOver
from p2pswarm.settings.train_config import TrainConfig

TEXT = bytes(32)
RUN = dataclasses.replace(OPEN, strangers="lead")


def standby(stack: NodeStack) -> NodeStack:
    train = dataclasses.replace(stack.config.train or TrainConfig(), standby=True)
    return dataclasses.replace(
        stack, config=dataclasses.replace(stack.config, run=RUN, train=train)
    )


def test_a_strangers_word_ends_no_standby_and_its_user_hears_of_it_once():
    said: list[str] = []

    async def story() -> None:
        town = Town()
        async with town.node() as stranger, town.node() as waits, town.node() as trainer:
            his = RunIdentity(RUN, TEXT, b"n" * 16, stranger.identity.peer_id.raw)
            await announce_end(stranger, his, RunOver(his.run, 999, "all steps are done"))
            entering = asyncio.ensure_future(enter_run(standby(waits), TEXT, said.append))
            await asyncio.sleep(2 * OVER_AFTER_S)
            assert not entering.done()
            who = stranger.identity.peer_id.short
            told = [text for text in said if "is over after 999 steps" in text]
            assert len(told) == 1
            assert told[0].startswith(who)
            assert "anybody can say so" in told[0]

            await put(trainer, manifest_of(trainer, RUN))
            entry = await entering
            assert entry.trainers == (trainer.endpoint.contact,)

    play(story())
