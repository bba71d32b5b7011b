"""A trainer whose servers all are of another release: the whole way, in virtual time."""

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import numpy as np

from p2pswarm.config import BatchConfig, ModelConfig, NodeConfig, RunConfig, ServeConfig
from p2pswarm.crypto.identity import Identity
from p2pswarm.data.corpus import Corpus
from p2pswarm.dht.config import DhtConfig
from p2pswarm.dht.node import Dht
from p2pswarm.ids import Address, Contact
from p2pswarm.progress.events import Event, Note
from p2pswarm.roles.discovery import RECORD_S, TELL_S, find_run
from p2pswarm.roles.run_choice import RunChoice
from p2pswarm.roles.stack import LOOK_AGAIN_S, NodeStack
from p2pswarm.roles.trainer import open_trainer
from p2pswarm.rpc.link_rpc import LinkRpc
from p2pswarm.settings import run_to_json
from p2pswarm.sim.loop import run as run_simulated
from p2pswarm.sim.net import SimInternet
from p2pswarm.swarm.manifest import (
    MANIFEST_TAG,
    RUNS_KEY,
    RunIdentity,
    RunOffer,
    sign_manifest,
    signed_part,
)
from p2pswarm.swarm.messages.run import Manifest, OtherVersion
from p2pswarm.trainer.version_refusals import SAY_EVERY_S
from p2pswarm.transport.config import TransportConfig
from p2pswarm.transport.endpoint import Endpoint
from p2pswarm.wire.message import encode

RUN = RunConfig(
    name="ours",
    batch=BatchConfig(microbatches=2, rows=1),
    model=ModelConfig(d_model=16, layers=2, heads=2, sequence_length=12),
)
REMEDY = "of runs, this trainer 1: install the same release on both sides"
LONG_S = 120.0  # no test waits so long; a hang ends the test instead


class Town:
    """Nodes with real links and a DHT of their own on a simulated internet."""

    def __init__(self) -> None:
        self.rng = Random(1)
        self.internet = SimInternet(1)
        self.seed: Contact | None = None

    @asynccontextmanager
    async def node(self) -> AsyncIterator[NodeStack]:
        rng = self.rng
        identity = Identity.generate(rng.randbytes(32))
        net = self.internet.net(identity.peer_id)
        endpoint = Endpoint(identity, net, TransportConfig(), rng.randbytes)
        loop = asyncio.get_running_loop()
        async with endpoint:
            await endpoint.listen(Address("0.0.0.0", 0))
            limits = DhtConfig(negative_s=LOOK_AGAIN_S)
            async with LinkRpc(endpoint) as rpc, Dht(rpc, identity, limits, rng, loop.time) as dht:
                await dht.bootstrap([self.seed] if self.seed else [])
                self.seed = self.seed or endpoint.contact
                yield NodeStack(NodeConfig(run=RUN), identity, endpoint, rpc, dht)

    async def serve(self, version: int, say: Callable[[str], None]) -> None:
        """A server whose program reads runs of `version`."""
        async with self.node() as stack:
            await find_run(stack, RunChoice(ServeConfig(), version), say)


async def put(stack: NodeStack, manifest: Manifest) -> None:
    await stack.dht.put(RUNS_KEY, stack.identity.peer_id.raw, encode(manifest), RECORD_S)


def signed_by_a_newer_program(stack: NodeStack) -> Manifest:
    """Its version is 2."""
    config, where = run_to_json(RUN, version=2), str(stack.endpoint.contact.address)
    key = stack.identity.public_key
    unsigned = Manifest(config, bytes(32), bytes(16), key, where, b"")
    signature = stack.identity.sign(MANIFEST_TAG, signed_part(unsigned))
    return dataclasses.replace(unsigned, signature=signature)


def manifest_of(stack: NodeStack) -> Manifest:
    """Its version is ours."""
    run = RunIdentity(RUN, bytes(32), bytes(16))
    return sign_manifest(stack.identity, run, stack.endpoint.contact.address)


def corpus() -> Corpus:
    text = np.zeros(4000, dtype=np.uint8)
    return Corpus(text[:3000], text[3000:], 1, RUN.seed, 1, RUN.model.sequence_length)


def play(story: Coroutine[Any, Any, None]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(LONG_S):
            await story

    run_simulated(limited(), seed=1)


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


def test_a_trainer_is_told_by_servers_of_another_version():
    told, remarks = Told(), []

    async def story() -> None:
        town = Town()
        async with (
            asyncio.TaskGroup() as tasks,
            town.node() as ours,
            open_trainer(ours, corpus(), told),
        ):
            servers = [tasks.create_task(town.serve(2, remarks.append)) for _ in range(3)]
            await told.next()
            await told.next()
            for server in servers:
                server.cancel()

    play(story())

    (first_s, first), (second_s, second) = told.notes
    assert first == f"1 server speaks version 2 {REMEDY}"
    assert second == f"3 servers speak version 2 {REMEDY}"
    assert second_s - first_s >= SAY_EVERY_S
    assert any("a run of version 1; this program speaks version 2" in each for each in remarks)


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
    assert "a run of version 2; this program speaks version 1" in remarks[0]


def test_a_hostile_server_is_answered_and_told_of_once():
    told = Told()

    async def story() -> None:
        town = Town()
        async with (
            town.node() as ours,
            town.node() as hostile,
            open_trainer(ours, corpus(), told),
        ):
            calls = [
                hostile.rpc.call(ours.endpoint.contact, OtherVersion(number % 5), 5.0)
                for number in range(1000)
            ]
            assert set(await asyncio.gather(*calls)) == {OtherVersion(1)}
            await asyncio.sleep(3 * SAY_EVERY_S)

    play(story())

    assert [text for _, text in told.notes] == [f"1 server speaks version 0 {REMEDY}"]
