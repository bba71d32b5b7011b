"""Records longer than a frame: decided, fetched, kept and checked like all others."""

import asyncio
import contextlib
import json
import random
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from run.chain.harness import RUN, key, long_chain, long_commit, long_genesis, voter
from worlds.net import SimInternet

from p2pswarm.base.errors import BadCheckpoint, Unusable
from p2pswarm.base.ids import Address
from p2pswarm.net.config import TransportConfig
from p2pswarm.net.endpoint.endpoint import Endpoint
from p2pswarm.net.rpc.framing import FRAME_BYTES_MAX
from p2pswarm.net.rpc.link_rpc import LinkRpc
from p2pswarm.net.wire.message import encode
from p2pswarm.node.run.resume import check_records
from p2pswarm.run.chain.actions import Leading, RecordDecided
from p2pswarm.run.chain.chain import Chain, Genesis
from p2pswarm.run.chain.chain_file import ChainFile
from p2pswarm.run.chain.chain_log import log_entry, log_header
from p2pswarm.run.chain.chain_node import ChainNode
from p2pswarm.run.chain.memory_file import MemoryChain
from p2pswarm.run.chain.messages import Prepare, Propose
from p2pswarm.run.chain.participant import ChainParticipant
from p2pswarm.run.chain.record import CommitRecord, digest
from p2pswarm.settings.config import RunConfig
from p2pswarm.sim.loop import run
from p2pswarm.sim.network_conditions import WorldConfig
from p2pswarm.trainer.coordinator_io.checkpoints import SavedChain

SCRIPT = Path(__file__).parents[3] / "bench" / "check_chain.py"
RECORDS = long_chain(3)
WAIT_S = 20.0  # three times what a record takes over the slowest link here, to two voters
PROPOSALS = [Propose(RUN, 1, record) for record in RECORDS]


class LinkedTown:
    """Nodes whose calls go through the whole stack, over a slow network in virtual time."""

    def __init__(self, tasks: asyncio.TaskGroup, bytes_per_s: float) -> None:
        self.internet = SimInternet(3, WorldConfig(bandwidth_bytes_per_s=bytes_per_s))
        self.tasks, self.rng = tasks, random.Random(3)
        self.rpcs: dict[str, LinkRpc] = {}
        self.nodes: dict[str, ChainNode] = {}
        self.told: dict[str, list] = {}

    @contextlib.asynccontextmanager
    async def living(self, names: str, origin: Genesis) -> AsyncIterator[None]:
        async with contextlib.AsyncExitStack() as stack:
            for name in names:
                endpoint = Endpoint(
                    key(name),
                    self.internet.net(key(name).peer_id),
                    TransportConfig(),
                    self.rng.randbytes,
                )
                await stack.enter_async_context(endpoint)
                await endpoint.listen(Address("0.0.0.0", 0))
                self.rpcs[name] = await stack.enter_async_context(LinkRpc(endpoint))
            for name in names:
                self.start(name, origin)
            yield
            for node in self.nodes.values():
                node.close()

    def start(self, name: str, origin: Genesis) -> None:
        store = MemoryChain(voter(name).memory)
        restored, now_s = store.restored(origin), asyncio.get_running_loop().time()
        seat = ChainParticipant(voter(name), restored, random.Random(name), now_s)
        told = self.told[name] = []
        node = ChainNode(self.rpcs[name], seat, store, self.find, told.append, self.tasks)
        self.nodes[name] = node
        node.start()

    def find(self, peer: bytes):
        return next(r.contact for r in self.rpcs.values() if r.contact.peer.raw == peer)

    def decided(self, name: str) -> list[CommitRecord]:
        return [one.record for one in self.told[name] if isinstance(one, RecordDecided)]


