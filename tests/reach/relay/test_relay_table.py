"""The relay's table: who gets a reservation or a circuit, and for how long."""

import itertools

import pytest
from core import examples
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from p2pswarm.base.errors import Busy
from p2pswarm.base.ids import PeerId
from p2pswarm.net.endpoint.preface import CircuitStatus
from p2pswarm.net.os.addresses import network_of
from p2pswarm.reach.relay.relay_table import (
    Circuit,
    CircuitEnded,
    RelayLimits,
    RelayReservation,
    RelayTable,
    ReservationEnded,
)

HOME, CAMPUS, FAR = "198.51.100.7", "203.0.113.9", "192.0.2.1"
NOW_S = 1000.0


def peer(n: int) -> PeerId:
    return PeerId(n.to_bytes(32))


def table(**limits) -> RelayTable:
    numbers = itertools.count(1)
    return RelayTable(RelayLimits(**limits), lambda nbytes: next(numbers).to_bytes(nbytes))


def asked(of: RelayTable, n: int = 1, dialler: str = FAR, now_s: float = NOW_S) -> Circuit:
    circuit = of.ask(peer(n), dialler, now_s)
    assert isinstance(circuit, Circuit)
    return circuit


def test_a_circuit_is_taken_once():
    relay = table()
    relay.reserve(peer(1), HOME, NOW_S)
    circuit = asked(relay)

    assert relay.take(circuit.ticket, NOW_S) == circuit
    assert relay.take(circuit.ticket, NOW_S) is CircuitStatus.NO_TICKET


def test_who_has_no_reservation_is_not_reachable():
    relay = table()
    held = relay.reserve(peer(1), HOME, NOW_S)

    assert relay.ask(peer(2), FAR, NOW_S) is CircuitStatus.NOT_RESERVED
    relay.release(held.number)
    assert relay.ask(peer(1), FAR, NOW_S) is CircuitStatus.NOT_RESERVED


def test_a_ticket_that_nobody_takes_expires():
    relay = table(ticket_s=5)
    relay.reserve(peer(1), HOME, NOW_S)
    circuit = asked(relay)

    assert relay.next_deadline_s() == NOW_S + 5
    assert relay.take(circuit.ticket, NOW_S + 5) is CircuitStatus.NO_TICKET
    assert relay.drain() == [CircuitEnded(circuit.number)]
    assert relay.circuits == 0


def test_a_reservation_lasts_until_it_is_not_renewed():
    relay = table(lasts_s=600)
    held = relay.reserve(peer(1), HOME, NOW_S)

    assert relay.renew(held.number, NOW_S + 599)
    asked(relay, now_s=NOW_S + 1100)
    assert not relay.renew(held.number, NOW_S + 1199)
    assert ReservationEnded(held.number) in relay.drain()
    assert relay.ask(peer(1), FAR, NOW_S + 1199) is CircuitStatus.NOT_RESERVED


def test_a_newer_reservation_of_a_peer_replaces_the_older():
    relay = table()
    old = relay.reserve(peer(1), HOME, NOW_S)
    new = relay.reserve(peer(1), CAMPUS, NOW_S)

    assert relay.drain() == [ReservationEnded(old.number)]
    relay.release(old.number)
    assert asked(relay).reservation == new


def test_a_joined_circuit_outlives_its_reservation_and_a_waiting_one_does_not():
    relay = table()
    held = relay.reserve(peer(1), HOME, NOW_S)
    joined, waits = asked(relay), asked(relay)
    relay.take(joined.ticket, NOW_S)

    relay.release(held.number)

    assert relay.drain() == [ReservationEnded(held.number), CircuitEnded(waits.number)]
    assert relay.circuits == 1


def test_a_newcomer_displaces_a_crowd_and_a_crowd_nobody():
    relay = table(reservations_max=8)
    honest = relay.reserve(peer(1), HOME, NOW_S)
    crowd = [relay.reserve(peer(10 + n), f"203.0.113.{n}", NOW_S) for n in range(7)]

    relay.reserve(peer(2), FAR, NOW_S)
    assert relay.drain() == [ReservationEnded(crowd[0].number)]
    for n in range(100):
        with pytest.raises(Busy):
            relay.reserve(peer(100 + n), f"203.0.113.{n}", NOW_S)
    assert relay.renew(honest.number, NOW_S)


