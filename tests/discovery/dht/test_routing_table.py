"""The routing table: who is in it, who is closest, and what is certain."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pswarm.base.ids import Address, Contact, PeerId
from p2pswarm.discovery.dht.config import DhtConfig
from p2pswarm.discovery.dht.routing_table import ID_BITS, Table, neighbour, networks

OWN = PeerId(bytes(32))
PERIOD_S = DhtConfig().refresh_s


def contact(number: int, host: str = "10.0.0.1", port: int = 1) -> Contact:
    return Contact(PeerId(number.to_bytes(32)), Address(host, port))


def raw(number: int) -> bytes:
    return number.to_bytes(32)


def far(i: int) -> int:
    """The i-th of those who share no bit with us."""
    return (1 << 255) + i


def table(**changes: object) -> Table:
    return Table(OWN, DhtConfig(**changes))  # type: ignore[arg-type]


def ids(known: Table) -> list[int]:
    return [each.number for each in known]


def test_a_contact_without_an_id_is_refused():
    with pytest.raises(ValueError, match="no id yet"):
        table().on_contact(Contact(None, Address("10.0.0.1", 1)), 0.0)


def test_we_are_not_in_our_own_table():
    known = table()

    assert known.on_contact(contact(0), 0.0) is None
    assert len(known) == 0


def test_contacts_stand_in_the_bucket_of_their_shared_prefix():
    known = table()

    assert known.index(raw(1)) == 255
    assert known.index(raw(far(0))) == 0
    assert known.index(OWN.raw) == ID_BITS


def test_newcomer_to_a_full_bucket_makes_us_check_the_silent_one():
    known = table(k=3, beta=1, replicas=1, replicas_success=1)
    for i in range(3):
        known.on_contact(contact(far(i)), float(i))

    assert known.on_contact(contact(far(9)), 10.0) == contact(far(0))
    assert ids(known) == [far(0), far(1), far(2)]


def test_silent_contact_is_dropped_at_the_second_failure_in_a_row():
    known = table(k=1, beta=1, replicas=1, replicas_success=1)
    known.on_contact(contact(far(0)), 0.0)
    known.on_contact(contact(far(1)), 1.0)

    known.on_failure(raw(far(0)))
    assert ids(known) == [far(0)]

    known.on_failure(raw(far(0)))
    assert ids(known) == [far(1)]


def test_an_answer_makes_good_a_failure():
    known = table()
    known.on_contact(contact(1), 0.0)
    known.on_failure(raw(1))

    known.on_contact(contact(1), 2.0)
    known.on_failure(raw(1))

    assert ids(known) == [1]


def test_failing_or_dropping_a_stranger_changes_nothing():
    known = table()
    known.on_contact(contact(1), 0.0)

    known.on_failure(raw(2))
    known.on_failure(raw(far(0)))
    known.drop(raw(3))
    known.drop(raw(far(0)))

    assert ids(known) == [1]


def test_a_peer_that_moved_is_known_by_its_new_address():
    known = table()
    known.on_contact(contact(1, port=1), 0.0)

    known.on_contact(contact(1, port=2), 0.1)

    entry = known.get(raw(1))
    assert entry is not None
    assert entry.contact == contact(1, port=2)
    assert len(known) == 1


def test_a_talkative_contact_is_noted_once_a_second():
    known = table()
    for heard_s in (0.0, 0.5, 1.5):
        known.on_contact(contact(1), heard_s)

    entry = known.get(raw(1))
    assert entry is not None
    assert entry.heard_s == 1.5
    assert known.get(raw(2)) is None


def test_one_wide_network_gets_ten_places_in_the_table():
    """Hosts of different /24s of one /16, in different buckets."""
    known = table()
    for i in range(14):
        known.on_contact(contact(1 << i, host=f"8.8.{i}.1"), float(i))

    assert len(known) == 10


def test_a_place_that_a_network_leaves_is_free_for_it_again():
    known = table(k=1, beta=1, replicas=1, replicas_success=1, per_wide_net=1, strikes=1)
    known.on_contact(contact(far(0), host="8.8.1.1"), 0.0)
    known.on_contact(contact(far(1), host="9.9.9.9"), 1.0)
    known.on_contact(contact(1, host="8.8.2.1"), 2.0)
    assert ids(known) == [far(0)]

    known.drop(raw(far(0)))
    known.on_contact(contact(1, host="8.8.2.1"), 3.0)

    assert ids(known) == [far(1), 1]


def test_newcomer_whose_network_has_its_share_goes_on_waiting():
    known = table(k=1, beta=1, replicas=1, replicas_success=1, per_wide_net=1)
    known.on_contact(contact(far(0), host="9.9.9.9"), 0.0)
    known.on_contact(contact(far(1), host="8.8.1.1"), 1.0)  # waits
    known.on_contact(contact(1, host="8.8.2.1"), 2.0)  # takes the network's only place

    known.drop(raw(far(0)))

    assert ids(known) == [1]


def test_private_networks_have_no_caps():
    known = table()
    for i in range(20):
        known.on_contact(contact(far(i), host="192.168.1.7"), 0.0)

    assert len(known) == 20


@pytest.mark.parametrize(
    ("host", "near", "wide"),
    [
        ("8.8.8.8", "8.8.8.0/24", "8.8.0.0/16"),
        ("2001:4860:4860::8888", "2001:4860:4860::/48", "2001:4860::/32"),
        ("127.0.0.1", "", ""),
        ("10.1.2.3", "", ""),
        ("::1", "", ""),
        ("fe80::1", "", ""),
        ("gpu7", "", ""),
        ("a.b.example.com", "example.com", "example.com"),
        ("Example.com.", "example.com", "example.com"),
    ],
)
def test_hosts_belong_to_networks(host, near, wide):
    assert networks(host) == (near, wide)


numbers = st.integers(1, 2**256 - 1)


@given(st.lists(numbers, unique=True, max_size=60), numbers, st.integers(1, 25))
def test_nearest_are_the_closest_of_all_that_are_known(numbers_known, target, count):
    known = table()
    for number in numbers_known:
        known.on_contact(contact(number), 0.0)

    found = [each.number for each in known.nearest(raw(target), count)]

    assert found == sorted(ids(known), key=lambda number: number ^ target)[:count]


@given(
    st.lists(st.tuples(st.integers(1, 40), st.sampled_from(["heard", "failed", "drop"]))),
    st.integers(1, 4),
)
def test_no_live_contact_is_dropped_for_a_newcomer(history, k):
    """Only two failures in a row, or a breach of the protocol, ever cost a place."""
    known = table(k=k, beta=1, replicas=1, replicas_success=1)
    strikes: dict[int, int] = {}
    for tick, (number, event) in enumerate(history):
        before = set(ids(known))
        leaves = set()
        if event == "heard":
            known.on_contact(contact(number), float(tick))
            strikes[number] = 0
        elif event == "failed":
            known.on_failure(raw(number))
            strikes[number] = strikes.get(number, 0) + (number in before)
            leaves = {number} if strikes[number] >= 2 else set()
        else:
            known.drop(raw(number))
            leaves = {number}
        strikes.update(dict.fromkeys(leaves, 0))

        assert before - leaves <= set(ids(known))
        assert leaves.isdisjoint(ids(known))


# What is certain


def test_nothing_is_sure_before_we_looked_round():
    known = table()
    known.on_contact(contact(1), 0.0)

    assert not known.sure(raw(5), known.nearest(raw(5), 8), 8, 0.0)


def test_in_a_small_swarm_everything_is_sure():
    """A lookup that asked all of the k closest, and found fewer than k, found everybody."""
    known = table()
    members = [contact(1), contact(200), contact(far(3)), contact(far(1 << 100))]
    for each in members:
        known.on_contact(each, 0.0)
    known.on_refresh(OWN.raw, [each.peer.raw for each in members], 1.0)

    for key in (raw(5), raw(far(7)), OWN.raw):
        assert known.sure(key, known.nearest(key, 8), 8, 2.0)


def test_certainty_ends_when_it_is_old():
    known = table()
    known.on_contact(contact(1), 0.0)
    known.on_refresh(OWN.raw, [raw(1)], 0.0)

    near = known.nearest(raw(5), 8)

    assert known.sure(raw(5), near, 8, 2 * PERIOD_S)
    assert not known.sure(raw(5), near, 8, 2 * PERIOD_S + 1)


def test_full_bucket_is_never_sure():
    known = table()
    for i in range(20):
        known.on_contact(contact(far(i)), 0.0)
    known.on_refresh(OWN.raw, [], 1.0)
    key = raw(far(99))

    assert not known.sure(key, known.nearest(key, 8), 8, 1.0)


def test_a_large_swarm_is_sure_close_to_ourselves_only():
    known = table()
    near = list(range(1, 21))  # k of them, within 5 bits of us
    for number in near:
        known.on_contact(contact(number), 0.0)
    known.on_contact(contact(far(1)), 0.0)
    known.on_refresh(OWN.raw, [raw(number) for number in near], 1.0)

    close, distant = raw(1), raw(far(5))

    assert known.sure(close, known.nearest(close, 3), 3, 1.0)
    assert not known.sure(distant, known.nearest(distant, 3), 3, 1.0)


def test_a_refreshed_bucket_is_sure_if_the_lookup_saw_beyond_it():
    known = table()
    inside, outside = [far(1), far(2)], list(range(1, 19))
    for number in inside + outside:
        known.on_contact(contact(number), 0.0)
    key = raw(far(9))

    known.on_refresh(key, [raw(number) for number in inside + outside], 1.0)
    assert known.sure(key, known.nearest(key, 2), 2, 1.0)
    assert not known.sure(key, known.nearest(key, 3), 3, 1.0)


def test_a_lookup_that_saw_only_the_bucket_itself_makes_nothing_sure():
    known = table()
    everybody = [far(i) for i in range(20)]
    for number in everybody[:5]:
        known.on_contact(contact(number), 0.0)

    known.on_refresh(raw(far(9)), [raw(number) for number in everybody], 1.0)

    key = raw(far(9))
    assert not known.sure(key, known.nearest(key, 2), 2, 1.0)


def test_a_peer_that_was_turned_away_makes_the_table_unsure():
    known = table(per_wide_net=1)
    known.on_contact(contact(far(0), host="8.8.1.1"), 0.0)
    known.on_refresh(OWN.raw, [raw(far(0))], 1.0)
    key = raw(far(7))
    assert known.sure(key, known.nearest(key, 8), 8, 2.0)

    known.on_contact(contact(far(1), host="8.8.2.1"), 3.0)

    assert not known.sure(key, known.nearest(key, 8), 8, 3.0)


# What is to be refreshed


def test_unrefreshed_buckets_are_looked_into():
    """One id in each bucket up to the deepest."""
    known = table()
    known.on_contact(contact(far(0)), 0.0)
    known.on_contact(contact(1 << 252), 0.0)

    targets = known.stale(0.0, random.Random(1))

    assert [known.index(target) for target in targets] == [0, 1, 2, 3]
    assert known.next_refresh_s() == float("-inf")


def test_a_refreshed_bucket_rests():
    known = table()
    known.on_contact(contact(far(0)), 0.0)
    everybody = [raw(far(i)) for i in range(20)]

    known.on_refresh(raw(far(1)), everybody, 5.0)

    assert known.next_refresh_s() == 5.0 + PERIOD_S
    assert known.stale(4.0 + PERIOD_S, random.Random(1)) == []
    assert len(known.stale(5.0 + PERIOD_S, random.Random(1))) == 1


def test_an_empty_table_has_nothing_to_refresh():
    assert table().stale(0.0, random.Random(1)) == []
    assert table().next_refresh_s() is None


def test_the_deepest_bucket_has_one_id():
    known = table()
    known.on_contact(contact(1), 0.0)

    assert known.stale(0.0, random.Random(1))[-1] == raw(1)


def test_a_simulation_fills_a_bucket_at_once():
    known = table()

    known.fill(0, [neighbour(contact(far(i)), 0.0) for i in range(25)])

    assert len(known) == 20


def test_who_was_where_another_peer_is_found_is_dropped():
    """A node that was started again with another key: nobody is told of the old one any more."""
    known = table()
    old, new = contact(far(0), port=7), contact(far(1), port=7)
    elsewhere = contact(far(2), port=8)
    known.on_contact(old, 0.0)
    known.on_contact(elsewhere, 0.0)

    known.on_successor(new)
    assert [each.contact for each in known] == [elsewhere]

    known.on_contact(new, 1.0)
    known.on_successor(new)
    assert {each.contact for each in known} == {elsewhere, new}
