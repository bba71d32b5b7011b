"""The simulated network: distances, queues, loss, cuts, and the same run from the same seed."""

import asyncio
import contextlib
import random
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from sim.seed import SEED

from p2pswarm.base.errors import DialFailed, Late, LinkLost
from p2pswarm.base.ids import Address, Contact, PeerId
from p2pswarm.net.rpc.base import Stream
from p2pswarm.net.wire.message import Message, message
from p2pswarm.sim.loop import run
from p2pswarm.sim.network_conditions import RTO_LEAST_S, World, WorldConfig
from p2pswarm.sim.process import MESSAGE_BYTES
from p2pswarm.sim.rpc import SimRpc, SimWorld


@message(61201)
@dataclass(frozen=True, slots=True)
class Ping(Message):
    number: int


def peers(count: int) -> list[PeerId]:
    rng = random.Random(SEED)
    return [PeerId(rng.randbytes(32)) for _ in range(count)]


def two(config: WorldConfig) -> tuple[SimWorld, SimRpc, SimRpc]:
    """Two processes at opposite sides of the plane."""
    world = SimWorld(SEED, config)
    a, b = peers(2)
    near, far = world.rpc(a, at=(0.0, 0.5)), world.rpc(b, at=(1.0, 0.5))
    far.serve_unary(Ping, lambda _peer, ping: ping)
    return world, near, far


async def call_s(near: SimRpc, far: SimRpc) -> float:
    """How long a call takes."""
    loop = asyncio.get_running_loop()
    begin_s = loop.time()
    await near.call(far.contact, Ping(1), 60.0)
    return loop.time() - begin_s


def test_median_round_trip_is_as_configured() -> None:
    world = World(SEED, WorldConfig(rtt_median_s=0.1))
    hosts = [world.place(peer) for peer in peers(200)]

    rtts_s = [2 * world.one_way_s(a, b) for a in hosts for b in hosts if a is not b]

    assert statistics.median(rtts_s) == pytest.approx(0.1, rel=0.1)


def test_call_takes_one_round_trip() -> None:
    world, near, far = two(WorldConfig())

    rtt_s = 2 * world.world.one_way_s(near.host, far.host)
    assert run(call_s(near, far), SEED) == pytest.approx(rtt_s)


def test_first_call_pays_for_the_dial_and_the_next_does_not() -> None:
    world, near, far = two(WorldConfig(dial_rtts=2))

    async def main() -> tuple[float, float]:
        return await call_s(near, far), await call_s(near, far)

    rtt_s = 2 * world.world.one_way_s(near.host, far.host)
    assert run(main(), SEED) == (pytest.approx(3 * rtt_s), pytest.approx(rtt_s))


def test_link_used_longest_ago_makes_room_for_a_new_one() -> None:
    world = SimWorld(SEED, WorldConfig(dial_rtts=2, links_max=2))
    first, *others = [world.rpc(peer) for peer in peers(4)]
    for other in others:
        other.serve_unary(Ping, lambda _peer, ping: ping)

    async def main() -> list[bool]:
        for other in (others[0], others[1], others[0], others[2]):
            await call_s(first, other)
        rtts_s = [2 * world.world.one_way_s(first.host, other.host) for other in others]
        return [await call_s(first, others[i]) > 2 * rtts_s[i] for i in (0, 2, 1)]

    assert run(main(), SEED) == [False, False, True]


def test_bytes_wait_for_the_uplink() -> None:
    world, near, far = two(WorldConfig(bandwidth_bytes_per_s=1000 * MESSAGE_BYTES))

    async def main() -> float:
        loop = asyncio.get_running_loop()
        await asyncio.gather(*(near.call(far.contact, Ping(i), 60.0) for i in range(500)))
        return loop.time()

    rtt_s = 2 * world.world.one_way_s(near.host, far.host)
    assert run(main(), SEED) == pytest.approx(rtt_s + 0.5, abs=0.01)


def test_lost_packet_shows_as_delay() -> None:
    world, near, far = two(WorldConfig(loss=0.2))

    async def main() -> list[float]:
        return [await call_s(near, far) for _ in range(50)]

    rtt_s = 2 * world.world.one_way_s(near.host, far.host)
    taken_s = run(main(), SEED)
    assert min(taken_s) == pytest.approx(rtt_s)
    assert max(taken_s) >= rtt_s + RTO_LEAST_S
    assert 5 <= sum(taken > rtt_s + 1e-6 for taken in taken_s) <= 35


