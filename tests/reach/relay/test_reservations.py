"""Tests of `reach/relay/reservations.py`."""

import itertools

from core import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from p2pswarm.base.ids import Address, Contact, PeerId
from p2pswarm.net.cards.card import RELAYS_MAX
from p2pswarm.reach.relay.reservations import (
    ANSWER_S,
    KNOWN_MAX,
    RETRY_MAX_S,
    UNKNOWN_S,
    LeaveRelay,
    RelayCandidate,
    RenewAt,
    Reservations,
    ReserveAt,
    chosen,
    distance_class,
)

US = PeerId(bytes(32))


def at(n: int, port: int = 4000, *, mapped: bool = False, rtt_s: float = 0.0) -> RelayCandidate:
    contact = Contact(PeerId(n.to_bytes(32)), Address(f"203.0.114.{n}", port))
    return RelayCandidate(contact, mapped, rtt_s)


def test_those_next_to_us_come_first_so_that_relays_share_the_nodes():
    other = PeerId(b"\xff" * 32)
    found = [at(2), at(1), at(3)]

    assert chosen(found, US, ()) == [at(1).relay, at(2).relay, at(3).relay]
    assert chosen(found, other, ()) == [at(3).relay, at(2).relay, at(1).relay]


def test_the_nearest_come_first_by_the_pings_of_their_links():
    found = [at(1, rtt_s=0.3), at(2), at(3, rtt_s=0.07), at(4, rtt_s=0.02)]

    assert chosen(found, US, ()) == [at(4).relay, at(3).relay, at(2).relay, at(1).relay]


def test_of_those_about_as_near_the_ids_decide_so_that_relays_share_the_nodes():
    found = [at(2, rtt_s=0.021), at(1, rtt_s=0.039), at(4, rtt_s=0.001), at(3, rtt_s=0.009)]

    assert chosen(found, US, ()) == [at(3).relay, at(4).relay, at(1).relay, at(2).relay]


def test_a_peer_that_is_met_twice_is_as_near_as_its_link_says():
    found = [at(1), at(2, rtt_s=0.1), at(1, rtt_s=0.2)]

    assert chosen(found, US, ()) == [at(2).relay, at(1).relay]


@given(st.floats(0, 1e4), st.floats(0, 1e4))
def test_who_is_farther_is_never_in_a_nearer_class(one_s, other_s):
    near_s, far_s = sorted((one_s or UNKNOWN_S, other_s or UNKNOWN_S))

    assert 0 <= distance_class(near_s) <= distance_class(far_s)
    assert distance_class(0.0) == distance_class(UNKNOWN_S)


def test_those_at_home_come_last():
    assert chosen([at(1, mapped=True), at(2)], US, ()) == [at(2).relay, at(1).relay]


def test_a_peer_is_there_once_and_not_if_it_holds_a_reservation_already():
    assert chosen([at(1), at(1, 4001), at(2)], US, [at(2).relay.peer]) == [at(1).relay]


def test_we_are_no_relay_of_ours_nor_is_who_has_no_id():
    nameless = RelayCandidate(Contact(None, Address("203.0.114.9", 4000)))

    assert (
        chosen([RelayCandidate(Contact(US, Address("203.0.114.8", 4000))), nameless], US, ()) == []
    )


NOW_S = 1000.0


def at_of_reservations(n: int, network: int | None = None) -> Contact:
    third = n if network is None else network
    return Contact(PeerId(n.to_bytes(32)), Address(f"198.51.{third}.{n}", 4000))


def keeping(*relays: Contact, lasts_s: float = 600) -> Reservations:
    """Reservations at the first two of these relays."""
    kept = Reservations()
    kept.offer(relays)
    for action in kept.drain(NOW_S):
        kept.on_confirmation(action.relay, lasts_s, NOW_S)
    return kept


def test_two_relays_are_asked_in_the_order_in_which_they_were_named():
    kept = Reservations()
    kept.offer([at_of_reservations(1), at_of_reservations(2), at_of_reservations(3)])

    assert kept.drain(NOW_S) == [
        ReserveAt(at_of_reservations(1)),
        ReserveAt(at_of_reservations(2)),
    ]
    assert kept.drain(NOW_S) == []
    assert kept.held == ()
    kept.on_confirmation(at_of_reservations(2), 600, NOW_S)
    assert kept.held == (at_of_reservations(2),)


def test_the_second_relay_is_in_another_network_if_there_is_one():
    kept = Reservations()
    kept.offer(
        [
            at_of_reservations(1, network=7),
            at_of_reservations(2, network=7),
            at_of_reservations(3, network=8),
        ]
    )

    assert kept.drain(NOW_S) == [
        ReserveAt(at_of_reservations(1, network=7)),
        ReserveAt(at_of_reservations(3, network=8)),
    ]


