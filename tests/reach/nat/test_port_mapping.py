"""Tests of `reach/nat/port_mapping.py`."""

import itertools
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pswarm.base.ids import Address
from p2pswarm.reach.nat import upnp
from p2pswarm.reach.nat.mapping_search import (
    BUDGET_S,
    CALLS_MAX,
    DATAGRAMS_S,
    REPEAT_S,
    CallRouter,
    Lease,
    MappingProtocol,
    SendDatagram,
)
from p2pswarm.reach.nat.port_mapping import (
    QUESTION_S,
    RENEW_PAUSE_S,
    SEARCH_AGAIN_S,
    PortMapping,
    RouterEpoch,
    epoch_in,
)


def pcp(epoch_s: int, operation: int = 0x80, result: int = 0) -> bytes:
    return struct.pack("!BBBBII12x", 2, operation, 0, result, 0, epoch_s)


def pmp(epoch_s: int) -> bytes:
    return struct.pack("!BBHI4B", 0, 128, 0, epoch_s, 203, 0, 114, 7)


@pytest.mark.parametrize("packet", [pcp(77), pcp(77, 0x81), pcp(77, 0x80, 4), pmp(77)])
def test_every_answer_tells_the_time(packet):
    assert epoch_in(packet) == 77


@pytest.mark.parametrize(
    "packet",
    [b"", b"\2", pcp(1)[:23], pcp(1, 0x01), pmp(1)[:11], b"M-SEARCH", pcp(1) + bytes(1100)],
)
def test_what_is_no_answer_tells_no_time(packet):
    assert epoch_in(packet) is None


@given(st.lists(st.tuples(st.integers(0, 100_000), st.floats(0, 0.9)), max_size=20))
def test_a_clock_that_goes_on_was_not_started_again(steps):
    epoch, now_s = RouterEpoch(), 0.0
    for pause_s, late_s in steps:
        now_s += pause_s
        assert not epoch.on_packet(pcp(1000 + int(now_s)), now_s + late_s)


@given(st.integers(10, 10**6), st.integers(0, 10**6), st.booleans())
def test_a_clock_that_begins_anew_is_noticed(up_s, pause_s, announced):
    epoch = RouterEpoch()
    epoch.on_packet(pmp(up_s), 0.0)

    began_s = 0 if announced else pause_s // 2

    assert epoch.on_packet(pmp(began_s), float(pause_s))


def test_a_clock_that_is_a_sixteenth_slower_or_faster_is_right():
    epoch = RouterEpoch()
    epoch.on_packet(pcp(0), 0.0)

    assert not epoch.on_packet(pcp(15_000), 16_000.0)
    assert not epoch.on_packet(pcp(31_000), 31_000.0)
    assert epoch.on_packet(pcp(99_000), 33_000.0)


GATEWAY, OWN, PORT = "192.168.1.1", "192.168.1.5", 4000
ROUTER, SSDP = Address(GATEWAY, 5351), Address(GATEWAY, 1900)
NONCE = bytes(12)
OUTSIDE = "203.0.114.7"
LOCATION = b"HTTP/1.1 200 OK\r\nLOCATION: http://192.168.1.1:5000/root.xml\r\n\r\n"
DESCRIPTION = (
    b"<root><service><serviceType>urn:schemas-upnp-org:service:WANIPConnection:1</serviceType>"
    b"<controlURL>/ctl</controlURL></service></root>"
)
HOST = b"<r><NewExternalIPAddress>203.0.114.7</NewExternalIPAddress></r>"
LIFE_S = 3600


def by_pcp(lifetime_s: int = LIFE_S, port: int = 4321, result: int = 0, epoch_s: int = 9) -> bytes:
    host = bytes(10) + b"\xff\xff" + bytes((203, 0, 114, 7))
    header = struct.pack("!BBBBII12x", 2, 0x81, 0, result, lifetime_s, epoch_s)
    return header + struct.pack("!12sB3xHH16s", NONCE, 6, PORT, port, host)


