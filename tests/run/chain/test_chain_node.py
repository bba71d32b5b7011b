"""The chain on a simulated network: nodes that lead, follow, fetch, and whose disks fail."""

import asyncio
import random

import pytest
from run.chain.harness import commit, genesis, key, voter

from p2pswarm.base.errors import Busy, NotServing, Unusable
from p2pswarm.run.chain.actions import (
    Deposed,
    Followed,
    Leading,
    RecordDecided,
    StoreFailed,
    VotesChanged,
)
from p2pswarm.run.chain.chain import ChainHead, Genesis
from p2pswarm.run.chain.chain_node import OVERHEAR_S, OVERHEARD_MAX, ChainNode
from p2pswarm.run.chain.memory_file import MemoryChain
from p2pswarm.run.chain.messages import FetchRecords, Heartbeat, Prepare, Propose
from p2pswarm.run.chain.participant import ChainParticipant
from p2pswarm.run.chain.record import CommitRecord
from p2pswarm.sim.loop import run
from p2pswarm.sim.rpc import SimWorld


class SlowChain(MemoryChain):
    """A disk that is asked on a thread, and may be full."""

    slow = True

    def __init__(self, memory: bytes) -> None:
        super().__init__(memory)
        self.full = False

    def append(self, entry) -> None:
        if self.full:
            raise Unusable("the disk is full: free some space")
        super().append(entry)


class Town:
    """Nodes a, b, c ... in one simulated world."""

    def __init__(
        self, tasks: asyncio.TaskGroup, origin: Genesis, names: str, kind: type = MemoryChain
    ) -> None:
        self.world, self.tasks, self.origin = SimWorld(7), tasks, origin
        self.rpcs = {name: self.world.rpc(key(name).peer_id) for name in names}
        self.stores = {name: kind(voter(name).memory) for name in names}
        self.told: dict[str, list] = {name: [] for name in names}
        self.nodes: dict[str, ChainNode] = {}
        for name in names:
            self.start(name)

    def start(self, name: str) -> None:
        restored = self.stores[name].restored(self.origin)
        now_s = asyncio.get_running_loop().time()
        seat = ChainParticipant(voter(name), restored, random.Random(name + str(now_s)), now_s)
        node = ChainNode(
            self.rpcs[name], seat, self.stores[name], self.find, self.hearer(name), self.tasks
        )
        self.nodes[name] = node
        node.start()

    def hearer(self, name: str):
        def heard(told) -> None:
            if not isinstance(told, Followed | VotesChanged):
                self.told[name].append(told)

        return heard

    def find(self, peer: bytes):
        return next(r.contact for r in self.rpcs.values() if r.contact.peer.raw == peer)

    def lead(self, name: str) -> None:
        node = self.nodes[name]
        node.machine.standby.start(asyncio.get_running_loop().time())
        node.pump()

    def propose(self, name: str) -> CommitRecord:
        node = self.nodes[name]
        leader = node.machine.leader
        record = commit(leader.head, name, leader.attempt.term)
        node.machine.propose(record, asyncio.get_running_loop().time())
        node.pump()
        return record

    def leads(self, name: str) -> bool:
        leader = self.nodes[name].machine.leader
        return leader is not None and leader.leads

    def height(self, name: str) -> int:
        return self.nodes[name].machine.learner.chain.head.height

    def close(self) -> None:
        for node in self.nodes.values():
            node.close()


def play(story) -> None:
    async def whole() -> None:
        async with asyncio.TaskGroup() as tasks:
            await story(tasks)

    run(whole(), seed=1)


@pytest.mark.parametrize("kind", [MemoryChain, SlowChain])
def test_a_lone_node_leads_and_decides_by_itself(kind):
    async def story(tasks) -> None:
        town = Town(tasks, genesis("a", "a"), "a", kind)

        town.lead("a")
        await asyncio.sleep(0.1)
        record = town.propose("a")
        await asyncio.sleep(0.1)

        assert town.told["a"] == [Leading(1), RecordDecided(record)]
        assert town.height("a") == 1
        town.close()

    play(story)


