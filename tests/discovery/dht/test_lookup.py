"""The lookup: it ends, it finds the closest, it never asks too much."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pswarm.base.ids import Address, Contact, PeerId
from p2pswarm.discovery.dht.call_outcomes import TimeoutEstimator
from p2pswarm.discovery.dht.config import DhtConfig
from p2pswarm.discovery.dht.lookup import ASKS_MAX, CANDIDATES_MAX, Lookup, LookupOptions
from p2pswarm.discovery.dht.unverified_contacts import UnverifiedContacts
from p2pswarm.sim.process import UnsignedCards

CONFIG = DhtConfig(alpha=3, alpha_lossy=3)
OWN = (1 << 200).to_bytes(32)
TARGET = bytes(32)  # so that a peer's distance is its number
PATIENCE_S = 5.0
WHERE = Address("10.0.0.1", 1)


def contact(number: int) -> Contact:
    return Contact(PeerId(number.to_bytes(32)), WHERE)


def contacts(*numbers: int) -> list[Contact]:
    return [contact(number) for number in numbers]


def raw(number: int) -> bytes:
    return number.to_bytes(32)


def number(known: Contact) -> int:
    assert known.peer is not None
    return int.from_bytes(known.peer.raw)


def numbers(known: list[Contact]) -> list[int]:
    return [number(each) for each in known]


def lookup_of(*start: int, timeouts: TimeoutEstimator | None = None, **options: int) -> Lookup:
    plan = {"width": 5, "settle": 2, "patience_s": PATIENCE_S, **options}
    limits = LookupOptions(**plan)  # type: ignore[arg-type]
    timeouts = timeouts or TimeoutEstimator(CONFIG)
    lookup = Lookup(TARGET, OWN, limits, timeouts, 0.0, UnverifiedContacts(UnsignedCards()))
    lookup.on_contacts(contacts(*start))
    return lookup


def test_the_closest_are_asked_first_and_no_more_than_alpha():
    lookup = lookup_of(50, 10, 40, 20, 30)

    assert numbers(lookup.drain(0.0)) == [10, 20, 30]
    assert lookup.drain(0.0) == []


def test_a_lookup_without_a_start_is_over():
    lookup = lookup_of()

    assert lookup.drain(0.0) == []
    assert lookup.finished
    assert lookup.next_deadline_s() is None


def test_what_is_learned_is_asked_if_it_is_closer():
    lookup = lookup_of(10, 20, 30, 40)
    lookup.drain(0.0)

    lookup.on_response(raw(10), contacts(5, 60))

    assert numbers(lookup.drain(0.1)) == [5]


def test_it_is_over_when_the_closest_have_answered():
    lookup = lookup_of(10, 20, 30)
    lookup.drain(0.0)

    lookup.on_response(raw(20), [])
    assert not lookup.finished
    lookup.on_response(raw(10), [])

    assert lookup.finished
    assert lookup.drain(0.1) == []
    assert numbers(lookup.closest(3)) == [10, 20, 30]
    assert lookup.responders(5) == [contact(10), contact(20)]


def test_a_failure_is_replaced_and_not_among_the_closest():
    lookup = lookup_of(10, 20, 30, 40)
    lookup.drain(0.0)

    lookup.on_failure(raw(10))

    assert numbers(lookup.drain(0.1)) == [40]
    lookup.on_response(raw(20), [])
    lookup.on_response(raw(30), [])
    assert lookup.finished
    assert numbers(lookup.closest(2)) == [20, 30]


@pytest.mark.parametrize("silent", ["failed", "slow"])
def test_it_is_over_as_soon_as_nobody_closer_is_waited_for(silent):
    lookup = lookup_of(10, 20, 30)
    lookup.drain(0.0)
    lookup.on_response(raw(20), [])
    lookup.on_response(raw(30), [])
    assert not lookup.finished

    if silent == "failed":
        lookup.on_failure(raw(10))
    else:
        lookup.on_deadline(lookup.next_deadline_s())

    assert lookup.finished


def test_a_slow_peer_is_passed_over():
    """At the hedge somebody else is asked, and the slow one does not hold up the end."""
    lookup = lookup_of(10, 20, 30, 40)
    lookup.drain(0.0)
    lookup.on_response(raw(20), [])
    lookup.drain(0.0)
    slow_s = lookup.next_deadline_s()

    lookup.on_deadline(slow_s)

    assert not lookup.finished
    assert lookup.resolved == 4
    lookup.on_response(raw(30), [])
    assert lookup.finished
    assert numbers(lookup.closest(4)) == [20, 30, 10, 40]


def test_a_peer_that_was_asked_later_is_late_later():
    lookup = lookup_of(10, 20, 30, 40)
    lookup.drain(0.0)
    lookup.on_failure(raw(10))
    lookup.drain(0.2)

    lookup.on_deadline(lookup.next_deadline_s())

    assert lookup.resolved == 3
    assert lookup.next_deadline_s() == 0.2 + TimeoutEstimator(CONFIG).hedge_s(raw(40))


def test_what_a_slow_one_says_still_counts():
    lookup = lookup_of(10, 20)
    lookup.drain(0.0)
    lookup.on_deadline(lookup.next_deadline_s())

    lookup.on_response(raw(20), contacts(1))

    assert numbers(lookup.drain(1.0)) == [1]
    lookup.on_response(raw(1), [])
    assert lookup.finished


def test_it_waits_for_the_slow_if_there_is_nobody_else():
    lookup = lookup_of(10)
    lookup.drain(0.0)
    lookup.on_deadline(lookup.next_deadline_s())
    assert lookup.drain(0.5) == []
    assert not lookup.finished

    lookup.on_failure(raw(10))
    lookup.drain(0.6)

    assert lookup.finished
    assert lookup.closest(5) == []


def test_no_lookup_outlasts_its_patience():
    lookup = lookup_of(10)
    lookup.drain(0.0)
    lookup.on_deadline(1.0)
    assert lookup.next_deadline_s() == PATIENCE_S

    lookup.on_deadline(PATIENCE_S)

    assert lookup.finished


def test_stopping_ends_it():
    lookup = lookup_of(10, 20)
    lookup.drain(0.0)

    lookup.stop()

    assert lookup.finished
    assert lookup.drain(0.1) == []


def test_one_is_asked_first_where_one_is_enough():
    lookup = lookup_of(10, 20, 30, first=1)

    assert numbers(lookup.drain(0.0)) == [10]
    assert lookup.drain(0.0) == []
    lookup.on_response(raw(10), [])
    assert numbers(lookup.drain(0.1)) == [20, 30]


def test_the_nearest_by_round_trip_is_chosen_among_the_closest():
    timeouts = TimeoutEstimator(CONFIG)
    timeouts.on_answer(raw(10), 0.1)
    timeouts.on_answer(raw(30), 0.01)
    timeouts.on_answer(raw(40), 0.001)

    lookup = lookup_of(10, 20, 30, 40, timeouts=timeouts, first=1, choice=3)

    assert numbers(lookup.drain(0.0)) == [30]


def test_only_the_closest_that_may_be_alive_are_worth_asking():
    """With a width of two, the third is asked only when one of the two has failed."""
    lookup = lookup_of(10, 20, 30, 40, width=2)

    assert numbers(lookup.drain(0.0)) == [10, 20]
    lookup.on_failure(raw(10))
    assert numbers(lookup.drain(0.0)) == [30]


def test_ourselves_and_contacts_without_an_id_are_not_asked():
    lookup = lookup_of()

    lookup.on_contacts([Contact(None, WHERE), Contact(PeerId(OWN), WHERE)])

    assert lookup.drain(0.0) == []


def test_a_flood_of_contacts_is_forgotten_from_the_far_end():
    lookup = lookup_of(*range(1000, 1000 + CANDIDATES_MAX))

    lookup.on_contacts(contacts(*range(1, 11)))

    assert numbers(lookup.closest(11)) == [*range(1, 11), 1000]
    assert len(lookup.closest(10_000)) == CANDIDATES_MAX
    lookup.on_contacts(contacts(5000))
    assert len(lookup.closest(10_000)) == CANDIDATES_MAX


def test_peers_that_were_asked_are_remembered_in_a_flood():
    lookup = lookup_of(5_000)
    lookup.drain(0.0)

    lookup.on_contacts(contacts(*range(1, CANDIDATES_MAX + 5)))
    lookup.on_response(raw(5_000), [])

    assert lookup.responders(5) == [contact(5_000)]


def test_a_peer_that_invents_ever_closer_contacts_is_stopped():
    """An endless stair of contacts, each closer than the last, ends at the limit."""
    lookup = lookup_of(1 << 150)
    asked = 0
    while asks := lookup.drain(0.0):
        asked += len(asks)
        for each in asks:
            lookup.on_response(raw(number(each)), contacts(number(each) - 1, number(each) - 2))

    assert lookup.finished
    assert asked == ASKS_MAX


networks = st.dictionaries(
    st.integers(1, 500),
    st.tuples(st.booleans(), st.lists(st.integers(1, 500), max_size=8)),
    min_size=1,
    max_size=40,
)


@given(networks, st.data())
def test_it_finds_the_closest_of_all_that_it_could_hear_of(network, data):
    """Whoever is dead, whoever knows whom, and in whatever order they answer."""
    k = data.draw(st.integers(1, 6))
    start = data.draw(st.lists(st.sampled_from(sorted(network)), min_size=1, max_size=5))
    lookup = lookup_of(*start, width=k, settle=k)
    heard_of = set(start)
    waiting: list[int] = []
    asked: list[int] = []

    while not lookup.finished:
        asks = numbers(lookup.drain(0.0))
        asked += asks
        waiting += asks
        assert len(waiting) <= CONFIG.alpha
        if lookup.finished:
            break
        one = waiting.pop(data.draw(st.integers(0, len(waiting) - 1)))
        alive, knows = network.get(one, (False, []))
        if alive:
            heard_of |= set(knows)
            lookup.on_response(raw(one), contacts(*knows))
        else:
            lookup.on_failure(raw(one))

    living = sorted(n for n in heard_of if network.get(n, (False, []))[0])
    assert [int.from_bytes(each.peer.raw) for each in lookup.responders(k)] == living[:k]
    assert len(asked) == len(set(asked))


@given(networks, st.data())
def test_it_ends_however_late_the_answers_are(network, data):
    """Bounded at every moment: alpha prompt requests, as many late ones, each peer once."""
    start = data.draw(st.lists(st.sampled_from(sorted(network)), min_size=1, max_size=5))
    lookup = lookup_of(*start)
    now_s = 0.0
    waiting: list[int] = []
    asked: list[int] = []

    for _ in range(1000):
        asks = numbers(lookup.drain(now_s))
        asked += asks
        waiting += asks
        assert len(waiting) <= 2 * CONFIG.alpha
        if lookup.finished:
            break
        if waiting and data.draw(st.booleans()):
            one = waiting.pop(data.draw(st.integers(0, len(waiting) - 1)))
            alive, knows = network.get(one, (False, []))
            if alive:
                lookup.on_response(raw(one), contacts(*knows))
            else:
                lookup.on_failure(raw(one))
        else:
            now_s = lookup.next_deadline_s()
            lookup.on_deadline(now_s)

    assert lookup.finished
    assert now_s <= PATIENCE_S
    assert len(asked) == len(set(asked))
