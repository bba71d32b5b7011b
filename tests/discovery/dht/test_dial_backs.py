"""A peer is dialled back at its own host, once; nobody has all dials for itself."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from p2pswarm.base.ids import Address, Contact, PeerId
from p2pswarm.discovery.dht.unverified_contacts import (
    DIAL_BACKS_MAX,
    DIAL_BACKS_PER_NETWORK,
    DIAL_FOUND_S,
    DIAL_REFUTED_S,
    DIALS_REFUTED_PER_HOST,
    DIALS_REMEMBERED,
    DialBacks,
)


def a_peer(number: int, host: str = "8.8.8.8", port: int = 4000) -> Contact:
    return Contact(PeerId(number.to_bytes(32)), Address(host, port))


def far_apart(number: int) -> Contact:
    """Each in a network of its own."""
    return a_peer(number, f"{11 + number // 256}.{number % 256}.0.1")


def dialled(backs: DialBacks, one: Contact, now_s: float, *, confirmed: bool) -> bool:
    begun = backs.begin(one, now_s)
    if begun:
        assert backs.on_outcome(one, now_s, confirmed=confirmed)
    return begun


def test_a_peer_that_was_not_found_is_dialled_again_when_it_may_have_opened_its_port():
    backs = DialBacks()

    assert dialled(backs, a_peer(1), 0.0, confirmed=False)
    assert not backs.begin(a_peer(1), DIAL_REFUTED_S - 1)
    assert not backs.found(a_peer(1), 1.0)
    assert backs.begin(a_peer(1, port=4001), 1.0)
    assert backs.begin(a_peer(2), 1.0)
    assert backs.begin(a_peer(1), DIAL_REFUTED_S)


def test_a_peer_that_was_found_need_not_be_dialled_for_a_while():
    backs = DialBacks()
    assert dialled(backs, a_peer(1), 0.0, confirmed=True)

    assert backs.found(a_peer(1), DIAL_FOUND_S - 1)
    assert not backs.found(a_peer(1), DIAL_FOUND_S)
    assert not backs.found(a_peer(2), 1.0)
    assert not backs.found(a_peer(1, port=4001), 1.0)


def test_a_peer_that_was_found_for_another_reason_is_known_and_was_not_ours_to_dial():
    backs = DialBacks()

    assert not backs.on_outcome(a_peer(1), 0.0, confirmed=True)
    assert not backs.on_outcome(a_peer(2), 0.0, confirmed=False)

    assert backs.found(a_peer(1), 1.0)
    assert backs.begin(a_peer(2), 1.0)


def test_one_dial_of_a_peer_is_under_way():
    backs = DialBacks()
    assert backs.begin(a_peer(1), 0.0)

    assert not backs.begin(a_peer(1), 1.0)


def test_a_crowd_of_one_network_leaves_room_for_others():
    backs = DialBacks()

    begun = [backs.begin(a_peer(i, f"8.8.8.{i}"), 0.0) for i in range(2 * DIAL_BACKS_PER_NETWORK)]

    assert sum(begun) == DIAL_BACKS_PER_NETWORK
    assert backs.begin(far_apart(1), 0.0)


def test_the_ports_of_one_host_are_not_tried_one_after_another():
    backs = DialBacks()

    tried = [dialled(backs, a_peer(1, port=1 + i), 1.0, confirmed=False) for i in range(100)]

    assert sum(tried) == DIALS_REFUTED_PER_HOST
    assert dialled(backs, a_peer(1, port=1), 1.0 + DIAL_REFUTED_S, confirmed=False)


def test_all_nodes_of_a_lab_behind_one_address_are_found():
    backs = DialBacks()

    assert all(
        dialled(backs, a_peer(i, "192.168.1.7", 4000 + i), 0.1 * i, confirmed=True)
        for i in range(200)
    )


def test_what_is_remembered_is_bounded():
    backs = DialBacks()
    for number in range(DIALS_REMEMBERED + 500):
        dialled(backs, far_apart(number), 0.0, confirmed=number % 2 == 0)
        dialled(backs, a_peer(number, "10.0.0.1"), 0.0, confirmed=True)

    assert len(backs._found_s) <= DIALS_REMEMBERED
    assert len(backs._refuted_s) <= DIALS_REMEMBERED
    dialled(backs, a_peer(1, "10.0.0.2"), DIAL_REFUTED_S + DIAL_FOUND_S, confirmed=True)
    assert len(backs._found_s) + len(backs._refuted_s) == 1


peers = st.one_of(
    st.integers(0, 60).map(far_apart),
    st.builds(a_peer, st.integers(0, 3), st.just("8.8.8.8"), st.integers(1, 40)),
    st.builds(a_peer, st.integers(0, 3), st.just("10.0.0.1"), st.integers(1, 40)),
)


@given(
    st.lists(
        st.tuples(peers, st.sampled_from([0.0, 0.1, 60.0, 400.0]), st.booleans(), st.booleans()),
        max_size=200,
    )
)
def test_whatever_is_announced_the_bounds_hold(announced):
    backs, now_s = DialBacks(), 0.0
    under_way: list[Contact] = []
    refuted_s: dict[Contact, float] = {}
    for one, pause_s, confirmed, ends in announced:
        now_s += pause_s
        if backs.begin(one, now_s):
            assert one not in under_way
            assert now_s - refuted_s.get(one, -DIAL_REFUTED_S) >= DIAL_REFUTED_S
            under_way.append(one)
        if ends and under_way:
            over = under_way.pop(0)
            assert backs.on_outcome(over, now_s, confirmed=confirmed)
            if confirmed:
                refuted_s.pop(over, None)
            else:
                refuted_s[over] = now_s
            assert backs.found(over, now_s) == confirmed
        public = [each.address.host for each in under_way if each.address.host != "10.0.0.1"]
        assert len(under_way) <= DIAL_BACKS_MAX
        assert max(Counter(public).values(), default=0) <= DIAL_BACKS_PER_NETWORK