def test_honest_peers_do_not_displace_each_other_in_turns():
    relay = table(reservations_max=4)
    for n in range(4):
        relay.reserve(peer(n), f"{20 + n}.0.0.1", NOW_S)

    with pytest.raises(Busy) as refused:
        relay.reserve(peer(9), "99.0.0.1", NOW_S)
    assert refused.value.retry_after_s == 60


def test_diallers_that_never_go_on_leave_places_to_others():
    relay = table(waiting_max=16, dialler_waiting_max=8)
    relay.reserve(peer(1), HOME, NOW_S)
    for n in range(8):
        asked(relay, dialler=f"192.0.2.{n}")

    assert relay.ask(peer(1), "192.0.2.99", NOW_S) is CircuitStatus.FULL
    joined = asked(relay, dialler=CAMPUS)
    relay.take(joined.ticket, NOW_S)
    for _ in range(8):
        asked(relay, dialler=CAMPUS)
    assert relay.ask(peer(1), HOME, NOW_S) is CircuitStatus.FULL
    asked(relay, dialler=HOME, now_s=NOW_S + 5)


def test_joined_circuits_of_a_peer_are_limited_and_never_displaced():
    relay = table(peer_circuits_max=6, dialler_circuits_max=4)
    relay.reserve(peer(1), HOME, NOW_S)
    joined = [asked(relay) for _ in range(4)]
    for circuit in joined:
        relay.take(circuit.ticket, NOW_S)

    assert relay.ask(peer(1), FAR, NOW_S) is CircuitStatus.FULL
    asked(relay, dialler=CAMPUS)
    assert relay.drain() == []
    relay.close(joined[0])
    relay.close(joined[0])
    asked(relay)


def test_the_peers_of_one_network_leave_half_of_the_relay_to_others():
    relay = table(circuits_max=4, network_circuits_max=2)
    for n in (1, 2):
        relay.reserve(peer(n), f"198.51.100.{n}", NOW_S)
    relay.reserve(peer(3), CAMPUS, NOW_S)
    asked(relay, 1)
    asked(relay, 2)

    assert relay.ask(peer(1), FAR, NOW_S) is CircuitStatus.FULL
    asked(relay, 3)
    asked(relay, 3)
    assert relay.ask(peer(3), FAR, NOW_S) is CircuitStatus.FULL


def test_a_relay_that_is_full_joins_nobody():
    relay = table(circuits_max=2)
    for n, host in ((1, HOME), (2, CAMPUS), (3, FAR)):
        relay.reserve(peer(n), host, NOW_S)
    asked(relay, 1)
    last = asked(relay, 2)

    assert relay.ask(peer(3), HOME, NOW_S) is CircuitStatus.FULL
    relay.close(last)
    asked(relay, 3)


def test_two_of_one_network_are_a_crowd_beside_one_of_another():
    relay = table(reservations_max=3)
    relay.reserve(peer(1), HOME, NOW_S)
    crowd = [relay.reserve(peer(10 + n), f"203.0.113.{n}", NOW_S) for n in range(2)]

    relay.reserve(peer(2), FAR, NOW_S)
    assert relay.drain() == [ReservationEnded(crowd[0].number)]
    with pytest.raises(Busy):
        relay.reserve(peer(3), "20.0.0.1", NOW_S)


SMALL = RelayLimits(
    reservations_max=4,
    lasts_s=20,
    circuits_max=10,
    network_circuits_max=8,
    peer_circuits_max=6,
    dialler_circuits_max=4,
    waiting_max=3,
    dialler_waiting_max=2,
    ticket_s=5,
)
HOSTS = st.sampled_from([f"{a}.{b}.0.1" for a in (10, 11) for b in (0, 1)] + ["fd00::1", "name"])


