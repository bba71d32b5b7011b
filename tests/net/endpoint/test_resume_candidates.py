"""A link that lost its path goes on by any address of its peer's card, in virtual time."""

import asyncio
import random
from contextlib import AsyncExitStack

import pytest
from net.link.harness import NotedNet
from sim.virtual import virtual_time
from worlds.net import SimInternet

from p2pswarm.base.ids import Address, Contact
from p2pswarm.net.config import TransportConfig
from p2pswarm.net.crypto.identity import Identity
from p2pswarm.net.endpoint.endpoint import Endpoint
from p2pswarm.net.link.events import LinkEnded

BOB = Identity.generate(b"bob")
DEAD_V6 = Address("2600::1", 4000)


class CutNet(NotedNet):
    """A network in which addresses can be dead."""

    def __init__(self, net) -> None:
        super().__init__(net)
        self.dead: set[Address] = set()
        self.awake = asyncio.Event()
        self.awake.set()

    async def dial(self, to, from_port=0):
        await self.awake.wait()
        if to in self.dead:
            self.dialled.append(to)
            await asyncio.sleep(127)
        return await super().dial(to, from_port)


class Ends:
    """Two endpoints on hosts with public addresses, and the link that one dialled to the other."""

    def __init__(self, stack: AsyncExitStack) -> None:
        self._stack = stack
        self._rng = random.Random(1)
        self.internet = SimInternet(1)

    async def add(self, identity: Identity) -> tuple[Endpoint, CutNet]:
        at = Address(f"8.8.{len(self.internet.world.hosts)}.1", 1)
        self.internet.world.place(identity.peer_id, (0.5, 0.5), at)
        net = CutNet(self.internet.net(identity.peer_id))
        endpoint = Endpoint(identity, net, TransportConfig(), self._rng.randbytes)
        await self._stack.enter_async_context(endpoint)
        await endpoint.listen(Address("0.0.0.0", 4000))
        return endpoint, net

    def cut(self, identity: Identity) -> None:
        """Let a router forget the connections of a host."""
        for socket in list(self.internet.sockets):
            if socket.host.peer == identity.peer_id:
                socket.close()


in_virtual_time = virtual_time(Ends)


@in_virtual_time
async def test_a_link_goes_on_at_another_address_of_the_card(ends):
    alice, net = await ends.add(Identity.generate(b"alice"))
    bob, _ = await ends.add(BOB)
    second = await bob.listen(Address("0.0.0.0", 4001))
    bob.announce([bob.listening[0], second])
    link = await alice.link(Contact(None, bob.listening[0]))
    await asyncio.sleep(1)
    net.dead.add(bob.listening[0])

    ends.cut(BOB)
    await asyncio.sleep(2)

    assert not link.over
    assert link.path is not None
    assert link.path.remote == second
    assert alice.links() == (link,)


@in_virtual_time
async def test_a_newer_card_tells_a_link_that_lost_its_path_where_to_go_on(ends):
    alice, net = await ends.add(Identity.generate(b"alice"))
    bob, _ = await ends.add(BOB)
    link = await alice.link(Contact(None, bob.listening[0]))
    await asyncio.sleep(1)
    net.dead.add(bob.listening[0])
    moved = await bob.listen(Address("0.0.0.0", 4001))
    bob.announce([moved])
    alice.cards.learn(bob.card, "1.1.1.1")  # somebody else passed it on

    ends.cut(BOB)
    await asyncio.sleep(3)

    assert not link.over
    assert link.path is not None
    assert link.path.remote == moved


