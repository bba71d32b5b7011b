"""Links leave their relay over connections that both sides dialled; nothing is lost on the way."""

import asyncio
import os
from random import Random

import pytest

from p2pswarm.base.errors import Busy, DialFailed, LinkLost
from p2pswarm.base.ids import Address
from p2pswarm.net.endpoint.preface import NO_SEAL, PUNCH_TOKEN_BYTES, Sighting, punch_preface
from p2pswarm.net.link.path import PathKind
from p2pswarm.net.os.sockets import SocketNet
from p2pswarm.reach.punch.dial_schedule import DialSchedule
from p2pswarm.reach.punch.limits import PEER_MAX
from p2pswarm.reach.punch.messages import Offer, Punch, PunchCandidate
from p2pswarm.reach.punch.puncher import ARRIVALS_MAX, PunchAttempt
from tests.reach.punch.harness import Victim, meeting, punching
from tests.reach.relay.harness import PATIENCE_S, behind_nat, relay

MIB = 1024 * 1024


async def test_a_relayed_link_moves_to_a_connection_that_both_sides_dialled():
    async with meeting() as (dialler, target, _):
        await dialler.node.ask(target.node.contact)

        link = await dialler.moved(target.peer)

        assert (await dialler.node.ask(target.node.contact)).startswith("hello")
        assert (await target.node.ask(dialler.node.contact)).startswith("hello")
        assert link.path.remote == target.node.endpoint.listening[1]
        assert target.link(dialler.peer).path.remote == dialler.node.endpoint.listening[1]


async def test_calls_that_are_under_way_while_it_moves_are_answered_once():
    async with meeting() as (dialler, target, _):
        first = await dialler.node.ask(target.node.contact)
        asked = [dialler.node.ask(target.node.contact, f"{i}") for i in range(500)]

        answers = await asyncio.gather(*asked)
        await dialler.moved(target.peer)

        assert first.startswith("hello ")
        assert [each.split()[0] for each in answers] == [str(i) for i in range(500)]


async def test_tensors_go_on_over_punched_bulk_connections():
    async with meeting(bulk_connections=3, bulk_connections_far=3) as (dialler, target, _):
        data = os.urandom(16 * MIB)
        sending = asyncio.create_task(dialler.node.send(target.node.contact, data))
        await dialler.node.ask(target.node.contact)
        link = await dialler.moved(target.peer)
        await sending

        again = os.urandom(4 * MIB)
        await dialler.node.send(target.node.contact, again)

        assert target.node.got == again
        assert link.path.kind is PathKind.PUNCHED
        assert link.stats.bulk_connections >= 1


async def test_a_punched_path_that_breaks_is_punched_again_from_another_port():
    async with meeting() as (dialler, target, _):
        await dialler.node.ask(target.node.contact)
        link = await dialler.moved(target.peer)
        await dialler.node.ask(target.node.contact)
        ports = [target.link(dialler.peer).path.remote.port]

        link.paths.current.pipe.abort()
        await dialler.moved(target.peer, PathKind.RELAYED)
        await dialler.moved(target.peer)

        await dialler.node.ask(target.node.contact)
        assert target.link(dialler.peer).path.remote.port not in ports


async def test_bulk_connections_that_cannot_be_punched_go_through_the_relay():
    async with meeting() as (dialler, target, _):
        await dialler.node.ask(target.node.contact)
        await dialler.moved(target.peer)

        async def fails(*_):
            raise DialFailed("no luck")

        dialler.puncher.connect = fails
        data = os.urandom(MIB)
        await dialler.node.send(target.node.contact, data)

        assert target.node.got == data


async def offer_of(
    dialler, target, *candidates: PunchCandidate, go: tuple[PunchCandidate, ...] = ()
) -> Offer:
    """Be a hostile initiator: name these candidates, say go, and hear what the target answers."""
    punch = Punch(os.urandom(2 * PUNCH_TOKEN_BYTES), Offer(candidates=candidates, open=True))
    contact = target.node.contact
    async with dialler.node.rpc.open_stream(contact, punch, PATIENCE_S) as stream:
        offer = await stream.receive()
        await stream.send(Offer(candidates=go, open=True))
        assert await stream.receive() is None  # nobody came, and the time for that is over
    return offer


