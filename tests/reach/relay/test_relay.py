"""Two nodes that cannot be dialled meet at a third one, over real sockets."""

import asyncio
import contextlib
import os
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from p2pswarm.base.errors import BadHandshake, BadRecord, Busy, DialFailed, LinkLost, NotServing
from p2pswarm.base.ids import Address, Contact
from p2pswarm.net.endpoint.preface import (
    CIRCUIT_ANSWER_BYTES,
    CircuitRequest,
    CircuitStatus,
    circuit_answer,
)
from p2pswarm.net.os.sockets import SocketNet
from p2pswarm.reach.relay.relay import Relay, RelayRates
from p2pswarm.reach.relay.relay_table import RelayLimits
from p2pswarm.reach.relay.reservations import Reserve
from tests.reach.relay.harness import (
    LOOPBACK,
    PATIENCE_S,
    Ask,
    Host,
    behind_nat,
    host,
    meeting,
    relay,
)


async def raw_answer(to: Address, raw: bytes) -> bytes:
    """What a relay answers to these bytes; empty if it hangs up."""
    connection = await SocketNet().dial(to)
    try:
        await connection.send(raw)
        async with asyncio.timeout(PATIENCE_S):
            return await connection.receive(CIRCUIT_ANSWER_BYTES)
    except LinkLost:
        return b""
    finally:
        connection.close()


async def test_two_nodes_that_cannot_be_dialled_call_each_other_and_stream():
    tensor = os.urandom(3_000_000)
    async with meeting() as (dialler, target, middle):
        assert await dialler.ask(target.contact) == f"hello {dialler.peer.short}"
        assert await target.ask(dialler.contact) == f"hello {target.peer.short}"
        await dialler.send(target.contact, tensor)
        assert target.got == tensor
        await target.send(dialler.contact, tensor)
        assert dialler.got == tensor

        (link,) = [each for each in dialler.endpoint.links() if each.peer == target.peer]
        assert link.remote == target.contact.address
        assert middle.relay.table.circuits >= 2


async def test_a_link_through_a_relay_has_four_bulk_connections_at_most():
    async with relay() as middle:
        at = middle.endpoint.contact
        async with (
            behind_nat(at, bulk_connections=9) as target,
            host(listens=False, bulk_connections=9) as dialler,
        ):
            await dialler.send(target.contact, bytes(5_000_000))

            (link,) = dialler.endpoint.links()
            assert link.stats.bulk_connections <= 4
            assert middle.relay.table.circuits <= 5


async def test_who_comes_through_a_relay_is_never_taken_for_the_relay():
    async with meeting() as (dialler, target, middle):
        await dialler.ask(target.contact)

        (seen,) = [each for each in target.endpoint.links() if each.peer == dialler.peer]
        assert seen.contact.address.port == 0
        assert seen.remote.circuit == target.peer.raw
        assert target.endpoint.seen_at(dialler.peer) is None
        assert target.endpoint.contact.address.host == "127.0.0.1"
        assert seen.contact.address != middle.endpoint.contact.address


async def test_an_unknown_peer_of_an_address_through_a_relay_must_be_the_one_it_names():
    async with meeting() as (dialler, target, _):
        link = await dialler.endpoint.link(Contact(None, target.contact.address))
        assert link.peer == target.peer


async def test_a_relay_that_joins_with_somebody_else_is_noticed():
    async with relay() as middle, host(listens=True) as wrong, host(listens=False) as dialler:

        async def lie(reader, writer):
            await reader.readexactly(64)
            writer.write(circuit_answer(CircuitStatus.JOINED))
            there, back = await asyncio.open_connection("127.0.0.1", port)
            await asyncio.gather(pour(reader, back), pour(there, writer))

        port = wrong.endpoint.contact.address.port
        server = await asyncio.start_server(lie, "127.0.0.1", 0)
        async with server:
            at = Address(*server.sockets[0].getsockname())
            for peer in (middle.peer, None):
                with pytest.raises(BadHandshake):
                    await dialler.endpoint.link(Contact(peer, at.through(middle.peer)))


@asynccontextmanager
async def meddler(at: int):
    """Nodes that meet, and an address of one of them at which its bytes are altered: a relay in
    front of the relay flips one bit of what the target sends on each connection."""
    async with meeting() as (dialler, target, middle):
        to = middle.endpoint.contact.address
        async with carrying(to, flip=CIRCUIT_ANSWER_BYTES + at) as road:
            yield dialler, target, Contact(target.peer, road.at.through(target.peer))


@pytest.mark.parametrize("at", [20, 200])
async def test_a_relay_that_alters_a_byte_of_the_handshake_is_noticed(at):
    async with meddler(at) as (dialler, _, bad):
        with pytest.raises(BadHandshake):
            await dialler.ask(bad)


async def test_a_relay_that_alters_everything_is_named_as_what_ends_the_link():
    async with meddler(700) as (dialler, _, bad):
        with pytest.raises(BadRecord, match="use another network or relay"):
            await ask_often(dialler, bad)


async def ask_often(dialler: Host, to: Contact) -> None:
    for _ in range(200):
        await dialler.ask(to)