def test_three_nodes_decide_and_all_learn_it():
    async def story(tasks) -> None:
        town = Town(tasks, genesis("ab", "abc"), "abc")

        town.lead("a")
        await asyncio.sleep(1)
        town.propose("a")
        await asyncio.sleep(1)
        town.propose("a")
        await asyncio.sleep(3)

        assert [town.height(name) for name in "abc"] == [2, 2, 2]
        assert town.told["b"] == []
        town.close()

    play(story)


def test_a_standby_leads_when_its_link_to_the_leader_ends():
    async def story(tasks) -> None:
        town = Town(tasks, genesis("abc", "abc"), "abc")
        town.lead("a")
        await asyncio.sleep(1)
        town.propose("a")
        await asyncio.sleep(1.5)  # between two heartbeats

        town.nodes["a"].close()
        town.world.kill(key("a").peer_id, silent=False)
        for name in "bc":
            town.nodes[name].link_lost(key("a").peer_id.raw)
        await asyncio.sleep(2)
        (leads,) = (name for name in "bc" if town.leads(name))
        town.propose(leads)
        await asyncio.sleep(1)

        assert isinstance(town.told[leads][-2], Leading)
        assert [town.height(name) for name in "bc"] == [2, 2]
        town.close()

    play(story)


def test_what_a_node_lacks_is_fetched():
    async def story(tasks) -> None:
        town = Town(tasks, genesis("ab", "abc"), "abc", SlowChain)
        town.nodes["c"].close()
        town.lead("a")
        for _ in range(3):
            await asyncio.sleep(1)
            town.propose("a")
        await asyncio.sleep(1)

        town.stores["c"] = SlowChain(voter("c").memory)
        town.start("c")
        await asyncio.sleep(3)

        assert town.height("c") == 3
        town.close()

    play(story)


@pytest.mark.parametrize(
    ("sender", "proved"),
    [pytest.param("c", 3, id="a voter"), pytest.param("d", 2, id="a stranger")],
)
def test_a_node_that_was_away_learns_from_anybody_what_can_be_proved(sender, proved):
    async def story(tasks) -> None:
        town = Town(tasks, genesis("ab", "abc"), "abcd")
        town.nodes["b"].close()
        town.lead("a")
        for _ in range(3):
            await asyncio.sleep(1)
            record = town.propose("a")
            town.nodes["d"].machine.on_record(record, 0.0)  # as if it had served the run before
            town.nodes["d"].pump()
        await asyncio.sleep(1)
        town.nodes["a"].close()

        town.start("b")
        town.nodes["b"].overhear(town.rpcs[sender].contact)
        await asyncio.sleep(1)

        assert town.height("b") == proved
        town.close()

    play(story)


def test_strangers_that_send_nothing_are_not_waited_for():
    async def story(tasks) -> None:
        town = Town(tasks, genesis("ab", "abc"), "abc")
        silent = [town.world.rpc(key(name).peer_id) for name in "defgh"]
        asked = []

        async def stall(stream, request) -> None:
            asked.append(request)
            await asyncio.sleep(60)

        for rpc in silent:
            rpc.serve_stream(FetchRecords, stall)
            town.nodes["b"].overhear(rpc.contact)
        await asyncio.sleep(OVERHEAR_S / 2)
        assert len(asked) == OVERHEARD_MAX

        town.nodes["c"].machine.on_record(commit(town.origin.head()), 0.0)
        town.nodes["c"].pump()
        await asyncio.sleep(OVERHEAR_S)
        town.nodes["b"].overhear(town.rpcs["c"].contact)
        await asyncio.sleep(1)

        assert town.height("b") == 1
        town.close()

    play(story)


