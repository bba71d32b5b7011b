"""Links in virtual time find out how many bulk connections their road takes; nothing is lost."""

import asyncio
import random
from contextlib import asynccontextmanager

import pytest
from sim.seed import SEED
from worlds.net import SimInternet

from p2pswarm.base.errors import DialFailed
from p2pswarm.base.ids import Address
from p2pswarm.net.config import TransportConfig
from p2pswarm.net.crypto.identity import Identity
from p2pswarm.net.endpoint.endpoint import Endpoint
from p2pswarm.sim.loop import run
from p2pswarm.sim.network_conditions import WorldConfig

MB = 1_000_000
TENSOR_BYTES = 8 * MB


class Slow:
    """A bulk machine that is given no more than a rate, as by a window and a round trip."""

    def __init__(self, machine, rate):
        self._machine = machine
        self._rate = rate
        self._free_s = 0.0
        self.pipe = None

    def __getattr__(self, name):
        return getattr(self._machine, name)

    def next_out(self, now_s):
        loop = asyncio.get_running_loop()
        if self._free_s > loop.time():
            loop.call_at(self._free_s, self.pipe.wake)
            return None
        out = self._machine.next_out(now_s)
        if out is not None:
            self._free_s = max(self._free_s, loop.time()) + len(out) / self._rate
        return out


class SlowConnection:
    """Becomes a bulk pipe that is slow."""

    def __init__(self, connection, rate):
        self._connection = connection
        self._rate = rate

    def __getattr__(self, name):
        return getattr(self._connection, name)

    def become_bulk(self, machine):
        slow = Slow(machine, self._rate)
        slow.pipe = self._connection.become_bulk(slow)
        return slow.pipe


class Road:
    """A net on which each connection carries so much, and only so many may be dialled."""

    def __init__(self, net, rate, dials_max=1000):
        self._net = net
        self._rate = rate
        self.dials_left = dials_max

    def __getattr__(self, name):
        return getattr(self._net, name)

    async def dial(self, to, from_port=0):
        if self.dials_left == 0:
            raise DialFailed(f"{to}: the hole is used up")
        self.dials_left -= 1
        return SlowConnection(await self._net.dial(to, from_port), self._rate)


@asynccontextmanager
async def linked(rate, *, uplink=1000 * MB, dials_max=1000):
    """A link on such a road, seen from both sides, the dialler first; and the dialler."""
    rng = random.Random(SEED)
    internet = SimInternet(SEED, WorldConfig(bandwidth_bytes_per_s=uplink))
    ends, nets = [], []
    for at in ((0.0, 0.5), (1.0, 0.5)):
        identity = Identity.generate(rng.randbytes(32))
        net = internet.net(identity.peer_id, at)
        nets.append(net if ends else Road(net, rate, dials_max))
        ends.append(Endpoint(identity, nets[-1], TransportConfig(), rng.randbytes))
    async with ends[0] as dialler, ends[1] as acceptor:
        await acceptor.listen(Address("0.0.0.0", 4001))
        link = await dialler.link(acceptor.contact)
        await asyncio.sleep(1.0)
        yield dialler, acceptor, link, acceptor.links()[0]


async def send_for(link, back, seconds):
    """Send tensors, two at a time; returns the bytes a second, and the numbers of connections."""
    loop = asyncio.get_running_loop()
    end_s, sent, counts = loop.time() + seconds, 0, []
    data = random.Random(1).randbytes(TENSOR_BYTES)

    async def stream():
        nonlocal sent
        while loop.time() < end_s:
            room = bytearray(TENSOR_BYTES)
            arrival = back.expect(memoryview(room))
            await link.send_bulk(arrival.transfer, memoryview(data), 1)
            await arrival.wait()
            assert room == data
            sent += TENSOR_BYTES
            counts.append(link.stats.bulk_connections)

    async with asyncio.TaskGroup() as group:
        for _ in range(2):
            group.create_task(stream())
    return sent / seconds, counts


@pytest.mark.full
def test_where_each_connection_carries_little_there_are_soon_sixteen():
    async def main():
        async with linked(2 * MB) as (_, _, link, back):
            _, counts = await send_for(link, back, 60.0)
            rate, later = await send_for(link, back, 20.0)

            assert later.count(16) > 0.5 * len(later), "now and then it tries eight"
            assert rate > 0.6 * 16 * 2 * MB
            assert max(counts) <= 16
            assert back.stats.bulk_received_bytes % TENSOR_BYTES == 0, "no chunk came twice"

    run(main(), SEED)


@pytest.mark.full
def test_where_two_connections_fill_the_road_there_are_two_again_after_a_look():
    async def main():
        async with linked(50 * MB, uplink=8 * MB) as (_, _, link, back):
            _, counts = await send_for(link, back, 120.0)
            rate, later = await send_for(link, back, 20.0)

            assert max(counts) == 4
            assert set(later) == {2}
            assert rate > 0.8 * 8 * MB

    run(main(), SEED)


@pytest.mark.parametrize("bulk", [1, 3])
def test_a_way_that_gives_only_so_many_costs_no_link_and_no_byte(bulk):
    async def main():
        async with linked(2 * MB, dials_max=1 + bulk) as (dialler, _, link, back):
            await send_for(link, back, 60.0)

            assert link.stats.bulk_connections == bulk
            assert dialler.links() == (link,)

    run(main(), SEED)


@pytest.mark.full
def test_what_was_best_is_where_the_next_link_to_the_peer_begins():
    async def main():
        async with linked(2 * MB) as (dialler, acceptor, link, back):
            await send_for(link, back, 60.0)
            link.close()
            await asyncio.sleep(1.0)
            again = await dialler.link(acceptor.contact)
            await asyncio.sleep(1.0)
            _, counts = await send_for(again, acceptor.links()[0], 10.0)

            assert counts[-1] == 16

    run(main(), SEED)
