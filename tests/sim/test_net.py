"""The whole stack in virtual time: deaths, cuts, slow links; the same run from the same seed."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest
from sim.seed import SEED
from worlds.net import SimInternet, SimNet

from p2pswarm.base.errors import DialFailed, Late, LinkLost, Unusable
from p2pswarm.base.ids import Address, Contact
from p2pswarm.net.config import TransportConfig
from p2pswarm.net.crypto.identity import Identity
from p2pswarm.net.endpoint.endpoint import Endpoint
from p2pswarm.net.os.addresses import address_groups
from p2pswarm.net.rpc.base import Priority, Stream
from p2pswarm.net.rpc.link_rpc import LinkRpc
from p2pswarm.net.wire.message import Message, message
from p2pswarm.sim.loop import run
from p2pswarm.sim.network_conditions import WorldConfig

MIB = 1024 * 1024


@message(61301)
@dataclass(frozen=True, slots=True)
class Ping(Message):
    number: int


class Net:
    """A simulated internet with LinkRpcs on it."""

    def __init__(self, config: WorldConfig, seed: int = SEED) -> None:
        self.internet = SimInternet(seed, config)
        self._rng = random.Random(seed)

    @asynccontextmanager
    async def peer(self, at: tuple[float, float]) -> AsyncIterator[LinkRpc]:
        identity = Identity.generate(self._rng.randbytes(32))
        net = self.internet.net(identity.peer_id, at)
        endpoint = Endpoint(identity, net, TransportConfig(), self._rng.randbytes)
        async with endpoint, LinkRpc(endpoint) as rpc:
            await endpoint.listen(Address("0.0.0.0", 4001))
            rpc.serve_unary(Ping, lambda _peer, ping: ping)
            yield rpc

    def run(self, body: Callable[[LinkRpc, LinkRpc], Awaitable[None]]) -> None:
        """Run `body` with two peers at opposite sides of the plane."""

        async def main() -> None:
            async with self.peer((0.0, 0.5)) as a, self.peer((1.0, 0.5)) as b:
                await body(a, b)

        run(main(), SEED)


def now_s() -> float:
    return asyncio.get_running_loop().time()


def test_first_call_takes_four_round_trips_and_the_next_one() -> None:
    """TCP 1, Noise XX 1.5, and the request."""
    net = Net(WorldConfig())

    async def body(a: LinkRpc, b: LinkRpc) -> None:
        first, second = net.internet.world.hosts.values()
        rtt_s = 2 * net.internet.world.one_way_s(first, second)
        begin_s = now_s()
        await a.call(b.contact, Ping(1), 10.0)
        middle_s = now_s()
        await a.call(b.contact, Ping(2), 10.0)

        assert 2 * rtt_s < middle_s - begin_s < 4.1 * rtt_s
        assert now_s() - middle_s == pytest.approx(rtt_s, rel=1e-3)

    net.run(body)


def test_silent_death_is_noticed_by_the_pings() -> None:
    net = Net(WorldConfig())

    async def body(a: LinkRpc, b: LinkRpc) -> None:
        async def forever(stream: Stream, _ping: Ping) -> None:
            await stream.receive()

        b.serve_stream(Ping, forever)
        async with a.open_stream(b.contact, Ping(1), None) as stream:
            await stream.send(Ping(2))
            assert b.contact.peer is not None
            net.internet.kill(b.contact.peer)
            begin_s = now_s()
            with pytest.raises(LinkLost):
                await stream.receive()
            assert 10.0 < now_s() - begin_s < 25.0

    net.run(body)


def test_short_cut_of_the_path_loses_nothing() -> None:
    net = Net(WorldConfig())

    async def body(a: LinkRpc, b: LinkRpc) -> None:
        await a.call(b.contact, Ping(1), 10.0)
        assert a.contact.peer is not None
        net.internet.world.partition([a.contact.peer])
        call = asyncio.ensure_future(a.call(b.contact, Ping(2), 10.0))
        await asyncio.sleep(3.0)
        assert not call.done()
        net.internet.world.heal()

        assert await call == Ping(2)

    net.run(body)


def test_long_cut_of_the_path_ends_the_link_on_both_sides() -> None:
    net = Net(WorldConfig())

    async def body(a: LinkRpc, b: LinkRpc) -> None:
        await a.call(b.contact, Ping(1), 10.0)
        assert a.contact.peer is not None
        net.internet.world.partition([a.contact.peer])
        with pytest.raises((LinkLost, DialFailed)):
            await a.call(b.contact, Ping(2), 100.0)
        with pytest.raises((Late, DialFailed)):
            await a.call(b.contact, Ping(3), 3.0)
        await asyncio.sleep(60.0)
        assert net.internet.sockets == {}

    net.run(body)


def test_bulk_takes_as_long_as_the_slower_link_needs() -> None:
    net = Net(WorldConfig(bandwidth_bytes_per_s=MIB))

    async def body(a: LinkRpc, b: LinkRpc) -> None:
        room = memoryview(bytearray(8 * MIB))

        async def take(stream: Stream, _ping: Ping) -> None:
            arrival = stream.expect(room)
            await stream.send(Ping(arrival.transfer))
            await arrival.wait()

        b.serve_stream(Ping, take)
        data = random.Random(SEED).randbytes(8 * MIB)
        async with a.open_stream(b.contact, Ping(1), None) as stream:
            grant = await stream.receive()
            assert isinstance(grant, Ping)
            begin_s = now_s()
            await stream.send_bulk(grant.number, memoryview(data), Priority.TENSOR)
            assert await stream.receive() is None
            assert 8.0 < now_s() - begin_s < 9.5
        assert room == data

    net.run(body)


def test_calls_pass_bulk_that_fills_the_link() -> None:
    """What waits ahead of a call is no more than the kernel's buffer and one chunk."""
    net = Net(WorldConfig(bandwidth_bytes_per_s=4 * MIB))

    async def body(a: LinkRpc, b: LinkRpc) -> None:
        async def take(stream: Stream, _ping: Ping) -> None:
            arrival = stream.expect(memoryview(bytearray(16 * MIB)))
            await stream.send(Ping(arrival.transfer))
            await arrival.wait()

        b.serve_stream(Ping, take)
        async with a.open_stream(b.contact, Ping(1), None) as stream:
            grant = await stream.receive()
            assert isinstance(grant, Ping)
            data = memoryview(bytes(16 * MIB))
            async with asyncio.TaskGroup() as group:
                group.create_task(stream.send_bulk(grant.number, data, Priority.TENSOR))
                await asyncio.sleep(1.0)
                begin_s = now_s()
                await a.call(b.contact, Ping(2), 10.0)
                assert now_s() - begin_s < 0.6

    net.run(body)