def test_a_deposed_leader_is_told():
    async def story(tasks) -> None:
        town = Town(tasks, genesis("ab", "abc"), "abc")
        town.lead("a")
        await asyncio.sleep(1)
        for node in town.nodes.values():
            node.link_lost(key("a").peer_id.raw)
        town.nodes["c"].machine.acceptor.link_lost(key("a").peer_id.raw)

        town.lead("b")
        await asyncio.sleep(3)

        leaders = [name for name in "ab" if town.nodes[name].machine.leader]
        assert len(leaders) == 1
        if leaders == ["b"]:
            assert any(isinstance(told, Deposed) for told in town.told["a"])
        town.close()

    play(story)


def test_a_node_whose_disk_is_full_answers_nobody_and_says_so():
    async def story(tasks) -> None:
        town = Town(tasks, genesis("ab", "abc"), "abc", SlowChain)
        town.stores["c"].full = True

        with pytest.raises(Busy, match="disk is full"):
            await town.rpcs["a"].call(
                town.rpcs["c"].contact, Prepare(town.origin.run, 4, bytes(16)), 1.0
            )

        assert town.told["c"] == [StoreFailed("the disk is full: free some space")]
        assert town.stores["c"].restored(town.origin).register.promised == 0
        town.close()

    play(story)


def test_a_record_that_was_only_accepted_is_sent_to_nobody_as_decided():
    """Its decided rival is known, and on its way to a slow disk."""

    async def story(tasks) -> None:
        town = Town(tasks, genesis("ab", "abc"), "ab")
        first = commit(genesis("ab", "abc").head(), "a", 1)
        rival, decided = (commit(ChainHead.of(first), by, t) for by, t in (("a", 1), ("b", 2)))
        for record in (first, decided):
            town.nodes["b"].machine.learner.on_record(record)
        for entry in (first, Propose(town.origin.run, 1, rival)):
            town.stores["b"].append(entry)
        sent = []
        request = FetchRecords(town.origin.run, 0)
        async with town.rpcs["a"].open_stream(town.rpcs["b"].contact, request, 5) as stream:
            while (record := await stream.receive()) is not None:
                sent.append(record)

        assert sent == [first]
        town.close()

    play(story)


def test_a_peer_is_sent_records_on_one_stream_at_a_time():
    """To read and to encode all of a long chain costs a trainer time, which a stranger may ask."""

    async def story(tasks) -> None:
        town = Town(tasks, genesis("ab", "abc"), "abc")
        reading = asyncio.Event()

        async def slow_disk(_height: int) -> list[CommitRecord]:
            await reading.wait()
            return []

        town.nodes["b"]._read = slow_disk
        request, there = FetchRecords(town.origin.run, 0), town.rpcs["b"].contact
        async with town.rpcs["a"].open_stream(there, request, 5) as first:
            with pytest.raises(Busy):
                async with town.rpcs["a"].open_stream(there, request, 5) as second:
                    await second.receive()
            async with town.rpcs["c"].open_stream(there, request, 5) as other:
                reading.set()
                assert await other.receive() is None
            assert await first.receive() is None
        async with town.rpcs["a"].open_stream(there, request, 5) as again:
            assert await again.receive() is None
        town.close()

    play(story)


def test_a_closed_node_and_one_of_another_run_send_no_records():
    async def story(tasks) -> None:
        town = Town(tasks, genesis("ab", "abc"), "abc")

        async def fetch(run_id: bytes) -> None:
            request = FetchRecords(run_id, 0)
            async with town.rpcs["a"].open_stream(town.rpcs["b"].contact, request, 5) as stream:
                await stream.receive()

        with pytest.raises(NotServing):
            await fetch(b"x" * 16)
        town.nodes["b"].close()
        with pytest.raises(NotServing):
            await fetch(town.origin.run)
        heartbeat = Heartbeat(town.origin.run, 1, 0, bytes(32))
        with pytest.raises(NotServing):
            await town.rpcs["a"].call(town.rpcs["b"].contact, heartbeat, 1.0)
        town.close()

    play(story)