NO_PCP = bytes((0, 0x81, 0, 1, 0, 0, 0, 9))
PMP_HOST = struct.pack("!BBHI4B", 0, 128, 0, 5, 203, 0, 114, 7)
PMP_MAPPED = struct.pack("!BBHIHHI", 0, 130, 0, 5, PORT, 4321, LIFE_S)


def error(code: int) -> bytes:
    return f"<e><errorCode>{code}</errorCode></e>".encode()


class Home:
    """A mapping, its outputs, and a router that says what the test wants."""

    def __init__(self):
        self.mapping = PortMapping(PORT, bytes)
        self.mapping.on_gateway(GATEWAY, OWN, 0.0)

    def sent(self) -> list[bytes]:
        """The kinds of packets to the router: version and operation."""
        outputs = self.mapping.drain()
        return [each.data[:2] for each in outputs if isinstance(each, SendDatagram)]

    def call(self) -> CallRouter:
        (call,) = [each for each in self.mapping.drain() if isinstance(each, CallRouter)]
        return call

    def lease(self) -> Lease:
        assert self.mapping.lease is not None
        return self.mapping.lease

    def found_upnp(self) -> CallRouter:
        """Let UPnP come as far as its mapping; returns that call."""
        self.mapping.on_datagram(LOCATION, SSDP, 0.1)
        self.mapping.on_reply(self.call().number, 200, DESCRIPTION, 0.1)
        self.mapping.on_reply(self.call().number, 200, HOST, 0.2)
        self.mapping.on_deadline(REPEAT_S)
        assert not [each for each in self.mapping.drain() if isinstance(each, CallRouter)]
        self.mapping.on_deadline(DATAGRAMS_S)
        return self.call()


def test_all_three_begin_at_once():
    home = Home()

    outputs = home.mapping.drain()

    sent = [(each.to.host, each.data[:2]) for each in outputs if isinstance(each, SendDatagram)]
    assert sent[:2] == [(GATEWAY, b"\2\1"), (GATEWAY, b"\0\0")]
    assert sent[2:] == [("239.255.255.250", b"M-"), (GATEWAY, b"M-")] * 2


def test_the_first_grant_ends_the_search():
    home = Home()
    home.mapping.drain()

    home.mapping.on_datagram(by_pcp(), ROUTER, 0.01)

    assert home.lease().external == Address(OUTSIDE, 4321)
    assert home.mapping.changes() == [home.lease()]
    assert home.mapping.next_deadline_s() == pytest.approx(0.01 + QUESTION_S)
    home.mapping.on_datagram(PMP_HOST, ROUTER, 0.02)
    home.mapping.on_datagram(LOCATION, SSDP, 0.02)
    assert home.mapping.drain() == []
    assert home.lease().protocol is MappingProtocol.PCP


def test_nat_pmp_has_its_turn_when_the_router_knows_no_pcp():
    home = Home()
    home.mapping.drain()

    home.mapping.on_datagram(PMP_HOST, ROUTER, 0.01)
    assert home.sent() == []
    home.mapping.on_datagram(NO_PCP, ROUTER, 0.02)
    assert home.sent() == [b"\0\2"]
    home.mapping.on_datagram(PMP_MAPPED, ROUTER, 0.03)

    assert home.lease().protocol is MappingProtocol.NAT_PMP
    assert home.lease().external == Address(OUTSIDE, 4321)


def test_upnp_maps_only_when_the_others_have_had_their_time():
    home = Home()
    add = home.found_upnp()

    home.mapping.on_reply(add.number, 200, b"<ok/>", 0.6)

    assert b"AddPortMapping" in (add.body or b"")
    assert home.lease().protocol is MappingProtocol.UPNP
    assert home.lease().external == Address(OUTSIDE, PORT)