async def test_a_relay_that_alters_a_byte_now_and_then_costs_its_path_and_no_answer():
    async with meddler(5000) as (dialler, target, bad):
        for _ in range(200):
            assert await dialler.ask(bad) == f"hello {dialler.peer.short}"

        (link,) = [each for each in dialler.endpoint.links() if each.peer == target.peer]
        assert link.stats.paths_altered


async def pour(reader, writer, flip: int = -1):
    """Carry bytes, and flip a bit of the one at `flip`."""
    done = 0
    while data := await reader.read(65536):
        if done <= flip < done + len(data):
            changed = bytearray(data)
            changed[flip - done] ^= 1
            data = bytes(changed)
        done += len(data)
        writer.write(data)
    writer.close()


class Road:
    """A port that leads to another one, and can be cut."""

    def __init__(self, to: Address, flip: int) -> None:
        self._to = to
        self._flip = flip
        self._writers: list[asyncio.StreamWriter] = []
        self._server: asyncio.Server

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._carry, "127.0.0.1", 0)
        self.at = Address(*self._server.sockets[0].getsockname())

    async def _carry(self, reader, writer) -> None:
        there, back = await asyncio.open_connection(self._to.host, self._to.port)
        self._writers.extend((writer, back))
        with contextlib.suppress(ConnectionError):
            await asyncio.gather(pour(reader, back), pour(there, writer, self._flip))

    def cut(self) -> None:
        """Break its connections; others can be made."""
        for writer in self._writers:
            writer.transport.abort()

    def refuse(self) -> None:
        """Break its connections, and refuse others."""
        self._server.close()
        self.cut()

    async def close(self) -> None:
        self.refuse()
        await self._server.wait_closed()


@asynccontextmanager
async def carrying(to: Address, flip: int = -1):
    """A road to a port; a bit of the byte at `flip` is altered on each way back."""
    road = Road(to, flip)
    await road.open()
    try:
        yield road
    finally:
        await road.close()


async def test_who_has_no_reservation_cannot_be_reached():
    async with relay() as middle, host(listens=False) as dialler:
        stranger = middle.endpoint.contact.address.through(dialler.peer)
        with pytest.raises(DialFailed, match="it has no reservation of this peer"):
            await dialler.endpoint.link(Contact(None, stranger))
        assert middle.relay.table.circuits == 0


async def test_a_node_that_is_no_relay_says_so():
    async with host(listens=True) as plain, host(listens=False) as dialler:
        through = plain.endpoint.contact.address.through(dialler.peer)
        with pytest.raises(DialFailed, match="it is no relay"):
            await dialler.endpoint.link(Contact(None, through))
        with pytest.raises(NotServing):
            async with dialler.rpc.open_stream(plain.endpoint.contact, Reserve(), 5) as stream:
                await stream.receive()


async def test_requests_that_break_the_rules_get_no_answer_and_tickets_are_not_guessed():
    async with relay() as middle:
        at = middle.endpoint.contact.address
        assert await raw_answer(at, b"PSC1" + bytes(60)) == b""
        assert await raw_answer(at, b"PSC1\1" + b"\1" * 59) == b""
        guess = CircuitRequest(ticket=bytes(16)).raw
        assert await raw_answer(at, guess) == circuit_answer(CircuitStatus.NO_TICKET)


async def test_a_peer_that_does_not_come_costs_a_place_for_a_while_only():
    limits = RelayLimits(ticket_s=0.3, waiting_max=1)
    async with relay(limits) as middle, host(listens=False) as sleeper:
        at = middle.endpoint.contact
        async with sleeper.rpc.open_stream(at, Reserve(), None) as stream:
            await stream.receive()
            ask = CircuitRequest(peer=sleeper.peer.raw).raw
            first = asyncio.create_task(raw_answer(at.address, ask))
            await stream.receive()

            assert await raw_answer(at.address, ask) == circuit_answer(CircuitStatus.FULL)
            assert await first == circuit_answer(CircuitStatus.NOT_TAKEN)
            assert middle.relay.table.circuits == 0


async def test_a_peers_circuits_are_limited_and_free_again_when_they_end():
    async with meeting(RelayLimits(peer_circuits_max=2)) as (dialler, target, middle):
        await dialler.ask(target.contact)
        async with host(listens=False) as second, host(listens=False) as third:
            await second.ask(target.contact)
            with pytest.raises(DialFailed, match="too many circuits"):
                await third.ask(target.contact)

            for link in second.endpoint.links():
                link.close()
            await ended(middle, 1)
            await third.ask(target.contact)


async def ended(middle, circuits: int) -> None:
    """Return when a relay has so few circuits."""
    async with asyncio.timeout(PATIENCE_S):
        while middle.relay.table.circuits > circuits:
            await middle.relay.changed.wait()


async def test_a_relay_without_room_says_when_to_come_again():
    async with relay(RelayLimits(reservations_max=1)) as middle:
        at = middle.endpoint.contact
        async with behind_nat(at), host(listens=False) as late:
            with pytest.raises(Busy) as refused:
                async with late.rpc.open_stream(at, Reserve(), PATIENCE_S) as stream:
                    await stream.receive()
            assert refused.value.retry_after_s == 60


