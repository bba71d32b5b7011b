"""A dial by several addresses, in virtual time: what each dead, wrong or slow one costs."""

import asyncio
import random
from contextlib import AsyncExitStack

import pytest
from net.link.harness import NotedNet
from sim.virtual import virtual_time
from worlds.net import SimInternet

from p2pswarm.base.errors import BadHandshake, DialFailed, NobodyThere
from p2pswarm.base.ids import Address, Contact
from p2pswarm.net.cards.card import Card
from p2pswarm.net.config import TransportConfig
from p2pswarm.net.crypto.identity import Identity
from p2pswarm.net.endpoint.endpoint import Endpoint
from p2pswarm.net.endpoint.link_io import Link
from p2pswarm.net.os.attempt_stagger import ATTEMPT_DELAY_S, ConnectTimes

PUBLIC = "1.1.1.1"
DEAD_V6 = Address("2600::1", 4000)
DEAD_V4 = Address("99.9.9.9", 4000)
NOWHERE = 0


class SlowNet(NotedNet):
    """A network in which the dials of some addresses take longer."""

    def __init__(self, net) -> None:
        super().__init__(net)
        self.slower_s: dict[Address, float] = {}

    async def dial(self, to, from_port=0):
        connection = await super().dial(to, from_port)
        await asyncio.sleep(self.slower_s.get(to, 0.0))
        return connection


class Internet:
    """Endpoints on hosts with public addresses."""

    def __init__(self, stack: AsyncExitStack) -> None:
        self._stack = stack
        self._rng = random.Random(1)
        self._internet = SimInternet(1)
        self._hosts = 0

    async def endpoint(self, identity: Identity | None = None) -> tuple[Endpoint, SlowNet]:
        identity = identity or Identity.generate(self._rng.randbytes(32))
        self._hosts += 1
        self._internet.world.place(identity.peer_id, (0.5, 0.5), Address(f"8.8.{self._hosts}.1", 1))
        net = SlowNet(self._internet.net(identity.peer_id))
        endpoint = Endpoint(identity, net, TransportConfig(), self._rng.randbytes)
        await self._stack.enter_async_context(endpoint)
        await endpoint.listen(Address("0.0.0.0", 4000))
        return endpoint, net


in_virtual_time = virtual_time(Internet)


def now_s() -> float:
    return asyncio.get_running_loop().time()


def unknown(peer: Endpoint) -> Contact:
    """A peer that nobody has told us an address of."""
    return Contact(peer.peer_id, Address("127.0.0.1", NOWHERE))


def knows(book_of: Endpoint, identity: Identity, *addresses: Address, seq: int = 1) -> None:
    assert book_of.cards.learn(Card.make(identity, seq, addresses), PUBLIC)


BOB, EVE = Identity.generate(b"bob"), Identity.generate(b"eve")


@in_virtual_time
async def dial_of_a_card(internet):
    alice, _ = await internet.endpoint()
    bob, _ = await internet.endpoint(BOB)
    knows(alice, BOB, bob.contact.address)

    link = await alice.link(unknown(bob))

    assert link.peer == BOB.peer_id
    assert link.contact == bob.contact


def test_a_peer_is_dialled_where_its_card_says():
    dial_of_a_card()


@in_virtual_time
async def test_an_announced_and_dead_ipv6_address_costs_a_quarter_of_a_second(internet):
    alice, net = await internet.endpoint()
    bob, _ = await internet.endpoint(BOB)
    begun_s = now_s()
    await alice.link(bob.contact)
    usual_s = now_s() - begun_s
    for link in alice.links():
        link.close()
    carol, net = await internet.endpoint()
    await asyncio.sleep(1)
    knows(carol, BOB, bob.contact.address, DEAD_V6)

    begun_s = now_s()
    await carol.link(unknown(bob))

    assert net.dialled == [DEAD_V6, bob.contact.address]
    assert now_s() - begun_s < ATTEMPT_DELAY_S + 2 * usual_s