@pytest.mark.parametrize("bytes_per_s", [50e6, 60e3])
def test_they_are_decided_and_fetched_over_links_fast_or_slow(bytes_per_s):
    """At 60 kB/s a record takes longer than the second after which a leader asks again."""

    async def story(tasks: asyncio.TaskGroup) -> None:
        town = LinkedTown(tasks, bytes_per_s)
        async with town.living("abcd", long_genesis()):
            seat = town.nodes["a"].machine
            seat.standby.start(asyncio.get_running_loop().time())
            town.nodes["a"].pump()
            await asyncio.sleep(WAIT_S)
            assert Leading(1) in town.told["a"]
            for count in (1, 2, 3):
                record = long_commit(seat.leader.head, "a", seat.leader.attempt.term)
                seat.propose(record, asyncio.get_running_loop().time())
                town.nodes["a"].pump()
                await asyncio.sleep(WAIT_S)
                assert len(town.decided("a")) == count
            town.nodes["d"].catch_up(key("a").peer_id.raw)
            await asyncio.sleep(WAIT_S)

            records = town.decided("a")
            assert len(encode(records[0])) > FRAME_BYTES_MAX
            chain = town.nodes["d"].machine.learner.chain
            assert [chain.digest_at(place) for place in range(3)] == list(map(digest, records))

    async def whole() -> None:
        async with asyncio.TaskGroup() as tasks:
            await story(tasks)

    run(whole(), seed=3)


def test_another_leader_is_promised_a_long_record_and_decides_it():
    """A promise carries what was accepted; the record stands in a file of three voters."""

    async def story(tasks: asyncio.TaskGroup) -> None:
        town = LinkedTown(tasks, 50e6)
        async with town.living("abc", long_genesis()):
            for name in "bc":
                machine = town.nodes[name].machine
                machine.on_call(key("a").peer_id.raw, PROPOSALS[0], 0.0)
                town.nodes[name].machine.actions()
            await asyncio.sleep(5.0)  # nobody is calm any more
            town.nodes["b"].machine.standby.start(asyncio.get_running_loop().time())
            town.nodes["b"].pump()
            await asyncio.sleep(WAIT_S)

            assert town.decided("b") == RECORDS[:1]

    async def whole() -> None:
        async with asyncio.TaskGroup() as tasks:
            await story(tasks)

    run(whole(), seed=3)


def test_a_file_holds_them_and_a_torn_one_is_cut_off(tmp_path):
    path = tmp_path / "a.chain"
    file, _ = ChainFile.open(path, long_genesis(), b"memory 1")
    for entry in (Prepare(RUN, 1, bytes(16)), *PROPOSALS):
        file.append(entry)
    assert list(file.records(0, 3)) == RECORDS
    file.close()
    whole = path.stat().st_size
    with path.open("ab") as end:
        end.write(log_entry(PROPOSALS[2])[:-1])

    file, restored = ChainFile.open(path, long_genesis(), b"memory 2")

    assert restored.register.accepted == RECORDS[2]
    assert list(file.records(1, 3)) == RECORDS[1:]
    file.close()
    assert path.stat().st_size == whole
    assert file.warning is not None


def test_damage_within_one_is_damage(tmp_path):
    path = tmp_path / "a.chain"
    data = log_header(RUN, bytes(8)) + b"".join(map(log_entry, PROPOSALS))
    path.write_bytes(data[:100_000] + b"x" + data[100_001:])

    with pytest.raises(Unusable, match="damaged at byte"):
        ChainFile.open(path, long_genesis(), bytes(8))


def test_the_independent_script_checks_them(tmp_path):
    file = tmp_path / "a.chain"
    file.write_bytes(log_header(RUN, bytes(8)) + b"".join(map(log_entry, PROPOSALS)) + b"torn")

    done = subprocess.run(
        [sys.executable, "-I", SCRIPT, file], capture_output=True, text=True, check=True
    )

    assert json.loads(done.stdout) == {"ok": True, "steps": 3, "head": digest(RECORDS[2]).hex()}


def test_a_checkpoints_file_of_them_is_proved():
    chain, store = Chain(long_genesis("a", "a")), MemoryChain(bytes(8))
    for _ in range(2):
        record = long_commit(chain.head)
        chain.append(record)
        store.append(record)
    saved = SavedChain(chain, store)
    data = saved.records(saved.mark())
    assert data is not None

    manifest = SimpleNamespace(
        run=RUN, head=chain.head.digest, step=2, run_config=RunConfig, origin=None
    )
    parts = [data[at : at + 50_000] for at in range(0, len(data), 50_000)]
    assert check_records(parts, manifest).startswith("2 records lead from step 0 to step 2")
    with pytest.raises(BadCheckpoint):
        check_records([data.replace(b"\0\1\0\1", b"\0\0\0\1", 1)], manifest)