def test_relays_that_are_named_again_are_asked_in_the_new_order():
    """Their round trips are known by now; two in one network are still not asked first."""
    kept = Reservations(wanted=0)
    kept.offer(
        [
            at_of_reservations(1, network=7),
            at_of_reservations(2, network=7),
            at_of_reservations(3, network=8),
            at_of_reservations(4, network=8),
        ]
    )
    kept.offer(
        [
            at_of_reservations(4, network=8),
            at_of_reservations(2, network=7),
            at_of_reservations(3, network=8),
            at_of_reservations(1, network=7),
        ]
    )

    kept.want(2, NOW_S)

    assert kept.drain(NOW_S) == [
        ReserveAt(at_of_reservations(4, network=8)),
        ReserveAt(at_of_reservations(2, network=7)),
    ]


def test_a_reservation_is_renewed_at_half_of_its_time():
    kept = keeping(at_of_reservations(1), at_of_reservations(2))

    assert kept.drain(NOW_S + 299) == []
    assert kept.next_deadline_s() == NOW_S + 300
    assert kept.drain(NOW_S + 300) == [
        RenewAt(at_of_reservations(1)),
        RenewAt(at_of_reservations(2)),
    ]
    kept.on_confirmation(at_of_reservations(1), 600, NOW_S + 301)
    assert kept.held == (at_of_reservations(1), at_of_reservations(2))
    assert kept.drain(NOW_S + 300 + ANSWER_S)[0] == LeaveRelay(at_of_reservations(2))
    assert kept.held == (at_of_reservations(1),)


def test_a_relay_that_dies_is_replaced_at_once():
    kept = keeping(at_of_reservations(1), at_of_reservations(2), at_of_reservations(3))

    kept.on_end(at_of_reservations(1), NOW_S + 5)

    assert kept.drain(NOW_S + 5) == [ReserveAt(at_of_reservations(3))]


def test_a_relay_that_fails_is_tried_again_later_and_later():
    kept, now_s, pauses = Reservations(), NOW_S, []
    kept.offer([at_of_reservations(1)])
    for _ in range(9):
        assert kept.drain(now_s) == [ReserveAt(at_of_reservations(1))]
        kept.on_end(at_of_reservations(1), now_s)
        at_s = kept.next_deadline_s()
        assert at_s is not None
        assert kept.drain(at_s - 0.01) == []
        pauses.append(at_s - now_s)
        now_s = at_s

    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60, 60]


def test_a_busy_relay_is_left_alone_as_long_as_it_asks_for_and_no_longer():
    for asked_s, waits_s in ((60, 60), (1e9, 600)):
        kept = Reservations()
        kept.offer([at_of_reservations(1)])
        kept.drain(NOW_S)
        kept.on_end(at_of_reservations(1), NOW_S, asked_s)
        assert kept.next_deadline_s() == NOW_S + waits_s


def test_a_relay_that_does_not_answer_makes_way_for_another():
    kept = Reservations()
    kept.offer([at_of_reservations(1), at_of_reservations(2), at_of_reservations(3)])
    kept.drain(NOW_S)
    kept.on_confirmation(at_of_reservations(2), 600, NOW_S)

    assert kept.drain(NOW_S + ANSWER_S) == [
        LeaveRelay(at_of_reservations(1)),
        ReserveAt(at_of_reservations(3)),
    ]
    kept.on_confirmation(
        at_of_reservations(1), 600, NOW_S + ANSWER_S
    )  # too late: its stream is closed
    assert kept.held == (at_of_reservations(2),)


def test_a_relay_that_grants_no_time_is_not_asked_all_the_time():
    kept = keeping(at_of_reservations(1), at_of_reservations(2), lasts_s=0.001)

    at_s = kept.next_deadline_s()
    assert at_s is not None
    assert at_s >= NOW_S + 5


def test_a_relay_that_is_withdrawn_is_left():
    kept = keeping(at_of_reservations(1), at_of_reservations(2), at_of_reservations(3))

    kept.withdraw(at_of_reservations(1))
    kept.withdraw(at_of_reservations(1))

    assert kept.drain(NOW_S) == [
        LeaveRelay(at_of_reservations(1)),
        ReserveAt(at_of_reservations(3)),
    ]
    assert kept.held == (at_of_reservations(2),)


def test_nobody_names_relays_without_end():
    kept, tried = Reservations(), set()
    kept.offer(at_of_reservations(n) for n in range(1, 200))
    for _ in range(200):
        for action in kept.drain(NOW_S):
            tried.add(action.relay)
            kept.on_end(action.relay, NOW_S)

    assert tried == {at_of_reservations(n) for n in range(1, KNOWN_MAX + 1)}