class AnyUse(RuleBasedStateMachine):
    """Whatever is asked in whatever order, the limits hold and nothing is left behind."""

    @initialize()
    def begin(self):
        self.limits = SMALL
        self.relay = RelayTable(SMALL, self.ticket)
        self.now_s, self.tickets = 0.0, 0
        self.held: dict[int, RelayReservation] = {}
        self.waiting: dict[int, Circuit] = {}
        self.joined: dict[int, Circuit] = {}

    def ticket(self, nbytes: int) -> bytes:
        self.tickets += 1
        return self.tickets.to_bytes(nbytes)

    def hear(self):
        for event in self.relay.drain():
            if isinstance(event, ReservationEnded):
                del self.held[event.number]
            else:
                del self.waiting[event.number]

    @rule(pause_s=st.floats(0, 8))
    def wait(self, pause_s):
        self.now_s += pause_s
        self.relay.on_deadline(self.now_s)
        self.hear()

    @rule(n=st.integers(0, 6), host=HOSTS)
    def reserve(self, n, host):
        try:
            held = self.relay.reserve(peer(n), host, self.now_s)
        except Busy:
            assert len(self.held) >= self.limits.reservations_max
        else:
            self.held[held.number] = held
        self.hear()

    @precondition(lambda self: self.held)
    @rule(data=st.data(), renews=st.booleans())
    def renew_or_release(self, data, renews):
        number = data.draw(st.sampled_from(list(self.held)))
        if renews:
            assert self.relay.renew(number, self.now_s)
        else:
            self.relay.release(number)
        self.hear()

    @rule(n=st.integers(0, 6), host=HOSTS)
    def ask(self, n, host):
        got = self.relay.ask(peer(n), host, self.now_s)
        self.hear()
        if isinstance(got, Circuit):
            assert got.reservation.peer == peer(n)
            self.waiting[got.number] = got
        elif got is CircuitStatus.NOT_RESERVED:
            assert all(held.peer != peer(n) for held in self.held.values())

    @precondition(lambda self: self.waiting)
    @rule(data=st.data(), takes=st.booleans())
    def take_or_hang_up(self, data, takes):
        circuit = self.waiting.pop(data.draw(st.sampled_from(list(self.waiting))))
        if takes:
            assert self.relay.take(circuit.ticket, self.now_s) == circuit
            self.joined[circuit.number] = circuit
        else:
            self.relay.close(circuit)
        assert self.relay.take(circuit.ticket, self.now_s) is CircuitStatus.NO_TICKET
        self.hear()

    @precondition(lambda self: self.joined)
    @rule(data=st.data())
    def close(self, data):
        self.relay.close(self.joined.pop(data.draw(st.sampled_from(list(self.joined)))))

    @invariant()
    def the_limits_hold(self):
        circuits = [*self.waiting.values(), *self.joined.values()]
        assert self.relay.circuits == len(circuits) <= self.limits.circuits_max
        assert self.relay.reservations == len(self.held) <= self.limits.reservations_max
        assert len({held.peer for held in self.held.values()}) == len(self.held)
        for each in circuits:
            of_peer = [c for c in circuits if c.reservation.peer == each.reservation.peer]
            near = [c for c in of_peer if network_of(c.dialler) == network_of(each.dialler)]
            assert len(of_peer) <= self.limits.peer_circuits_max
            assert len(near) <= self.limits.dialler_circuits_max
            waits = [c for c in of_peer if c.number in self.waiting]
            assert len(waits) <= self.limits.waiting_max
            assert len([c for c in near if c in waits]) <= self.limits.dialler_waiting_max

    @invariant()
    def the_next_deadline_is_the_first(self):
        ends = [c.waits_until_s for c in self.waiting.values()]
        at_s = self.relay.next_deadline_s()
        assert at_s is None or at_s > self.now_s
        assert not ends or (at_s is not None and at_s <= min(ends))
        assert (at_s is None) == (not self.held)

    def teardown(self):
        if not hasattr(self, "relay"):
            return
        for circuit in [*self.waiting.values(), *self.joined.values()]:
            self.relay.close(circuit)
        for number in list(self.held):
            self.relay.release(number)
        assert self.relay.circuits == self.relay.reservations == 0
        for n in range(SMALL.reservations_max):  # all places are free again
            self.relay.reserve(peer(n), f"10.{n}.0.1", self.now_s)
        got = [self.relay.ask(peer(0), f"{a}.0.0.1", self.now_s) for a in range(10, 14)]
        full = SMALL.waiting_max
        assert [isinstance(each, Circuit) for each in got] == [True] * full + [False]


AnyUse.TestCase.settings = settings(
    deadline=None, max_examples=examples(60), stateful_step_count=60
)
test_any_use = AnyUse.TestCase