def test_port_in_use_cannot_be_bound() -> None:
    async def main() -> None:
        internet = SimInternet(SEED)
        net = internet.net(Identity.generate(b"x" * 32).peer_id)
        await net.listen(Address("0.0.0.0", 4000))
        with pytest.raises(Unusable, match="in use"):
            await net.listen(Address("0.0.0.0", 4000))

    run(main(), SEED)


def test_port_where_nobody_listens_refuses() -> None:
    async def main() -> None:
        internet = SimInternet(SEED)
        first, second = (internet.net(Identity.generate(s * 32).peer_id) for s in (b"x", b"y"))
        listener = await second.listen(Address("0.0.0.0", 0))
        assert isinstance(first, SimNet)
        with pytest.raises(DialFailed, match="refused"):
            await first.dial(Address(listener.address.host, 1))
        listener.close()
        with pytest.raises(DialFailed, match="refused"):
            await first.dial(listener.address)

    run(main(), SEED)


def whole_stack(seed: int) -> str:
    """The digest of six peers that call each other over real handshakes and records."""
    net = Net(WorldConfig(jitter=0.2, loss=0.02, bandwidth_bytes_per_s=MIB), seed)
    rng = random.Random(seed)

    async def main() -> str:
        async with (
            net.peer((0.1, 0.1)) as a,
            net.peer((0.9, 0.1)) as b,
            net.peer((0.1, 0.9)) as c,
            net.peer((0.9, 0.9)) as d,
        ):
            peers = [a, b, c, d]

            async def caller(rpc: LinkRpc, others: list[Contact]) -> None:
                for number in range(10):
                    await rpc.call(rng.choice(others), Ping(number), 10.0)

            async with asyncio.TaskGroup() as group:
                for rpc in peers:
                    others = [other.contact for other in peers if other is not rpc]
                    group.create_task(caller(rpc, others))
            return net.internet.world.digest

    return run(main(), seed)


def test_same_seed_gives_the_same_run_of_the_whole_stack() -> None:
    assert whole_stack(SEED) == whole_stack(SEED)
    assert whole_stack(SEED) != whole_stack(SEED + 1)


def test_a_dial_from_a_thinned_network_is_tried_again_as_a_kernel_does():
    async def main() -> None:
        internet = SimInternet(SEED, WorldConfig())
        server, client = (
            internet.net(Identity.generate(name * 32).peer_id) for name in (b"s", b"c")
        )
        listener = await server.listen(Address("0.0.0.0", 4001))
        host = internet.world.hosts[Identity.generate(b"c" * 32).peer_id.raw].address.host
        network = address_groups(host)[1]
        begun_s = now_s()

        listener.thin({network: 1})  # one of four: the third packet after the first, 7 s later
        await client.dial(listener.address)
        assert 7.0 <= now_s() - begun_s < 8.0

        listener.thin({network: 5})
        with pytest.raises(DialFailed, match="no answer"):
            await client.dial(listener.address)
        assert 60.0 < now_s() - begun_s < 200.0

        listener.thin({})
        begun_s = now_s()
        await client.dial(listener.address)
        assert now_s() - begun_s < 1.0

    run(main(), SEED)