def test_a_port_that_is_taken_is_followed_by_another():
    home = Home()
    add = home.found_upnp()

    home.mapping.on_reply(add.number, 500, error(upnp.CONFLICT), 0.6)
    again = home.call()
    home.mapping.on_reply(again.number, 200, b"<ok/>", 0.7)

    assert home.lease().external == Address(OUTSIDE, 1024)  # entropy of zeros


def test_a_router_of_permanent_leases_gives_one_that_is_renewed_and_returned():
    home = Home()
    add = home.found_upnp()

    home.mapping.on_reply(add.number, 500, error(upnp.ONLY_PERMANENT), 0.6)
    again = home.call()
    assert b"<NewLeaseDuration>0</NewLeaseDuration>" in (again.body or b"")
    home.mapping.on_reply(again.number, 200, b"<ok/>", 0.7)
    assert home.lease().permanent
    home.mapping.release()

    assert b"DeletePortMapping" in (home.call().body or b"")
    assert home.mapping.next_deadline_s() is None


def test_nobody_answering_ends_the_search_and_another_follows():
    home = Home()
    home.mapping.drain()
    deadlines = []
    while home.mapping.searching:
        deadlines.append(home.mapping.next_deadline_s())
        home.mapping.on_deadline(deadlines[-1])

    assert deadlines == [REPEAT_S, DATAGRAMS_S, BUDGET_S]
    assert home.mapping.next_deadline_s() == BUDGET_S + SEARCH_AGAIN_S
    assert home.mapping.changes() == []
    home.mapping.drain()
    home.mapping.on_deadline(BUDGET_S + SEARCH_AGAIN_S)
    assert home.sent()[:2] == [b"\2\1", b"\0\0"]


def test_a_lease_is_renewed_at_half_and_then_ever_sooner_until_it_is_lost():
    home = Home()
    home.mapping.on_datagram(by_pcp(lifetime_s=1600), ROUTER, 0.0)
    home.mapping.drain()
    home.mapping.changes()
    times = []
    while not home.mapping.searching:
        now_s = home.mapping.next_deadline_s()
        home.mapping.on_deadline(now_s)
        times += [now_s for sent in home.sent() if sent == b"\2\1"]

    assert times[:4] == [800.0, 1200.0, 1400.0, 1500.0]
    assert min(b - a for a, b in itertools.pairwise(times[:-1])) >= RENEW_PAUSE_S
    assert times[-1] == 1600.0  # a new search
    assert home.mapping.changes() == [None]


def test_a_renewal_may_bring_another_port():
    home = Home()
    home.mapping.on_datagram(by_pcp(), ROUTER, 0.0)
    home.mapping.changes()
    home.mapping.on_deadline(LIFE_S / 2)

    home.mapping.on_datagram(by_pcp(port=5555), ROUTER, 1801.0)

    assert home.mapping.changes() == [home.lease()]
    assert home.lease().external.port == 5555
    assert home.mapping.next_deadline_s() == 1801.0 + QUESTION_S
    home.mapping.drain()
    home.mapping.on_deadline(1801.0 + LIFE_S / 2)
    assert b"\2\1" in home.sent()


@pytest.mark.parametrize("refusal", [by_pcp(result=2), by_pcp(lifetime_s=0)])
def test_a_refused_renewal_is_the_end_of_the_lease(refusal):
    home = Home()
    home.mapping.on_datagram(by_pcp(), ROUTER, 0.0)
    home.mapping.changes()

    home.mapping.on_datagram(refusal, ROUTER, 1.0)

    assert home.mapping.changes() == [None]
    assert home.mapping.searching


def test_a_late_answer_to_another_question_is_no_refusal():
    home = Home()
    home.mapping.on_datagram(by_pcp(), ROUTER, 0.0)

    home.mapping.on_datagram(PMP_HOST, ROUTER, 0.1)

    assert home.mapping.lease is not None