def test_dead_host_costs_its_callers_their_deadline() -> None:
    world, near, far = two(WorldConfig())
    assert far.contact.peer is not None
    world.kill(far.contact.peer)

    async def main() -> float:
        with pytest.raises(Late):
            await near.call(far.contact, Ping(1), 0.75)
        return asyncio.get_running_loop().time()

    assert run(main(), SEED) == 0.75


def test_dead_process_is_refused_at_once() -> None:
    world, near, far = two(WorldConfig())
    assert far.contact.peer is not None
    world.kill(far.contact.peer, silent=False)

    async def main() -> float:
        with pytest.raises(DialFailed):
            await near.call(far.contact, Ping(1), 60.0)
        return asyncio.get_running_loop().time()

    assert run(main(), SEED) < 1.0


def test_process_that_was_started_again_answers() -> None:
    world, near, far = two(WorldConfig(dial_rtts=2))
    assert far.contact.peer is not None
    world.kill(far.contact.peer)
    again = world.rpc(far.contact.peer)
    again.serve_unary(Ping, lambda _peer, _ping: Ping(99))

    assert again.contact == far.contact
    assert run(near.call(far.contact, Ping(1), 60.0), SEED) == Ping(99)


def test_nobody_at_an_address_answers_nothing() -> None:
    _world, near, _far = two(WorldConfig())
    nowhere = Contact(None, Address("192.0.2.1", 4000))

    with pytest.raises(Late):
        run(near.call(nowhere, Ping(1), 1.0), SEED)


def test_partition_cuts_and_heals() -> None:
    world, near, far = two(WorldConfig())
    assert near.contact.peer is not None
    world.world.partition([near.contact.peer])

    async def main() -> Message:
        with pytest.raises(Late):
            await near.call(far.contact, Ping(1), 1.0)
        world.world.heal()
        return await near.call(far.contact, Ping(2), 1.0)

    assert run(main(), SEED) == Ping(2)


@pytest.mark.parametrize("cut", ["power", "partition"])
def test_stream_over_a_silent_path_is_lost_in_time(cut: str) -> None:
    world, near, far = two(WorldConfig())
    ended: list[BaseException] = []

    async def listen(stream: Stream, _ping: Ping) -> None:
        try:
            await stream.receive()
        except BaseException as error:
            ended.append(error)
            raise

    far.serve_stream(Ping, listen)

    async def main() -> float:
        async with near.open_stream(far.contact, Ping(1), None) as stream:
            await asyncio.sleep(1.0)
            assert far.contact.peer is not None
            if cut == "power":
                world.kill(far.contact.peer)
            else:
                world.world.partition([far.contact.peer])
                await stream.send(Ping(2))
            with pytest.raises(LinkLost):
                await stream.receive()
        await asyncio.sleep(1.0)
        return asyncio.get_running_loop().time()

    assert 10.0 < run(main(), SEED) < 20.0
    assert len(ended) == 1


def chatter(seed: int) -> str:
    """The digest of 30 nodes that call each other while some of them die."""
    world = SimWorld(seed, WorldConfig(jitter=0.2, loss=0.02, dial_rtts=2, links_max=8))
    rng = random.Random(seed)
    nodes = [world.rpc(PeerId(rng.randbytes(32))) for _ in range(30)]

    async def later(_peer: PeerId, ping: Ping) -> Ping:
        await asyncio.sleep(0.01 * ping.number)
        return ping

    async def caller(node: SimRpc) -> None:
        for number in range(20):
            with contextlib.suppress(Late, LinkLost, DialFailed):
                await node.call(rng.choice(nodes).contact, Ping(number), 0.2)

    async def main() -> str:
        for node in nodes:
            node.serve_unary(Ping, later)
        async with asyncio.TaskGroup() as group:
            for node in nodes:
                group.create_task(caller(node))
            for node in nodes[::7]:
                await asyncio.sleep(0.3)
                assert node.contact.peer is not None
                world.kill(node.contact.peer, silent=rng.random() < 0.5)
        return world.digest

    return run(main(), seed)


def test_same_seed_gives_the_same_run_and_another_seed_another() -> None:
    assert chatter(SEED) == chatter(SEED)
    assert chatter(SEED) != chatter(SEED + 1)


def test_same_seed_gives_the_same_run_whatever_strings_hash_to() -> None:
    code = "from sim.test_network_conditions import chatter; print(chatter(7))"
    here = Path(__file__).parents[1]
    digests = [
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": hash_seed, "PYTHONPATH": f"{here}:{here.parent}"},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.split()[-1]
        for hash_seed in ("1", "2")
    ]

    assert digests == [chatter(7)] * 2
