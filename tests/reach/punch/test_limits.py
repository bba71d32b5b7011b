"""How often others may make us dial, and how often we try."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pswarm.base.ids import Address, PeerId
from p2pswarm.net.endpoint.preface import Sighting
from p2pswarm.reach.punch.limits import (
    DIALLED_MAX,
    KNOWN_MAX,
    LASTED_S,
    NETWORK_MAX,
    PAUSES_S,
    PEER_MAX,
    PEERS_MAX,
    RETURNS_MAX,
    RETURNS_S,
    TOGETHER_MAX,
    TOTAL_MAX,
    WINDOW_S,
    PunchBackOff,
    PunchLimits,
)
from p2pswarm.reach.punch.observed_addresses import (
    FRESH_S,
    SIGHTINGS_MAX,
    USED_MAX,
    USED_S,
    ObservedAddresses,
)

RELAY, OTHER = Address("11.9.0.1", 4000), Address("11.8.0.1", 4000)
SEEN, ELSEWHERE = Address("11.1.0.1", 4000), Address("11.1.0.1", 4001)


def peer(number: int) -> PeerId:
    return PeerId(number.to_bytes(32, "big"))


@pytest.mark.parametrize(("known", "most"), [(False, PEER_MAX), (True, KNOWN_MAX)])
def test_a_peer_has_so_many_attempts_a_minute(known, most):
    limits, began = PunchLimits(), 0
    for _ in range(most + 5):
        if limits.begin(peer(1), 0.0, known=known):
            began += 1
            limits.on_end()

    assert began == most
    assert limits.begin(peer(1), WINDOW_S, known=known)


def test_so_many_attempts_go_on_at_once():
    limits = PunchLimits()

    began = [limits.begin(peer(i), 0.0, known=False) for i in range(TOGETHER_MAX + 1)]

    assert began == [True] * TOGETHER_MAX + [False]
    limits.on_end()
    assert limits.begin(peer(999), 0.0, known=False)


def test_so_many_networks_are_dialled_and_remembered():
    limits = PunchLimits()
    hosts = [f"11.{number >> 8}.{number & 255}.1" for number in range(DIALLED_MAX)]

    assert limits.dialable(hosts, 0.0) == set(hosts)
    assert limits.dialable(["12.1.1.1"], 0.0) == set()
    assert limits.dialable(["12.1.1.1"], WINDOW_S) == {"12.1.1.1"}


@given(
    asks=st.lists(
        st.tuples(st.floats(0.0, 20.0), st.integers(0, 400), st.integers(0, 3)), max_size=400
    )
)
def test_no_network_is_dialled_more_often_than_allowed_whoever_asks(asks):
    limits, now_s = PunchLimits(), 0.0
    dialled: list[tuple[float, int]] = []
    for pause_s, who, network in asks:
        now_s += pause_s / 20
        if not limits.begin(peer(who), now_s, known=False):
            continue
        if limits.dialable([f"11.2.{network}.{1 + who % 200}"], now_s):
            dialled.append((now_s, network))
        limits.on_end()

    for at_s, _ in dialled:
        window = [network for other_s, network in dialled if at_s <= other_s < at_s + WINDOW_S]
        assert len(window) <= TOTAL_MAX
        assert all(count <= NETWORK_MAX for count in Counter(window).values())


def test_attempts_that_fail_are_repeated_ever_less_often():
    back_off = PunchBackOff()
    now_s, pauses = 0.0, []
    for _ in range(7):
        assert back_off.pause_s("a", now_s) == 0.0
        back_off.begin("a", now_s)
        back_off.on_failure("a", now_s, hopeless=False)
        pauses.append(back_off.pause_s("a", now_s))
        now_s += pauses[-1]

    assert pauses == [*PAUSES_S, PAUSES_S[-1], PAUSES_S[-1]]


def test_what_is_hopeless_waits_longest():
    back_off = PunchBackOff()
    back_off.begin("a", 0.0)

    back_off.on_failure("a", 0.0, hopeless=True)

    assert back_off.pause_s("a", 0.0) == PAUSES_S[-1]
    back_off.forget("a")
    assert back_off.pause_s("a", 0.0) == 0.0


def test_a_punched_path_that_does_not_last_counts_as_a_failure():
    back_off = PunchBackOff()
    now_s = 0.0
    for _ in range(3):  # each comes up, and breaks at once
        back_off.begin("a", now_s)
        back_off.on_success("a", now_s)
        now_s += 0.1
    back_off.begin("a", now_s)

    assert back_off.pause_s("a", now_s) == PAUSES_S[2]

    back_off.on_success("a", now_s)
    back_off.begin("a", now_s + LASTED_S)
    assert back_off.pause_s("a", now_s + LASTED_S) == 0.0


def test_what_has_worked_is_tried_again_within_seconds_for_some_minutes():
    back_off = PunchBackOff()
    back_off.begin("a", 0.0)
    back_off.on_success("a", 0.0)
    now_s, pauses = LASTED_S, []
    for _ in range(RETURNS_MAX + 1):
        back_off.begin("a", now_s)
        now_s += 2.5
        back_off.on_failure("a", now_s, hopeless=False)
        pauses.append(back_off.pause_s("a", now_s))
        now_s += pauses[-1]

    assert max(pauses[: RETURNS_MAX - 1]) == RETURNS_S
    assert pauses[-1] == PAUSES_S[-1]


def test_so_many_peers_are_remembered():
    back_off = PunchBackOff()
    for number in range(PEERS_MAX + 1):
        back_off.on_failure(number, 0.0, hopeless=True)

    assert back_off.pause_s(0, 0.0) == 0.0
    assert back_off.pause_s(1, 0.0) > 0.0


def test_a_sighting_is_known_for_a_while_and_the_relays_own_comes_first():
    book = ObservedAddresses()
    book.on_observation(RELAY, 4000, Sighting(SEEN, b"r" * 16), 0.0)
    book.on_observation(OTHER, 4000, Sighting(SEEN, b"o" * 16), 1.0)

    assert [each.seal[:1] for each in book.seen(4000, 2.0, RELAY)] == [b"r", b"o"]
    assert [each.seal[:1] for each in book.seen(4000, 2.0)] == [b"o", b"r"]
    assert book.fresh(RELAY, 4000, FRESH_S - 1) == Sighting(SEEN, b"r" * 16)
    assert book.fresh(RELAY, 4000, FRESH_S) is None
    assert book.fresh(RELAY, 4001, 2.0) is None
    book.forget(4000)
    assert book.seen(4000, 2.0) == []


def test_a_nat_is_hard_if_two_relays_see_one_port_at_different_places():
    book = ObservedAddresses()
    book.on_observation(RELAY, 4000, Sighting(SEEN, b""), 0.0)
    assert not book.hard(4000, 0.0)
    book.on_observation(OTHER, 4000, Sighting(SEEN, b""), 0.0)
    assert not book.hard(4000, 0.0)

    book.on_observation(OTHER, 4000, Sighting(ELSEWHERE, b""), 0.0)

    assert book.hard(4000, 0.0)
    assert not book.hard(4001, 0.0)
    assert not book.hard(4000, FRESH_S)


def test_ipv4_and_ipv6_addresses_of_one_port_do_not_make_a_nat_hard():
    book = ObservedAddresses()
    book.on_observation(RELAY, 4000, Sighting(SEEN, b""), 0.0)
    book.on_observation(OTHER, 4000, Sighting(Address("2606:4700::1", 4000), b""), 0.0)

    assert not book.hard(4000, 0.0)


def test_our_port_is_used_for_a_peer_once_in_a_while():
    book = ObservedAddresses()

    assert book.use(peer(1), 0.0)
    assert not book.use(peer(1), 1.0)
    assert book.use(peer(2), 1.0)
    assert book.use(peer(1), 1.0 + USED_S)


def test_a_book_is_bounded():
    book = ObservedAddresses()
    for number in range(SIGHTINGS_MAX + 1):
        book.on_observation(Address("11.9.0.1", 1 + number), 4000, Sighting(SEEN, b""), 0.0)
    for number in range(USED_MAX + 1):
        book.use(peer(number), 0.0)

    assert len(book.seen(4000, 0.0)) == SIGHTINGS_MAX
    assert book.use(peer(0), 0.0)