def test_a_renewal_by_upnp_counts_from_its_answer():
    home = Home()
    home.mapping.on_reply(home.found_upnp().number, 200, b"<ok/>", 0.6)
    home.mapping.on_deadline(0.6 + 3600.0)
    renewal = home.call()

    home.mapping.on_reply(renewal.number - 1, 200, b"<ok/>", 3601.0)
    home.mapping.on_reply(renewal.number, 200, b"<ok/>", 3602.0)

    assert home.mapping.next_deadline_s() == 3602.0 + 3600.0
    home.mapping.on_deadline(7202.0)
    home.mapping.on_reply(home.call().number, 500, error(606), 7203.0)
    assert home.mapping.lease is None


def test_a_doubted_lease_is_renewed_at_once():
    home = Home()
    home.mapping.on_datagram(by_pcp(), ROUTER, 0.0)
    home.mapping.drain()

    home.mapping.on_doubt(10.0)
    home.mapping.on_deadline(10.0)

    assert home.sent() == [b"\2\1"]


def test_another_router_is_another_search_and_the_old_lease_is_returned():
    home = Home()
    home.mapping.on_datagram(by_pcp(), ROUTER, 0.0)
    home.mapping.drain()
    home.mapping.changes()

    home.mapping.on_gateway("192.168.9.1", "192.168.9.5", 5.0)

    outputs = home.mapping.drain()
    assert [each.to.host for each in outputs[:2]] == [GATEWAY, "192.168.9.1"]
    assert home.mapping.changes() == [None]
    home.mapping.on_gateway(None, None, 6.0)
    assert home.mapping.next_deadline_s() is None


def announced(epoch_s: int) -> bytes:
    """What a router with PCP tells all when it was started, and who asks for its time."""
    return struct.pack("!BBBBII12x", 2, 0x80, 0, 0, 0, epoch_s)


def test_a_router_that_was_started_again_is_asked_to_renew_at_once():
    home = Home()
    home.mapping.on_datagram(by_pcp(epoch_s=1000), ROUTER, 0.0)
    home.mapping.drain()

    home.mapping.on_datagram(announced(1100), ROUTER, 100.0)
    home.mapping.on_deadline(100.0)
    assert b"\2\1" not in home.sent()  # it is the same as before
    home.mapping.on_datagram(announced(0), ROUTER, 130.0)
    home.mapping.on_deadline(130.0)

    assert home.sent()[-1:] == [b"\2\1"]
    home.mapping.on_datagram(by_pcp(epoch_s=0), ROUTER, 130.1)
    assert home.mapping.changes() == [home.lease()]  # granted once, and still held


def test_the_routers_clock_is_looked_at_where_nobody_announces_it():
    home = Home()
    home.mapping.on_datagram(by_pcp(epoch_s=1000), ROUTER, 0.0)
    home.mapping.drain()

    home.mapping.on_deadline(QUESTION_S)
    assert home.sent() == [b"\2\0"]
    home.mapping.on_datagram(announced(5), ROUTER, QUESTION_S + 0.1)
    home.mapping.on_deadline(QUESTION_S + 0.1)

    assert home.sent() == [b"\2\1"]


def test_a_router_that_had_nothing_is_asked_again_when_it_was_started_again():
    home = Home()
    home.mapping.on_datagram(by_pcp(result=2, epoch_s=1000), ROUTER, 0.0)
    while home.mapping.searching:
        home.mapping.on_deadline(home.mapping.next_deadline_s())
    home.mapping.drain()

    home.mapping.on_datagram(announced(0), ROUTER, 50.0)
    home.mapping.on_deadline(50.0)

    assert home.mapping.searching