def test_a_relay_that_has_failed_makes_room_for_another():
    kept = Reservations()
    kept.offer(at_of_reservations(n) for n in range(1, KNOWN_MAX + 1))
    kept.drain(NOW_S)
    kept.on_end(at_of_reservations(1), NOW_S)

    kept.offer([at_of_reservations(100), at_of_reservations(101)])

    tried = set()
    for _ in range(KNOWN_MAX):
        for action in kept.drain(NOW_S):
            tried.add(action.relay)
            kept.on_end(action.relay, NOW_S)
    assert at_of_reservations(100) in tried
    assert not tried & {at_of_reservations(1), at_of_reservations(101)}


def test_who_needs_no_relays_any_more_gives_them_back_and_may_have_them_again():
    kept = keeping(at_of_reservations(1), at_of_reservations(2), at_of_reservations(3))

    kept.want(0, NOW_S)
    assert kept.drain(NOW_S) == [
        LeaveRelay(at_of_reservations(1)),
        LeaveRelay(at_of_reservations(2)),
    ]
    assert kept.held == ()
    assert kept.next_deadline_s() is None

    kept.want(1, NOW_S)
    assert kept.drain(NOW_S) == [ReserveAt(at_of_reservations(3))]
    kept.on_end(at_of_reservations(3), NOW_S)
    assert kept.drain(NOW_S + 1) == [ReserveAt(at_of_reservations(1))]


def test_it_wakes_for_what_is_due_first_and_for_nothing_else():
    kept = Reservations()
    kept.offer([at_of_reservations(1), at_of_reservations(2), at_of_reservations(3)])
    kept.drain(NOW_S)
    kept.on_end(at_of_reservations(1), NOW_S)
    kept.drain(NOW_S)
    kept.on_confirmation(at_of_reservations(3), 400, NOW_S)
    kept.on_confirmation(at_of_reservations(2), 600, NOW_S)

    assert kept.next_deadline_s() == NOW_S + 200  # not to try the first relay again
    assert kept.drain(NOW_S + 200) == [RenewAt(at_of_reservations(3))]


RELAYS = [at_of_reservations(n, network=n // 2) for n in range(1, 7)]


class AnyRelays(RuleBasedStateMachine):
    """However relays behave, at most two are in use, and none is asked too often."""

    @initialize()
    def begin(self):
        self.kept = Reservations()
        self.kept.offer(RELAYS)
        self.now_s = 0.0
        self.wanted = RELAYS_MAX
        self.open: dict[Contact, bool] = {}
        self.confirmed: set[Contact] = set()
        self.asked_at: dict[Contact, list[float]] = {relay: [] for relay in RELAYS}

    @rule(pause_s=st.floats(0, 40))
    def act(self, pause_s):
        self.now_s += pause_s
        for action in self.kept.drain(self.now_s):
            if isinstance(action, ReserveAt):
                assert action.relay not in self.open
                self.open[action.relay] = False
                self.asked_at[action.relay].append(self.now_s)
            elif isinstance(action, LeaveRelay):
                del self.open[action.relay]
                self.confirmed.discard(action.relay)
            else:
                assert action.relay in self.confirmed
        assert len(self.open) <= self.wanted

    @precondition(lambda self: self.open)
    @rule(data=st.data(), lasts_s=st.floats(0.001, 1000))
    def confirm(self, data, lasts_s):
        relay = data.draw(st.sampled_from(list(self.open)))
        self.kept.on_confirmation(relay, lasts_s, self.now_s)
        self.confirmed.add(relay)

    @precondition(lambda self: self.open)
    @rule(data=st.data(), retry_s=st.floats(0, 1e4))
    def fail(self, data, retry_s):
        relay = data.draw(st.sampled_from(list(self.open)))
        del self.open[relay]
        self.confirmed.discard(relay)
        self.kept.on_end(relay, self.now_s, retry_s)

    @rule(count=st.integers(0, 3))
    def want(self, count):
        self.kept.want(count, self.now_s)
        self.wanted = count
        self.act(0.0)

    @invariant()
    def what_is_held_is_what_was_confirmed(self):
        assert set(self.kept.held) == self.confirmed

    @invariant()
    def it_never_sleeps_while_a_relay_is_wanted(self):
        at_s = self.kept.next_deadline_s()
        assert at_s is not None or not self.wanted
        if len(self.open) < self.wanted:
            assert at_s is not None
            assert at_s <= self.now_s + max(RETRY_MAX_S, 600)

    @invariant()
    def no_relay_is_asked_twice_within_a_second(self):
        for times in self.asked_at.values():
            assert all(b - a >= 1 - 1e-6 for a, b in itertools.pairwise(times))


AnyRelays.TestCase.settings = settings(
    deadline=None, max_examples=examples(60), stateful_step_count=60
)
test_any_relays = AnyRelays.TestCase
