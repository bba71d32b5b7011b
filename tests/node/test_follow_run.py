"""A server that lost its trainer looks its run up, and finds the trainer that answers."""

import asyncio
import dataclasses
from collections.abc import Callable
from contextlib import AsyncExitStack

import pytest
from node.harness import RUN, Town, manifest_of, play, put

from p2pswarm.node.run.discovery import ANSWER_S, announce_end, find_run
from p2pswarm.node.run.run_choice import RunChoice
from p2pswarm.node.run.run_end import KnownRun
from p2pswarm.node.serve import follow_run
from p2pswarm.node.stack.stack import NodeStack
from p2pswarm.run.chain.chain import Genesis
from p2pswarm.run.manifest import RunOffer
from p2pswarm.run.messages.run import RunOver
from p2pswarm.settings.config import RunConfig
from p2pswarm.settings.node_config import ServeConfig

OTHER_RUN = dataclasses.replace(RUN, name="another")


class Seeker:
    """A server without a session."""

    def __init__(self, *, may_go: bool = False) -> None:
        self.seeks = True
        self.heard: list[object] = []
        self._may_go = may_go
        self._told = asyncio.Event()

    async def seeking(self) -> float:
        return 1.0

    def found(self, trainers: object) -> None:
        self.heard.append(trainers)
        self._told.set()

    def on_run_over(self, reason: str, version: int) -> None:
        self.heard.append((reason, version))
        self._told.set()

    def may_change_run(self) -> bool:
        return self._may_go

    def give_up(self, reason: str) -> None:
        self.heard.append(reason)
        self._told.set()

    async def told(self) -> None:
        await self._told.wait()


async def announce(stack: NodeStack, run: RunConfig = RUN) -> None:
    await put(stack, manifest_of(stack, run))


def followed(
    seeker: Callable[[], Seeker],
    came_back_with: RunConfig,
    *,
    silent: bool,
    until_told: bool = True,
) -> tuple[list[object], object, float]:
    """What a server is told whose trainer died while another one stands up."""
    results: list[tuple[list[object], object, float]] = []

    async def story() -> None:
        town, loop = Town(), asyncio.get_running_loop()
        async with town.node(), town.node() as server, AsyncExitStack() as dying:
            trainer = await dying.enter_async_context(town.node())
            await announce(trainer)
            choice, waiting = RunChoice(ServeConfig()), seeker()
            lost = await find_run(server, choice, lambda _: None)
            town.internet.kill(trainer.identity.peer_id, silent=silent)
            async with town.node() as again, asyncio.TaskGroup() as tasks:
                await announce(again, came_back_with)
                began_s = loop.time()
                following = tasks.create_task(follow_run(server, choice, lost, waiting, server.rpc))
                if until_told:
                    await waiting.told()
                else:
                    await asyncio.sleep(10.0)
                following.cancel()
                results.append((waiting.heard, again.endpoint.contact, loop.time() - began_s))

    play(story())
    return results[0]


def test_a_trainer_that_came_back_as_another_peer_is_found_within_two_seconds():
    heard, contact, took_s = followed(Seeker, RUN, silent=False)

    assert heard == [[contact]]
    assert took_s < 2.0


def test_a_trainer_whose_predecessor_answers_nothing_is_found_when_that_one_was_given_its_time():
    heard, contact, took_s = followed(Seeker, RUN, silent=True)

    assert heard == [[contact]]
    assert took_s < 2.0 + ANSWER_S


def test_a_server_that_may_go_leaves_for_another_run_whose_trainer_answers():
    heard, _, _ = followed(lambda: Seeker(may_go=True), OTHER_RUN, silent=False)

    assert heard == ["its trainer does not answer, and that of 'another' does"]


@pytest.mark.parametrize("stranger", [False, True])
def test_a_server_that_was_away_believes_the_word_of_its_runs_trainer_and_of_nobody_else(stranger):
    heard: list[object] = []

    async def story() -> None:
        town = Town()
        async with town.node(), town.node() as server, AsyncExitStack() as dying:
            trainer = await dying.enter_async_context(town.node())
            await announce(trainer)
            choice, waiting = RunChoice(ServeConfig()), Seeker()
            lost = await find_run(server, choice, lambda _: None)
            over = RunOver(lost.run, RUN.steps, "all steps are done")
            async with town.node() as another:
                speaker = another if stranger else trainer
                await announce_end(speaker, lost.identity, over)
                town.internet.kill(trainer.identity.peer_id, silent=False)
                head = Genesis.founded(lost.run, trainer.identity.peer_id.raw, 1, 2).head()
                known = KnownRun(lost.run, RUN.steps, None, head)
                async with asyncio.TaskGroup() as tasks:
                    following = tasks.create_task(
                        follow_run(server, choice, lost, waiting, server.rpc, lambda: known)
                    )
                    await asyncio.sleep(10.0)
                    following.cancel()
                heard.extend(waiting.heard)

    play(story())

    assert set(heard) == (set() if stranger else {("all steps are done", RUN.steps)})


def test_a_server_that_may_not_go_yet_stays():
    heard, _, _ = followed(Seeker, OTHER_RUN, silent=False, until_told=False)

    assert heard == []


def test_a_server_that_found_its_trainer_by_itself_looks_nothing_up():
    def busy() -> Seeker:
        seeker = Seeker()
        seeker.seeks = False
        return seeker

    heard, _, _ = followed(busy, RUN, silent=False, until_told=False)

    assert heard == []


def test_a_new_server_joins_the_run_whose_trainer_answers():
    found: list[tuple[RunOffer, object]] = []

    async def story() -> None:
        town = Town()
        async with town.node(), town.node() as server, AsyncExitStack() as dying:
            for _ in range(3):
                trainer = await dying.enter_async_context(town.node())
                await announce(trainer)
                town.internet.kill(trainer.identity.peer_id, silent=False)
            async with town.node() as alive:
                await announce(alive)
                offer = await find_run(server, RunChoice(ServeConfig()), lambda _: None)
                found.append((offer, alive.endpoint.contact))

    play(story())

    offer, contact = found[0]
    assert offer.trainer == contact


def test_a_trainer_with_the_smallest_id_does_not_get_every_server():
    """Ids can be ground; nobody should choose the run of all servers that have no wish."""
    joined: list[bytes] = []

    async def story() -> None:
        town = Town()
        async with AsyncExitStack() as nodes:
            trainers = [await nodes.enter_async_context(town.node()) for _ in range(3)]
            servers = [await nodes.enter_async_context(town.node()) for _ in range(8)]
            await asyncio.sleep(5.0)
            for number, trainer in enumerate(trainers):
                await announce(trainer, dataclasses.replace(RUN, name=f"run {number}"))
            await asyncio.sleep(5.0)
            for server in servers:
                offer = await find_run(server, RunChoice(ServeConfig()), lambda _: None)
                joined.append(offer.run)

    play(story())

    assert len(set(joined)) > 1