def test_whoever_plays_with_a_routers_clock_makes_us_ask_seldom():
    home = Home()
    home.mapping.on_datagram(by_pcp(epoch_s=1000), ROUTER, 0.0)
    home.mapping.drain()
    asked = 0
    for tenth in range(1000):
        home.mapping.on_datagram(announced(5000 * (tenth % 2)), ROUTER, tenth / 10)
        home.mapping.on_deadline(tenth / 10)
        asked += home.sent().count(b"\2\1")

    assert asked <= 1 + 100 / RENEW_PAUSE_S


def test_another_outside_address_of_a_router_with_nat_pmp_is_another_lease():
    home = Home()
    home.mapping.on_datagram(PMP_HOST, ROUTER, 0.01)
    home.mapping.on_datagram(NO_PCP, ROUTER, 0.02)
    home.mapping.on_datagram(PMP_MAPPED, ROUTER, 0.03)
    home.mapping.changes()

    home.mapping.on_datagram(PMP_HOST, ROUTER, 1.0)
    assert home.mapping.changes() == []
    home.mapping.on_datagram(PMP_HOST[:-1] + b"\x08", ROUTER, 2.0)

    assert home.mapping.changes() == [None]
    assert home.mapping.searching


@pytest.mark.parametrize("sender", [Address("192.168.1.66", 5351), Address("203.0.113.9", 5351)])
def test_only_the_gateway_grants(sender):
    home = Home()

    home.mapping.on_datagram(by_pcp(), sender, 0.01)

    assert home.mapping.lease is None


@pytest.mark.parametrize("host", [b"0.0.0.0", b"127.0.0.1", b"224.0.0.1", b"evil.example", b""])
def test_a_router_without_an_outside_address_gives_no_lease(host):
    home = Home()
    home.mapping.on_datagram(LOCATION, SSDP, 0.1)
    home.mapping.on_reply(home.call().number, 200, DESCRIPTION, 0.1)
    home.mapping.on_reply(home.call().number, 200, HOST.replace(b"203.0.114.7", host), 0.2)

    home.mapping.on_deadline(BUDGET_S)

    assert home.mapping.lease is None
    assert "UPnP" in home.mapping.refusals


GATEWAY6, OWN6, GLOBAL6 = "fe80::1%eth0", "2600:1::5", "2600:1::1"
SSDP6 = Address(GATEWAY6, 1900)
DESCRIPTION6 = (
    b"<root><service><serviceType>urn:schemas-upnp-org:service:WANIPv6FirewallControl:1"
    b"</serviceType><controlURL>/ctl6</controlURL></service></root>"
)
PINHOLE = b"<r><UniqueID>77</UniqueID></r>"


def location(host: str) -> bytes:
    return f"HTTP/1.1 200 OK\r\nLOCATION: http://[{host}]:5000/root.xml\r\n\r\n".encode()


class Home6(Home):
    """Behind a firewall of IPv6, whose router is known by its address of the link."""

    def __init__(self):
        self.mapping = PortMapping(PORT, bytes)
        self.mapping.on_gateway(GATEWAY6, OWN6, 0.0)

    def opened(self) -> Lease:
        """The pinhole that UPnP has made."""
        self.mapping.on_datagram(location(GLOBAL6), SSDP6, 0.1)
        self.mapping.on_reply(self.call().number, 200, DESCRIPTION6, 0.1)
        self.mapping.on_deadline(REPEAT_S)
        self.mapping.on_deadline(DATAGRAMS_S)
        call = self.call()
        assert call.url == f"http://[{GLOBAL6}]:5000/ctl6"
        assert call.headers["SOAPAction"].endswith('#AddPinhole"')
        assert f"<InternalClient>{OWN6}</InternalClient>".encode() in call.body
        self.mapping.on_reply(call.number, 200, PINHOLE, 0.6)
        return self.lease()


def test_a_firewall_of_ipv6_is_opened_by_upnp_when_pcp_has_had_its_time():
    lease = Home6().opened()

    assert (lease.protocol, lease.pinhole) == (MappingProtocol.UPNP, 77)
    assert lease.external == Address(OWN6, PORT)


