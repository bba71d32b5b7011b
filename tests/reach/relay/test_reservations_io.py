"""A node keeps its reservations over real links, whatever its relays do."""

import asyncio
import os
from contextlib import AsyncExitStack, asynccontextmanager

from p2pswarm.base.ids import Contact
from p2pswarm.net.link.path import DialledCandidate
from p2pswarm.reach.relay.relay_table import RelayLimits
from p2pswarm.reach.relay.reservations import Incoming, Reserve, Reserved
from tests.reach.relay.harness import PATIENCE_S, Ask, Host, behind_nat, host, relay


@asynccontextmanager
async def watched(node: Host):
    """A queue of the node's addresses, at every change."""
    changes: asyncio.Queue = asyncio.Queue()
    assert node.keeper is not None
    node.keeper.on_change = lambda: changes.put_nowait(node.keeper.addresses)
    async with asyncio.timeout(PATIENCE_S):
        yield changes


async def until(changes: asyncio.Queue, relays: list[Host], node: Host) -> None:
    """Return when the node is reachable through exactly these."""
    wanted = {each.endpoint.contact.address.through(node.peer) for each in relays}
    while set(node.keeper.addresses) != wanted:
        await changes.get()


async def test_two_relays_are_kept_and_one_that_dies_is_replaced():
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        second, third = await enter(relay()), await enter(relay())
        dialler = await enter(host(listens=False))
        mortal = await stack.enter_async_context(AsyncExitStack())
        first = await mortal.enter_async_context(relay())
        contacts = [each.endpoint.contact for each in (first, second, third)]
        node = await enter(behind_nat(*contacts))
        changes = await enter(watched(node))
        await until(changes, [first, second], node)
        assert {each.peer for each in node.keeper.relays} == {first.peer, second.peer}
        await dialler.ask(node.contact)
        (link,) = dialler.endpoint.links()

        await mortal.aclose()
        await until(changes, [second, third], node)

        await dialler.endpoint.move(link, DialledCandidate(dialler.net, node.contact.address))
        assert await dialler.ask(node.contact) == f"hello {dialler.peer.short}"
        assert dialler.endpoint.links() == (link,)  # it has outlived its relay


async def test_a_relay_named_twice_is_used_once():
    async with relay() as one, relay() as two:
        address = one.endpoint.contact.address
        twice = Contact(None, address), one.endpoint.contact
        async with behind_nat(*twice) as node, watched(node) as changes:
            while len(node.keeper.relays) < 1 or len(node.keeper.addresses) > 1:
                await changes.get()
            node.keeper.offer([two.endpoint.contact])
            await until(changes, [one, two], node)
            assert one.relay.table.reservations == 1


async def test_a_relay_that_ends_a_reservation_is_not_counted_on():
    limits = RelayLimits(lasts_s=0.05)  # nobody renews so fast: the relay ends the reservation
    async with relay(limits) as forgetful, relay() as good:
        both = forgetful.endpoint.contact, good.endpoint.contact
        async with behind_nat(*both) as node, watched(node) as changes:
            await until(changes, [good], node)
            assert forgetful.relay.table.reservations == 0


async def test_a_relay_that_speaks_nonsense_is_left():
    async with host(listens=True) as liar, relay() as good:

        async def lie(stream, _opening):
            await stream.send(Reserved(600_000, 1, 0))
            await stream.send(Reserve())
            await stream.receive()

        liar.rpc.serve_stream(Reserve, lie)
        both = liar.endpoint.contact, good.endpoint.contact
        async with behind_nat(*both) as node, watched(node) as changes:
            await until(changes, [good], node)


async def test_tickets_without_end_cost_a_limited_number_of_dials():
    """The relay announces circuits that are not there, faster than they can be dialled."""
    async with host(listens=True) as liar:
        arrived = 0

        def admit(connection, _request):
            nonlocal arrived
            arrived += 1
            kept.append(connection)  # it never answers

        async def flood(stream, _opening):
            await stream.send(Reserved(600_000, 1, 0))
            for _ in range(1000):
                await stream.send(Incoming(os.urandom(16)))
            done.set()
            await stream.receive()

        kept: list = []
        done = asyncio.Event()
        liar.endpoint.acceptor.admit_circuit = admit
        liar.rpc.serve_stream(Reserve, flood)
        async with behind_nat(liar.endpoint.contact) as node:
            async with asyncio.timeout(PATIENCE_S):
                await done.wait()
                await node.rpc.call(liar.endpoint.contact, Ask("still there?"), PATIENCE_S)

            assert arrived <= 64
        for connection in kept:
            connection.close()
