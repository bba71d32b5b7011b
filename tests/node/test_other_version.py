"""A trainer whose servers all are of another release: the whole way, in virtual time."""

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import numpy as np
from node.harness import RUN, Town, manifest_of, play, put

from p2pswarm.data.samples.corpus import Corpus
from p2pswarm.discovery.dht.config import DhtConfig
from p2pswarm.node.run.discovery import TELL_S, find_run
from p2pswarm.node.run.run_choice import RunChoice
from p2pswarm.node.run.run_entry import enter_run
from p2pswarm.node.stack.stack import NodeStack
from p2pswarm.node.train import open_trainer
from p2pswarm.progress.events import Event, Note
from p2pswarm.run.manifest import MANIFEST_TAG, RunOffer, signed_part
from p2pswarm.run.messages.run import Manifest, OtherVersion
from p2pswarm.settings.node_config import ServeConfig
from p2pswarm.settings.parser import RUN_VERSION, run_to_json
from p2pswarm.trainer.coordinator_io.server_reports import SAY_EVERY_S

NEXT = RUN_VERSION + 1
REMEDY = f"of runs, this trainer {RUN_VERSION}: install the same release on both sides"


def signed_by_a_newer_program(stack: NodeStack) -> Manifest:
    """Its version is the next one."""
    config, where = run_to_json(RUN, version=NEXT), str(stack.endpoint.contact.address)
    key = stack.identity.public_key
    unsigned = Manifest(config, bytes(32), bytes(16), bytes(32), key, where, b"")
    signature = stack.identity.sign(MANIFEST_TAG, signed_part(unsigned))
    return dataclasses.replace(unsigned, signature=signature)


async def serve(town: Town, version: int, say: Callable[[str], None]) -> None:
    """A server whose program reads runs of `version`."""
    async with town.node() as stack:
        await find_run(stack, RunChoice(ServeConfig(), version), say)


def corpus() -> Corpus:
    text = np.zeros(4000, dtype=np.uint8)
    return Corpus(text[:3000], text[3000:], 1, RUN.seed, 1, RUN.model.sequence_length)


class Told:
    """What the trainer's user reads."""

    def __init__(self) -> None:
        self.notes: list[tuple[float, str]] = []
        self.news = asyncio.Event()

    def __call__(self, event: Event) -> None:
        if isinstance(event, Note):
            self.notes.append((asyncio.get_running_loop().time(), event.text))
            self.news.set()

    async def next(self) -> None:
        self.news.clear()
        await self.news.wait()


@asynccontextmanager
async def new_trainer(stack: NodeStack, tell: Callable[[Event], None]) -> AsyncIterator[None]:
    text = corpus()
    entry = await enter_run(stack, text.digest(), lambda _line: None)
    async with open_trainer(stack, text, tell, entry):
        yield


def test_a_trainer_is_told_by_servers_of_another_version():
    told, remarks = Told(), []

    async def story() -> None:
        town = Town()
        async with (
            asyncio.TaskGroup() as tasks,
            town.node() as ours,
            new_trainer(ours, told),
        ):
            servers = [tasks.create_task(serve(town, NEXT, remarks.append)) for _ in range(3)]
            await told.next()
            await told.next()
            for server in servers:
                server.cancel()

    play(story())

    (first_s, first), (second_s, second) = told.notes
    assert first == f"1 server speaks version {NEXT} {REMEDY}"
    assert second == f"3 servers speak version {NEXT} {REMEDY}"
    assert second_s - first_s >= SAY_EVERY_S
    assert any(
        f"version {RUN_VERSION}; this program speaks version {NEXT}" in each for each in remarks
    )


def test_a_trainer_of_another_version_that_is_gone_keeps_no_server_from_its_run():
    found: list[tuple[float, RunOffer]] = []

    async def story() -> None:
        town, loop = Town(), asyncio.get_running_loop()
        async with town.node() as ours, town.node() as server, town.node() as gone:
            await put(ours, manifest_of(ours))
            await put(gone, signed_by_a_newer_program(gone))
            town.internet.kill(gone.identity.peer_id, silent=True)
            begun_s = loop.time()
            offer = await find_run(server, RunChoice(ServeConfig()), remarks.append)
            found.append((loop.time() - begun_s, offer))

    remarks: list[str] = []
    play(story())

    seconds, offer = found[0]
    assert offer.config == RUN
    assert seconds < TELL_S + DhtConfig().lookup_s + 1.0
    assert len(remarks) == 1
    assert f"a run of version {NEXT}; this program speaks version {RUN_VERSION}" in remarks[0]


def test_a_hostile_server_is_answered_and_told_of_once():
    told = Told()

    async def story() -> None:
        town = Town()
        async with (
            town.node() as ours,
            town.node() as hostile,
            new_trainer(ours, told),
        ):
            calls = [
                hostile.rpc.call(ours.endpoint.contact, OtherVersion(number % 5), 5.0)
                for number in range(1000)
            ]
            assert set(await asyncio.gather(*calls)) == {OtherVersion(RUN_VERSION)}
            await asyncio.sleep(3 * SAY_EVERY_S)

    play(story())

    assert [text for _, text in told.notes] == [f"1 server speaks version 0 {REMEDY}"]