@pytest.mark.parametrize("claimed", [(), (DEAD_V6,)], ids=["one address", "and a dead one"])
def test_a_process_that_ended_is_missed_at_once_whatever_its_card_claims(claimed):
    async def body(ends):
        alice, net = await ends.add(Identity.generate(b"alice"))
        bob, _ = await ends.add(BOB)
        bob.announce([*claimed, bob.listening[0]])
        ended: list[float] = []

        def note(_link, event):
            if isinstance(event, LinkEnded):
                ended.append(asyncio.get_running_loop().time())

        alice.on_event = note
        await alice.link(Contact(None, bob.listening[0]))
        await asyncio.sleep(1)

        begun_s = asyncio.get_running_loop().time()
        ends.internet.kill(BOB.peer_id, silent=False)
        await asyncio.sleep(20)

        assert len(ended) == 1
        assert ended[0] - begun_s < 0.5
        assert net.dialled.count(DEAD_V6) <= 1

    in_virtual_time(body)()


class Silenced:
    """A link in use from Alice to Bob, who has two addresses; each can begin to drop everything."""

    def __init__(self, ends, alice, net, link, second):
        self.ends, self.alice, self.net, self.link, self.second = ends, alice, net, link, second
        self.now_s = asyncio.get_running_loop().time

    @classmethod
    async def begin(cls, ends):
        alice, net = await ends.add(Identity.generate(b"alice"))
        bob, _ = await ends.add(BOB)
        second = await bob.listen(Address("0.0.0.0", 4001))
        bob.announce([bob.listening[0], second])
        bob.on_event = lambda _link, _event: None
        link = await alice.link(Contact(None, bob.listening[0]))
        link.open(b"a call that takes long", ended=True)
        await asyncio.sleep(3)
        return cls(ends, alice, net, link, second)

    def drop(self, *addresses: Address, connections: bool = True) -> None:
        """Lose, without a word, what goes to these addresses, and on the connections there are."""
        self.net.dead.update(addresses)
        if connections:
            for socket in list(self.ends.internet.sockets):
                socket.die()

    async def moved_after_s(self) -> float:
        """How long until another path carries the link."""
        begun_s, old = self.now_s(), self.link.path
        async with asyncio.timeout(60):
            while self.link.path is old:
                self.link.path_change.clear()
                await self.link.path_change.wait()
        return self.now_s() - begun_s


@pytest.mark.parametrize("old_too", [True, False], ids=["drops all", "forgot one connection"])
def test_a_link_in_use_whose_path_drops_everything_soon_goes_on_by_another(old_too):
    async def body(ends):
        case = await Silenced.begin(ends)
        first = case.link.path.remote
        case.drop(*([first] if old_too else []))

        after_s = await case.moved_after_s()

        assert after_s < 3.0
        assert case.link.path.remote == case.second, "what dropped is tried last"
        assert not case.link.over

    in_virtual_time(body)()


@in_virtual_time
async def test_a_peer_that_stands_still_moves_no_link(ends):
    """It answers on no way while it is stopped, and on all of them afterwards."""
    case = await Silenced.begin(ends)
    old, dialled = case.link.path, len(case.net.dialled)
    world = ends.internet.world
    bob = world.hosts[BOB.peer_id.raw]
    alice = next(host for host in world.hosts.values() if host is not bob)

    for pause_s in (1.0, 4.0):
        world.cut([(alice, bob), (bob, alice)])
        case.net.awake.clear()
        await asyncio.sleep(pause_s)
        world.mend([(alice, bob), (bob, alice)])
        await asyncio.sleep(0.9)  # what was held up comes within a second
        case.net.awake.set()
        await asyncio.sleep(5)
        tried = len(case.net.dialled) - dialled
        assert bool(tried) is (pause_s > 1.0), "a second's pause is not even doubted"

    assert case.link.path is old
    assert not case.link.over


@in_virtual_time
async def test_a_link_at_rest_sends_no_more_than_it_did(ends):
    alice, _ = await ends.add(Identity.generate(b"alice"))
    bob, _ = await ends.add(BOB)
    link = await alice.link(Contact(None, bob.listening[0]))
    await asyncio.sleep(1)
    before = link.stats.control_sent_bytes
    await asyncio.sleep(60)

    assert link.stats.control_sent_bytes - before < 60 / 5 * 2 * 60