@pytest.mark.parametrize("seal", [b"", NO_SEAL, b"x" * 16])
async def test_a_stranger_makes_nobody_dial_a_third_party(seal):
    async with meeting(punches=False) as (dialler, target, _), Victim() as victim:
        await dialler.node.ask(target.node.contact)
        named = PunchCandidate(victim.address.host, victim.address.port, seal)

        await offer_of(dialler, target, named, go=(named,))

        assert victim.dials == 0


async def test_a_seal_for_one_port_is_not_good_for_another():
    async with meeting(punches=False) as (dialler, target, middle), Victim() as victim:
        await dialler.node.ask(target.node.contact)
        port = dialler.node.endpoint.listening[0].port
        await dialler.puncher.view.see(middle.endpoint.listening[0], port)
        seal = dialler.puncher.view.offer(port, middle.endpoint.listening[0]).candidates[0].seal
        named = PunchCandidate(victim.address.host, victim.address.port, seal)

        await offer_of(dialler, target, named)

        assert victim.dials == 0


async def test_a_peer_that_asks_too_often_is_told_so():
    async with meeting(punches=False) as (dialler, target, _):
        await dialler.node.ask(target.node.contact)
        async with asyncio.TaskGroup() as tasks:
            for _ in range(PEER_MAX):
                tasks.create_task(offer_of(dialler, target))
            await asyncio.sleep(0.5)

        with pytest.raises(Busy):
            await offer_of(dialler, target)


async def test_two_sides_behind_hard_nats_do_not_try():
    async with meeting(punches=False) as (dialler, target, middle):
        await dialler.node.ask(target.node.contact)
        relay = middle.endpoint.listening[0]
        for host in (dialler, target):
            book, port = host.puncher.view.book, host.puncher.view.port
            await host.puncher.view.see(relay, port)
            elsewhere = Sighting(host.node.endpoint.listening[0].through(middle.peer), NO_SEAL)
            book.on_observation(
                type(relay)("127.0.0.9", 1), port, elsewhere, asyncio.get_running_loop().time()
            )

        with pytest.raises(DialFailed, match="another outside port"):
            await dialler.puncher.connect(target.peer, relay)
        with pytest.raises(DialFailed, match="not punched again for 1800"):
            await dialler.puncher.connect(target.peer, relay)


async def test_a_peer_that_does_not_know_punching_is_left_alone():
    async with (
        relay() as middle,
        behind_nat(middle.endpoint.contact) as target,
        punching(middle, punches=False) as dialler,
    ):
        await dialler.node.ask(target.contact)

        with pytest.raises(DialFailed, match="was not punched"):
            await dialler.puncher.connect(target.peer, middle.endpoint.listening[0])
        with pytest.raises(DialFailed, match="not punched again for 1800"):
            await dialler.puncher.connect(target.peer, middle.endpoint.listening[0])


async def test_a_greeting_that_nobody_waits_for_ends_its_connection():
    async with meeting(punches=False) as (dialler, _, middle), asyncio.timeout(PATIENCE_S):
        for node in (dialler.node, middle):
            connection = await SocketNet().dial(node.endpoint.listening[0])
            await connection.send(punch_preface(b"t" * PUNCH_TOKEN_BYTES))

            with pytest.raises(LinkLost):
                await connection.receive(1)
            connection.close()


async def test_a_crowd_at_the_port_of_an_attempt_does_not_keep_the_peer_out():
    """It says nothing, from one host; the peer comes last, and greets."""
    ours, theirs = b"o" * PUNCH_TOKEN_BYTES, b"t" * PUNCH_TOKEN_BYTES
    taken: asyncio.Queue = asyncio.Queue()
    net = SocketNet()
    listener = await net.listen(Address("127.0.0.1", 0))
    crowd = []
    try:
        async with (
            asyncio.timeout(PATIENCE_S),
            PunchAttempt(net, DialSchedule(Random(1)), ours, theirs, taken.put_nowait) as attempt,
        ):
            attempt.accept_at(listener)
            at = listener.address
            dials = [
                asyncio.open_connection(at.host, at.port, local_addr=("127.7.7.7", 0))
                for _ in range(ARRIVALS_MAX + 4)
            ]
            crowd += [await dial for dial in dials]
            for reader, _ in crowd[:4]:
                assert await reader.read() == b""  # they made way for others of theirs
            peer = await net.dial(at)
            await peer.send(punch_preface(theirs))

            assert await peer.receive(len(punch_preface(ours))) == punch_preface(ours)
            (await taken.get()).close()
            peer.close()
    finally:
        listener.close()
        for _, writer in crowd:
            writer.close()
