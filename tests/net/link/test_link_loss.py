"""Endpoints on simulated roads: what depends on time, in virtual time, repeated from its seed."""

import asyncio
import random
from contextlib import asynccontextmanager

import pytest
from sim.seed import SEED
from worlds.net import SimInternet

from p2pswarm.base.errors import LinkLost
from p2pswarm.base.ids import Address
from p2pswarm.net.config import TransportConfig
from p2pswarm.net.crypto.identity import Identity
from p2pswarm.net.endpoint.endpoint import Endpoint
from p2pswarm.net.link.events import LinkEnded, StreamData, StreamOpened
from p2pswarm.sim.loop import run
from p2pswarm.sim.network_conditions import WorldConfig

ANYWHERE = Address("0.0.0.0", 4001)


class SimEndpoints:
    """A simulated internet and the endpoints in it."""

    def __init__(self, seed: int = SEED, **settings):
        self.rng = random.Random(seed)
        self.internet = SimInternet(seed, WorldConfig(**settings))
        self.replies: dict[tuple[Endpoint, object, int], asyncio.Future[bytes]] = {}
        self.losses = []

    @asynccontextmanager
    async def end(self, at: tuple[float, float]):
        """An endpoint that echoes."""
        identity = Identity.generate(self.rng.randbytes(32))
        net = self.internet.net(identity.peer_id, at)
        async with Endpoint(identity, net, TransportConfig(), self.rng.randbytes) as endpoint:
            endpoint.on_event = lambda link, event: self.happened(endpoint, link, event)
            await endpoint.listen(ANYWHERE)
            yield endpoint

    def break_connections(self):
        """Reset every connection, as a router does that has forgotten them."""
        for socket in list(self.internet.sockets):
            socket.close(LinkLost("Connection reset by peer"))

    def happened(self, endpoint, link, event):
        if isinstance(event, StreamOpened):
            link.send(event.stream, event.data, ended=True)
        elif isinstance(event, StreamData):
            self.replies.pop((endpoint, link, event.stream)).set_result(event.data)
        elif isinstance(event, LinkEnded):
            self.losses.append(link)
            for key in [key for key in self.replies if key[:2] == (endpoint, link)]:
                self.replies.pop(key).set_exception(LinkLost("with a call on it"))

    async def call(self, source: Endpoint, target: Endpoint, data: bytes):
        link = await source.link(target.contact)
        waiter = asyncio.get_running_loop().create_future()
        stream = link.open(data, ended=True)
        self.replies[source, link, stream] = waiter
        assert await waiter == data


@pytest.mark.parametrize("seed", range(SEED, SEED + 25))
def test_peers_that_dial_each_other_at_nearly_the_same_time_lose_no_call(seed: int):
    """Both call every few milliseconds while links come up, are preferred, and drain."""
    world = SimEndpoints(seed)

    async def caller(source: Endpoint, target: Endpoint, rng: random.Random):
        await asyncio.sleep(rng.uniform(0.0, 0.2))
        async with asyncio.TaskGroup() as group:
            for number in range(60):
                group.create_task(world.call(source, target, b"%d" % number))
                await asyncio.sleep(rng.uniform(0.0, 0.02))

    async def main():
        async with world.end((0.0, 0.5)) as one, world.end((1.0, 0.5)) as other:
            async with asyncio.TaskGroup() as group:
                group.create_task(caller(one, other, random.Random(seed)))
                group.create_task(caller(other, one, random.Random(seed + 1)))
            await asyncio.sleep(1.0)

            assert len(one.links()) == len(other.links()) == 1
            assert one.links()[0].session.dialled != other.links()[0].session.dialled
            assert len(world.losses) in (0, 2)

    run(main(), seed)


@pytest.mark.parametrize(("far_x", "connections"), [(0.001, 1), (1.0, 2)])
def test_a_far_peer_gets_more_bulk_connections(far_x: float, connections: int):
    world = SimEndpoints(rtt_least_s=0.001)

    async def main():
        async with world.end((0.0, 0.5)) as one, world.end((far_x, 0.5)) as other:
            await world.call(one, other, b"hello")
            link, back = one.links()[0], other.links()[0]
            data = random.Random(SEED).randbytes(10_000_000)
            room = bytearray(len(data))
            arrival = back.expect(memoryview(room))
            await link.send_bulk(arrival.transfer, memoryview(data), 1)
            await arrival.wait()

            assert room == data
            assert link.stats.bulk_connections == connections

    run(main(), SEED)


def test_urgent_bulk_overtakes_what_is_under_way():
    """Of 100 MB that began first, most come after 1 MB that is more urgent."""
    world = SimEndpoints(bandwidth_bytes_per_s=25e6)

    async def main():
        async with world.end((0.0, 0.5)) as one, world.end((1.0, 0.5)) as other:
            await world.call(one, other, b"hello")
            link, back = one.links()[0], other.links()[0]
            state, urgent = memoryview(bytes(100_000_000)), memoryview(bytes(1_000_000))
            first = back.expect(memoryview(bytearray(len(state))))
            second = back.expect(memoryview(bytearray(len(urgent))))
            slow = asyncio.ensure_future(link.send_bulk(first.transfer, state, 2))
            await asyncio.sleep(1.0)
            begin_s = asyncio.get_running_loop().time()

            await link.send_bulk(second.transfer, urgent, 1)
            await second.wait()

            assert asyncio.get_running_loop().time() - begin_s < 0.4
            await slow
            await first.wait()
            assert asyncio.get_running_loop().time() - begin_s > 2.0

    run(main(), SEED)


@pytest.mark.parametrize("seed", range(SEED, SEED + 15))
def test_connections_that_are_reset_again_and_again_cost_no_call_and_no_tensor(seed: int):
    world = SimEndpoints(seed, bandwidth_bytes_per_s=10e6)
    rng = random.Random(seed)

    async def breaker():
        for _ in range(8):
            await asyncio.sleep(rng.uniform(0.05, 1.0))
            world.break_connections()

    async def caller(source: Endpoint, target: Endpoint):
        for number in range(100):
            await world.call(source, target, b"%d" % number)
            await asyncio.sleep(rng.uniform(0.0, 0.05))

    async def transfer(link, back):
        data = rng.randbytes(8_000_000)
        room = bytearray(len(data))
        arrival = back.expect(memoryview(room))
        await link.send_bulk(arrival.transfer, memoryview(data), 1)
        await arrival.wait()
        assert room == data

    async def main():
        async with world.end((0.0, 0.5)) as one, world.end((1.0, 0.5)) as other:
            await world.call(one, other, b"hello")
            link, back = one.links()[0], other.links()[0]
            async with asyncio.timeout(60), asyncio.TaskGroup() as group:
                for source, target in ((link, back), (back, link)):
                    group.create_task(transfer(source, target))
                for here, there in ((one, other), (other, one)):
                    group.create_task(caller(here, there))
                group.create_task(breaker())

            assert world.losses == []
            assert (one.links(), other.links()) == ((link,), (back,))
            received = link.stats.bulk_received_bytes, back.stats.bulk_received_bytes
            assert received == (8_000_000, 8_000_000), "no chunk came twice"

    run(main(), seed)


def test_a_link_goes_on_within_a_second_of_the_loss_of_its_path():
    world = SimEndpoints()

    async def main():
        clock = asyncio.get_running_loop().time
        async with world.end((0.0, 0.5)) as one, world.end((1.0, 0.5)) as other:
            await world.call(one, other, b"hello")
            begun_s = clock()
            world.break_connections()
            await world.call(one, other, b"again")

            assert clock() - begun_s < 1.0
            assert world.losses == []

    run(main(), SEED)
