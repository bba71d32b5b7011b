"""A trainer that stands by looks for the end of its run only while nobody leads it."""

import asyncio
from dataclasses import replace

from checkpoint.saved_run import corpus
from node.harness import Town, play

from p2pswarm.discovery.dht.node import Dht
from p2pswarm.node.run.run_entry import enter_run
from p2pswarm.node.run.run_match import end_key
from p2pswarm.node.stack.stack import NodeStack
from p2pswarm.node.train import MEET_EVERY_S, open_trainer
from p2pswarm.settings.train_config import TrainConfig


class WatchedDht:
    """A node's DHT, and which keys were looked up there."""

    def __init__(self, dht: Dht) -> None:
        self._dht = dht
        self.asked: list[bytes] = []

    async def get(self, key, *rest):
        self.asked.append(key)
        return await self._dht.get(key, *rest)

    def __getattr__(self, name):
        return getattr(self._dht, name)


def trusting(stack: NodeStack) -> NodeStack:
    """A node whose run takes any trainer."""
    run = replace(stack.config.run, strangers="lead")
    return replace(stack, config=replace(stack.config, run=run))


async def stand_by(stack: NodeStack, text) -> tuple[NodeStack, object]:
    config = replace(stack.config, train=TrainConfig(standby=True))
    watched = replace(stack, config=config, dht=WatchedDht(stack.dht))
    return watched, await enter_run(watched, text.digest(), lambda _: None)


def test_one_that_a_coordinator_has_taken_asks_for_no_end_and_one_that_lost_it_does():
    async def story() -> None:
        town = Town()
        async with town.node(), town.node() as one, town.node() as other:
            first, second = trusting(one), trusting(other)
            run = first.config.run
            text = corpus(run)
            key = end_key(run, text.digest())
            founded = await enter_run(first, text.digest(), lambda _: None)
            leads = open_trainer(first, text, lambda _: None, founded)
            await leads.__aenter__()
            watched, entry = await stand_by(second, text)
            async with open_trainer(watched, text, lambda _: None, entry) as trainer:
                await asyncio.sleep(MEET_EVERY_S)
                assert trainer.watch.enlisted
                watched.dht.asked.clear()
                await asyncio.sleep(6 * MEET_EVERY_S)
                assert key not in watched.dht.asked

                town.internet.kill(first.identity.peer_id, silent=False)
                await asyncio.sleep(6 * MEET_EVERY_S)
                assert key in watched.dht.asked
            await leads.__aexit__(None, None, None)

    play(story())