@in_virtual_time
async def test_the_callers_address_is_tried_first_and_is_not_tried_twice(internet):
    alice, net = await internet.endpoint()
    bob, _ = await internet.endpoint(BOB)
    knows(alice, BOB, DEAD_V6, bob.contact.address)

    await alice.link(bob.contact)

    assert net.dialled == [bob.contact.address]


@in_virtual_time
async def test_somebody_else_at_an_address_costs_that_address_only(internet):
    alice, net = await internet.endpoint()
    bob, _ = await internet.endpoint(BOB)
    eve, _ = await internet.endpoint(EVE)
    knows(alice, BOB, bob.contact.address)

    link = await alice.link(Contact(BOB.peer_id, eve.contact.address))

    assert link.peer == BOB.peer_id
    assert net.dialled == [eve.contact.address, bob.contact.address]
    assert not eve.links()


@in_virtual_time
async def test_two_good_ways_make_one_link_for_both(internet):
    """The slower way is given up before the peer learns who dialled."""
    alice, net = await internet.endpoint()
    bob, _ = await internet.endpoint(BOB)
    second = await bob.listen(Address("0.0.0.0", 4001))
    knows(alice, BOB, bob.contact.address, second)
    ups: list[Link] = []
    bob.on_up = ups.append
    for slower_s in (0.0, 0.25, 0.26, 0.27, 0.3, 0.35, 0.4, 0.5):
        net.dialled.clear()
        net.slower_s = {bob.contact.address: slower_s}
        alice._dialler._times = ConnectTimes()  # else the second way is not tried beside it

        link = await alice.link(unknown(bob))
        await asyncio.sleep(3)

        assert len(alice.links()) == len(bob.links()) == len(ups) == 1
        assert link.path is not None
        link.close()
        await asyncio.sleep(1)
        ups.clear()
    assert len(net.dialled) == 2


@in_virtual_time
async def test_if_the_first_to_prove_itself_breaks_the_next_one_goes_on(internet):
    alice, net = await internet.endpoint()
    bob, _ = await internet.endpoint(BOB)
    second = await bob.listen(Address("0.0.0.0", 4001))
    knows(alice, BOB, second)
    broken = []

    async def dial(to, from_port=0):
        connection = await SlowNet.dial(net, to, from_port)
        if to == bob.contact.address:
            send, sent = connection.send, []

            async def breaks(data):
                if sent:
                    broken.append(to)
                    connection.close()
                    raise DialFailed("cut")
                sent.append(data)
                await send(data)

            connection.send = breaks
        return connection

    net.dial = dial
    link = await alice.link(bob.contact)

    assert broken == [bob.contact.address]
    assert link.contact.address == second


@in_virtual_time
async def test_all_ways_lead_nowhere_and_each_says_why(internet):
    alice, _ = await internet.endpoint()
    eve, _ = await internet.endpoint(EVE)
    closed = Address(eve.contact.address.host, 4009)
    knows(alice, BOB, DEAD_V6, closed)

    with pytest.raises(DialFailed) as caught:
        await alice.link(Contact(BOB.peer_id, eve.contact.address))

    said = str(caught.value)
    assert said.startswith(f"{BOB.peer_id.short}: none of its 3 addresses leads to it: ")
    assert f"{DEAD_V6}: no answer within 5 s" in said
    assert f"{closed}: Connection refused" in said
    assert f"{eve.contact.address}: expected peer {BOB.peer_id}" in said
    assert "\n" not in said


@in_virtual_time
async def test_the_kind_of_failure_is_what_all_ways_agree_on(internet):
    alice, _ = await internet.endpoint()
    eve, _ = await internet.endpoint(EVE)
    host = eve.contact.address.host
    second = await eve.listen(Address("0.0.0.0", 4001))
    knows(alice, BOB, Address(host, 4008))
    with pytest.raises(NobodyThere, match="none of its 2"):
        await alice.link(Contact(BOB.peer_id, Address(host, 4009)))
    carol, _ = await internet.endpoint()
    knows(carol, BOB, second)

    with pytest.raises(BadHandshake, match="none of its 2"):
        await carol.link(Contact(BOB.peer_id, eve.contact.address))