async def test_a_rate_holds_and_small_calls_pass_beside_a_transfer():
    rates = RelayRates(total_bytes_per_s=4e6, pair_bytes_per_s=4e6)
    async with meeting(rates=rates) as (dialler, target, _):
        await dialler.ask(target.contact)
        loop = asyncio.get_running_loop()
        begun_s = loop.time()
        sending = asyncio.create_task(dialler.send(target.contact, bytes(2_000_000)))
        calls = 0
        while not sending.done():
            await dialler.ask(target.contact)
            calls += 1
        await sending

        assert loop.time() - begun_s >= (2e6 - 4e6 * 0.05 - 512 * 1024) / 4e6
        assert calls >= 2


async def test_no_reservation_over_another_relays_circuit():
    async with (
        relay() as outer,
        behind_nat(outer.endpoint.contact) as hidden,
        Relay(hidden.endpoint, hidden.rpc, os.urandom),
        host(listens=False) as node,
    ):
        with pytest.raises(NotServing, match="over a link of your own"):
            async with node.rpc.open_stream(hidden.contact, Reserve(), 5) as stream:
                await stream.receive()


async def test_nothing_is_left_when_everybody_has_gone():
    async with relay() as middle:
        at = middle.endpoint.contact
        async with behind_nat(at) as target, host(listens=False) as dialler:
            await dialler.send(target.contact, bytes(100_000))
            assert middle.relay.table.reservations == 1
        await ended(middle, 0)
        async with asyncio.timeout(PATIENCE_S):
            while middle.relay.table.reservations:
                await middle.relay.changed.wait()


async def test_a_node_that_stops_to_be_a_relay_says_so():
    async with relay() as middle, host(listens=False) as dialler:
        await middle.relay.close()
        through = middle.endpoint.contact.address.through(dialler.peer)
        with pytest.raises(DialFailed, match="it is no relay"):
            await dialler.endpoint.link(Contact(None, through))


async def test_a_dialler_that_says_nothing_is_hung_up_on_by_the_target_and_costs_no_circuit():
    async with AsyncExitStack() as stack:
        middle = await stack.enter_async_context(relay())
        nat = behind_nat(middle.endpoint.contact, handshake_s=0.2)
        target = await stack.enter_async_context(nat)
        silent = await target.net.dial(target.contact.address)

        assert middle.relay.table.circuits == 1
        with pytest.raises(LinkLost):
            await silent.receive(1)
        silent.close()
        await ended(middle, 0)


async def test_a_circuit_that_breaks_costs_neither_the_link_nor_a_byte_of_a_tensor():
    tensor = os.urandom(8_000_000)
    async with (
        meeting() as (dialler, target, middle),
        carrying(middle.endpoint.contact.address) as road,
    ):
        to = Contact(target.peer, road.at.through(target.peer))
        await dialler.ask(to)
        (link,) = [each for each in dialler.endpoint.links() if each.peer == target.peer]
        sending = asyncio.create_task(dialler.send(to, tensor))
        await dialler.ask(to)
        road.cut()

        await sending

        assert target.got == tensor
        assert link in dialler.endpoint.links()


@asynccontextmanager
async def direct_road(dialler: Host, target: Host, at: Contact):
    """A link that is dialled at an address which refuses soon; yields what makes it refuse.

    The target's card names the relay `at`, and no other place.
    """
    here = await target.endpoint.listen(LOOPBACK)
    target.endpoint.announce([], relays=[at])
    async with carrying(here) as road:
        to = Contact(target.peer, road.at)
        await dialler.ask(to)
        yield to, road.refuse


async def test_a_link_whose_address_refuses_goes_on_through_the_relay_on_the_peers_card():
    """A firewall that breaks connections refuses for a peer that lives."""
    async with (
        relay() as middle,
        host(listens=False) as dialler,
        behind_nat(middle.endpoint.contact) as target,
        direct_road(dialler, target, middle.endpoint.contact) as (to, refuse),
    ):
        (link,) = [each for each in dialler.endpoint.links() if each.peer == target.peer]

        refuse()
        async with asyncio.timeout(PATIENCE_S):
            while link.path is None or not link.path.remote.circuit:
                link.path_change.clear()
                await link.path_change.wait()

        assert await dialler.ask(to) == f"hello {dialler.peer.short}"
        assert link in dialler.endpoint.links()
        assert link.path.remote == target.contact.address


async def test_a_link_ends_at_once_when_its_address_refuses_and_the_relay_knows_no_such_peer():
    """A peer that was killed has left its relay, too."""
    async with (
        relay() as middle,
        host(listens=False) as dialler,
        host(listens=False) as target,
        direct_road(dialler, target, middle.endpoint.contact) as (to, refuse),
    ):
        refuse()

        with pytest.raises(LinkLost, match="nobody is at the other end"):  # noqa: PT012
            while True:  # what was on its way may still be answered
                await dialler.rpc.call(to, Ask("hello"), PATIENCE_S)
