"""Donors and fetchers of snapshots, through the simulated network."""

import asyncio
import random

import pytest

from p2pswarm.errors import BadMessage, Busy, NotServing
from p2pswarm.ids import PeerId
from p2pswarm.sim.loop import run
from p2pswarm.sim.rpc import SimWorld
from p2pswarm.sim.world import WorldConfig
from p2pswarm.state.donor import QUIET_S, VERSION_WAIT_S, Donor
from p2pswarm.state.download import fetch
from p2pswarm.state.held_snapshots import SNAPSHOTS_MAX
from p2pswarm.state.snapshot import Snapshot
from p2pswarm.swarm.messages.state import FetchPiece, FetchState, StateOffer

NBYTES = 95_000
PIECE = 10_000
SLOW = WorldConfig(bandwidth_bytes_per_s=50_000.0)


def content(version):
    return random.Random(version).randbytes(NBYTES)


def peer(number):
    return PeerId(number.to_bytes(32))


class Source:
    """A donor whose version a test moves."""

    def __init__(self, world, number, version=0):
        self.rpc = world.rpc(peer(number))
        self.version = version
        self.moved = asyncio.Event()
        self.copies = 0
        self.donor = Donor(self.take, PIECE)
        self.rpc.serve_stream(FetchState, self.donor.serve)

    def move(self, version):
        self.version = version
        self.moved.set()

    async def take(self, at_least):
        while self.version < at_least:
            self.moved.clear()
            await self.moved.wait()
        self.copies += 1
        return Snapshot(self.version, b"d%d" % self.version, memoryview(content(self.version)))


def request(at_least=0):
    return FetchState(b"r" * 16, 0, at_least)


async def fetched(rpc, *sources, at_least=0):
    async def donors():
        return tuple(s.rpc.contact for s in sources)

    return await fetch(rpc, donors, request(at_least), NBYTES, PIECE)


def test_a_snapshot_arrives_whole():
    async def main():
        world = SimWorld(1)
        source, rpc = Source(world, 1, version=3), world.rpc(peer(9))
        return await fetched(rpc, source), source

    snapshot, source = run(main(), seed=1)
    assert (snapshot.version, snapshot.digest) == (3, b"d3")
    assert bytes(snapshot.data) == content(3)
    assert len(source.donor.held) == 0


def test_two_fetchers_share_one_copy():
    async def main():
        world = SimWorld(1, SLOW)
        source = Source(world, 1)
        async with asyncio.TaskGroup() as tasks:
            going = [tasks.create_task(fetched(world.rpc(peer(n)), source)) for n in (8, 9)]
        return [task.result() for task in going], source

    snapshots, source = run(main(), seed=1)
    assert source.copies == 1
    assert all(bytes(s.data) == content(0) for s in snapshots)


def test_a_snapshot_stands_still_while_the_donor_moves_on():
    async def main():
        world = SimWorld(1, SLOW)
        source, rpc = Source(world, 1), world.rpc(peer(9))
        going = asyncio.ensure_future(fetched(rpc, source))
        await asyncio.sleep(1.0)
        source.move(1)
        return await going

    snapshot = run(main(), seed=1)
    assert snapshot.version == 0
    assert bytes(snapshot.data) == content(0)


def test_another_donor_of_the_same_version_goes_on_where_the_first_died():
    async def main():
        world = SimWorld(1, SLOW)
        first, second = Source(world, 1), Source(world, 2)
        rpc = world.rpc(peer(9))
        going = asyncio.ensure_future(fetched(rpc, first, second))
        await asyncio.sleep(1.5)
        assert 0 < world.world.hosts[peer(1).raw].sent_bytes < NBYTES
        world.kill(peer(1), silent=False)
        snapshot = await going
        return snapshot, world.world.hosts[peer(2).raw].sent_bytes

    snapshot, sent_bytes = run(main(), seed=1)
    assert bytes(snapshot.data) == content(0)
    assert sent_bytes < 0.8 * NBYTES


def test_another_version_starts_over():
    async def main():
        world = SimWorld(1, SLOW)
        first, second = Source(world, 1), Source(world, 2, version=1)
        going = asyncio.ensure_future(fetched(world.rpc(peer(9)), first, second))
        await asyncio.sleep(1.5)
        world.kill(peer(1), silent=False)
        return await going

    snapshot = run(main(), seed=1)
    assert snapshot.version == 1
    assert bytes(snapshot.data) == content(1)


def test_a_donor_waits_for_the_version_that_is_asked_for():
    async def main():
        world = SimWorld(1)
        source = Source(world, 1)
        going = asyncio.ensure_future(fetched(world.rpc(peer(9)), source, at_least=2))
        await asyncio.sleep(5.0)
        assert not going.done()
        source.move(2)
        return await going

    assert run(main(), seed=1).version == 2


async def conversation(world, source, at_least=0):
    rpc = world.rpc(peer(9))
    return rpc.open_stream(source.rpc.contact, request(at_least), 1e4)


def test_a_donor_does_not_wait_for_ever():
    async def main():
        world = SimWorld(1)
        source = Source(world, 1)
        async with await conversation(world, source, at_least=2) as stream:
            with pytest.raises(NotServing, match="version 2"):
                await stream.receive()
        return asyncio.get_running_loop().time()

    assert run(main(), seed=1) >= VERSION_WAIT_S


def test_a_silent_fetcher_is_given_up():
    async def main():
        world = SimWorld(1)
        source = Source(world, 1)
        async with await conversation(world, source) as stream:
            assert isinstance(await stream.receive(), StateOffer)
            with pytest.raises(NotServing, match="no piece"):
                await stream.receive()
        return source, asyncio.get_running_loop().time()

    source, ended_s = run(main(), seed=1)
    assert ended_s >= QUIET_S
    assert len(source.donor.held) == 0


@pytest.mark.parametrize(
    "asked",
    [FetchPiece(NBYTES - 1, 2, 1), FetchPiece(0, PIECE + 1, 1), StateOffer(0, b"", 1)],
)
def test_a_piece_that_no_honest_fetcher_asks_for_ends_the_stream(asked):
    async def main():
        world = SimWorld(1)
        async with await conversation(world, Source(world, 1)) as stream:
            await stream.receive()
            await stream.send(asked)
            with pytest.raises(BadMessage):
                await stream.receive()

    run(main(), seed=1)


def test_a_donor_holds_so_many_versions_and_no_more():
    async def main():
        world = SimWorld(1, SLOW)
        source = Source(world, 1)
        going = []
        for version in range(SNAPSHOTS_MAX):
            source.move(version)
            rpc = world.rpc(peer(10 + version))
            going.append(asyncio.ensure_future(fetched(rpc, source, at_least=version)))
            await asyncio.sleep(0.5)
        source.move(SNAPSHOTS_MAX)
        async with await conversation(world, source, SNAPSHOTS_MAX) as stream:
            with pytest.raises(Busy):
                await stream.receive()
        return [(await task).version for task in going]

    assert run(main(), seed=1) == list(range(SNAPSHOTS_MAX))


def test_an_offer_of_another_size_is_passed_over():
    async def main():
        world = SimWorld(1)
        small, right = Source(world, 1), Source(world, 2)
        small.donor._take = lambda at_least: short()
        return await fetched(world.rpc(peer(9)), small, right)

    async def short():
        return Snapshot(0, b"x", memoryview(b"short"))

    assert bytes(run(main(), seed=1).data) == content(0)