def test_a_pinhole_is_updated_at_half_of_its_time_and_closed_at_the_end():
    home = Home6()
    lease = home.opened()

    home.mapping.on_deadline(0.6 + lease.lifetime_s / 2)
    call = home.call()
    assert call.headers["SOAPAction"].endswith('#UpdatePinhole"')
    assert b"<UniqueID>77</UniqueID>" in call.body
    home.mapping.on_reply(call.number, 200, b"<ok/>", 4000.0)
    assert home.mapping.lease == lease

    home.mapping.release()
    call = home.call()
    assert call.headers["SOAPAction"].endswith('#DeletePinhole"')
    assert b"<UniqueID>77</UniqueID>" in call.body


def test_a_pinhole_that_the_router_has_forgotten_is_sought_again():
    home = Home6()
    lease = home.opened()
    home.mapping.on_deadline(0.6 + lease.lifetime_s / 2)

    home.mapping.on_reply(home.call().number, 500, error(704), 4000.0)

    assert home.mapping.lease is None
    assert home.mapping.searching


@pytest.mark.parametrize("answer", [error(703), b"<r/>", b"<r><UniqueID>70000</UniqueID></r>"])
def test_a_router_that_opens_nothing_gives_no_pinhole(answer):
    home = Home6()
    home.mapping.on_datagram(location(GLOBAL6), SSDP6, 0.1)
    home.mapping.on_reply(home.call().number, 200, DESCRIPTION6, 0.1)
    home.mapping.on_deadline(REPEAT_S)
    home.mapping.on_deadline(DATAGRAMS_S)

    home.mapping.on_reply(home.call().number, 200, answer, 0.6)
    home.mapping.on_deadline(BUDGET_S)

    assert home.mapping.lease is None
    assert "UPnP" in home.mapping.refusals


@pytest.mark.parametrize("host", ["2600:2::1", OWN6, "::1", "fe80::2", "2600:1::1%25eth1"])
def test_a_description_elsewhere_is_not_fetched(host):
    home = Home6()
    home.mapping.drain()

    home.mapping.on_datagram(location(host), SSDP6, 0.1)

    assert home.mapping.drain() == []


PACKETS = st.one_of(
    st.binary(max_size=70),
    st.sampled_from([by_pcp(), by_pcp(result=3), NO_PCP, PMP_HOST, PMP_MAPPED, LOCATION]),
)
BODIES = st.one_of(
    st.none(),
    st.binary(max_size=60),
    st.sampled_from([DESCRIPTION, HOST, b"<ok/>", error(718), error(725), error(1)]),
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("packet"), PACKETS, st.sampled_from([ROUTER, SSDP])),
        st.tuples(st.just("call"), BODIES, st.sampled_from([200, 500])),
        st.tuples(st.just("time"), st.floats(0.0, 4000.0), st.none()),
    ),
    max_size=60,
)


@given(steps=STEPS)
def test_whatever_a_router_says_the_work_is_bounded(steps):
    """No answer raises, what is sent is little, and each deadline lies ahead once it was met."""
    home, now_s, number = Home(), 0.0, 0
    for what, value, other in steps:
        if what == "packet":
            home.mapping.on_datagram(value, other, now_s)
        elif what == "call":
            home.mapping.on_reply(number, other, value, now_s)
        else:
            now_s += value
            home.mapping.on_deadline(now_s)
            due_s = home.mapping.next_deadline_s()
            assert due_s is not None
            assert due_s > now_s
        outputs = home.mapping.drain()
        for each in outputs:
            if isinstance(each, CallRouter):
                number = each.number
                assert each.url.startswith(f"http://{GATEWAY}:")
            else:
                assert each.to.host in (GATEWAY, upnp.SEARCH_GROUP)
        assert len(outputs) <= 2 * CALLS_MAX
    home.mapping.release()
    assert home.mapping.next_deadline_s() is None