@in_virtual_time
async def test_a_peer_without_an_address_is_not_dialled(internet):
    alice, net = await internet.endpoint()

    with pytest.raises(DialFailed, match="it has to announce one"):
        await alice.link(Contact(BOB.peer_id, Address("127.0.0.1", NOWHERE)))

    assert not net.dialled


@in_virtual_time
async def test_a_card_that_names_us_loopback_or_a_lan_makes_us_dial_nobody(internet):
    alice, net = await internet.endpoint()
    knows(
        alice,
        BOB,
        alice.contact.address,
        Address("127.0.0.1", 22),
        Address("::1", 22),
        Address("192.168.1.1", 80),
        Address("localhost", 22),
    )

    with pytest.raises(DialFailed, match="no address of it is known"):
        await alice.link(Contact(BOB.peer_id, Address("127.0.0.1", NOWHERE)))

    assert not net.dialled


@in_virtual_time
async def test_a_host_that_a_liar_names_is_dialled_once(internet):
    """The liar is where it is said to be, and stalls, so that its dialler tries its card."""
    alice, net = await internet.endpoint()
    bob, _ = await internet.endpoint()
    eve, _ = await internet.endpoint(EVE)
    knows(alice, EVE, DEAD_V4, DEAD_V6)
    net.slower_s = {eve.contact.address: 2.0}
    for number in range(20):
        link = await alice.link(eve.contact)
        link.close()
        other = await alice.link(bob.contact)
        other.close()
        knows(alice, EVE, DEAD_V4, Address("99.9.9.9", 22), seq=2 + number)
        await asyncio.sleep(100)

    assert net.dialled.count(eve.contact.address) == 20
    assert len(net.dialled) == 42


@in_virtual_time
async def test_own_card_says_where_we_listen_until_somebody_knows_better(internet):
    alice, _ = await internet.endpoint()
    first = alice.card
    assert first.addresses == (alice.contact.address,)

    alice.announce([DEAD_V4, DEAD_V6])

    assert alice.card.addresses == (DEAD_V4, DEAD_V6)
    assert alice.card.seq > first.seq
    with pytest.raises(ValueError, match="twice"):
        alice.announce([DEAD_V4, DEAD_V4])
    assert alice.card.addresses == (DEAD_V4, DEAD_V6)


class FarNet(NotedNet):
    """A network in which everything takes so much longer, there and back."""

    def __init__(self, net, rtt_s: float) -> None:
        super().__init__(net)
        self.rtt_s = rtt_s

    async def dial(self, to, from_port=0):
        connection = await super().dial(to, from_port)
        await asyncio.sleep(self.rtt_s)
        receive = connection.receive

        async def later(n: int) -> bytes:
            data = await receive(n)
            await asyncio.sleep(self.rtt_s)
            return data

        connection.receive = later
        return connection


@pytest.mark.parametrize("rtt_s", [0.15, 0.24])
def test_a_far_peer_is_not_dialled_at_a_second_address_while_the_first_one_answers(rtt_s):
    """The handshake ends more than a quarter of a second after the dial has begun."""

    @in_virtual_time
    async def body(internet):
        alice, net = await internet.endpoint()
        bob, _ = await internet.endpoint(BOB)
        second = await bob.listen(Address("0.0.0.0", 4001))
        knows(alice, BOB, second)
        far = FarNet(net, rtt_s)
        alice._dialler._paths._net = far
        begun_s = now_s()

        link = await alice.link(bob.contact)

        assert now_s() - begun_s > ATTEMPT_DELAY_S
        assert far.dialled == [bob.contact.address]
        assert link.path.remote == bob.contact.address

    body()


@in_virtual_time
async def test_a_peer_farther_than_that_is_dialled_once_when_it_is_known_to_be_far(internet):
    alice, net = await internet.endpoint()
    bob, _ = await internet.endpoint(BOB)
    second = await bob.listen(Address("0.0.0.0", 4001))
    knows(alice, BOB, second)
    far = FarNet(net, 0.4)
    alice._dialler._paths._net = far

    for again in range(2):
        link = await alice.link(bob.contact)
        assert len(far.dialled) == 2 + again
        link.close()
        await asyncio.sleep(10)
