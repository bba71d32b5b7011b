"""Claimed addresses over real links in virtual time: the handshake tells where a peer is."""

import asyncio
import random
from contextlib import AsyncExitStack

from discovery.dht.harness import KEY
from worlds.net import SimInternet, SimListener

from p2pswarm.base.ids import Address, Contact, PeerId
from p2pswarm.discovery.dht.config import DhtConfig
from p2pswarm.discovery.dht.node import Dht
from p2pswarm.net.config import TransportConfig
from p2pswarm.net.crypto.identity import Identity
from p2pswarm.net.endpoint.endpoint import Endpoint
from p2pswarm.net.rpc.link_rpc import LinkRpc
from p2pswarm.sim.loop import run

LISTEN = Address("127.0.0.1", 0)
LIARS = 10


class Nodes:
    """Nodes with endpoints of their own, on one simulated internet."""

    def __init__(self, stack: AsyncExitStack) -> None:
        self._stack = stack
        self._rng = random.Random(1)
        self.internet = SimInternet(1)

    async def add(self, *, announced: Address | None = None, second_port: bool = False) -> Dht:
        """A node; with `second_port` it announces another port of its host, where it listens."""
        identity = Identity.generate(self._rng.randbytes(32))
        net = self.internet.net(identity.peer_id)
        endpoint = Endpoint(identity, net, TransportConfig(), self._rng.randbytes)
        await self._stack.enter_async_context(endpoint)
        await endpoint.listen(LISTEN)
        endpoint.announced = await endpoint.listen(LISTEN) if second_port else announced
        rpc = await self._stack.enter_async_context(LinkRpc(endpoint))
        clock = asyncio.get_running_loop().time
        dht = Dht(rpc, identity, DhtConfig(), self._rng, clock)
        return await self._stack.enter_async_context(dht)

    async def third_party(self) -> SimListener:
        """A host that is no peer."""
        return await self.internet.net(PeerId(self._rng.randbytes(32))).listen(LISTEN)


def seed(node: Dht) -> list[Contact]:
    return [Contact(None, node.contact.address)]


def test_a_peer_that_announces_another_address_of_its_own_is_found_there():
    async def main():
        async with AsyncExitStack() as stack:
            nodes = Nodes(stack)
            first, other = await nodes.add(), await nodes.add(second_port=True)
            await other.bootstrap(seed(first))
            await asyncio.sleep(1)

            assert [each.contact for each in first.table] == [other.contact]

    run(main(), 1)


def test_a_peer_where_it_says_is_dialled_back_once():
    async def main():
        async with AsyncExitStack() as stack:
            nodes = Nodes(stack)
            first, other = await nodes.add(), await nodes.add()
            await other.bootstrap(seed(first))
            await asyncio.sleep(1)
            for _ in range(3):
                await other.closest(KEY)
                await asyncio.sleep(10)

            assert [each.contact for each in first.table] == [other.contact]
            assert first.calls == 1

    run(main(), 1)


def test_a_peer_that_cannot_be_dialled_is_a_client():
    """Behind a gateway: its links come from the host that it names, and nobody listens there."""

    async def main():
        async with AsyncExitStack() as stack:
            nodes = Nodes(stack)
            first, third = await nodes.add(), await nodes.add()
            await third.bootstrap(seed(first))
            hidden = await nodes.add(announced=Address("127.0.0.1", 9))
            await hidden.bootstrap(seed(first))
            await asyncio.sleep(1)
            assert await hidden.put(KEY, b"", b"value", 60.0) > 0
            await asyncio.sleep(1)

            assert [each.contact for each in first.table] == [third.contact]
            assert [each.contact for each in third.table] == [first.contact]
            assert {each.contact for each in hidden.table} == {first.contact, third.contact}
            assert (await third.get(KEY))[b""].value == b"value"

    run(main(), 1)


def test_a_third_party_that_ten_peers_claim_to_be_is_dialled_once():
    async def main():
        async with AsyncExitStack() as stack:
            nodes = Nodes(stack)
            victim, first = await nodes.third_party(), await nodes.add()
            dials = 0

            async def hang_up() -> None:
                nonlocal dials
                while True:
                    (await victim.accept()).close()
                    dials += 1

            hanging_up = asyncio.create_task(hang_up())
            for _ in range(LIARS):
                liar = await nodes.add(announced=victim.address)
                await liar.bootstrap(seed(first))
                await liar.closest(KEY)
                await asyncio.sleep(1)
            hanging_up.cancel()

            assert dials == 1
            assert len(first.table) == 0

    run(main(), 1)
