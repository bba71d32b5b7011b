"""Whoever answers lookups makes nobody dial a third party twice, and hides nobody."""

from collections import Counter

import pytest
from discovery.dht.harness import CARDS, CONFIG, KEY, OWN
from hypothesis import given
from hypothesis import strategies as st

from p2pswarm.base.ids import Address, Contact, PeerId
from p2pswarm.discovery.dht.call_outcomes import TimeoutEstimator
from p2pswarm.discovery.dht.lookup import CLAIMS_MAX, Lookup, LookupOptions
from p2pswarm.discovery.dht.unverified_contacts import (
    HOSTS_MAX,
    JUDGED_S,
    NAMED_REFUTED_S,
    NAMES_LEAST,
    TELLERS_MAX,
    UnverifiedContacts,
    Word,
    teller_of,
)

VICTIM = "9.9.9.9"
ALONE = "t"  # a network of tellers


def named(number: int, host: str = VICTIM, port: int = 4000) -> Contact:
    return Contact(PeerId(number.to_bytes(32)), Address(host, port))


def dialled(
    unverified: UnverifiedContacts,
    one: Contact,
    teller: str = ALONE,
    now_s: float = 1.0,
    *,
    found: bool = False,
    somebody: bool | None = None,
) -> Word:
    word = unverified.word(one, teller, now_s)
    if word is Word.DIAL:
        unverified.begin(one, teller, now_s)
        others_answer(unverified, now_s)
        unverified.on_outcome(
            one, now_s, found=found, somebody=found if somebody is None else somebody
        )
    return word


def others_answer(unverified: UnverifiedContacts, now_s: float) -> None:
    unverified.on_outcome(named(10**6, "1.1.1.1"), now_s, found=True, somebody=True)


def test_a_host_is_dialled_in_vain_once_an_hour_on_one_networks_word():
    unverified = UnverifiedContacts(CARDS)

    assert dialled(unverified, named(1)) is Word.DIAL
    assert dialled(unverified, named(2), now_s=2.0) is Word.IGNORE
    assert dialled(unverified, named(1, port=22), now_s=NAMED_REFUTED_S) is Word.IGNORE
    assert dialled(unverified, named(1), now_s=NAMED_REFUTED_S + 1) is Word.DIAL


def test_another_network_may_name_the_same_host():
    unverified = UnverifiedContacts(CARDS)
    dialled(unverified, named(1), "liar")

    assert dialled(unverified, named(2), "honest", found=True) is Word.DIAL
    assert dialled(unverified, named(3), "honest") is Word.DIAL


def test_while_a_host_is_dialled_others_there_wait():
    unverified = UnverifiedContacts(CARDS)
    unverified.begin(named(1), ALONE, 1.0)

    assert unverified.word(named(2), ALONE, 1.0) is Word.WAIT
    assert unverified.word(named(1), ALONE, 1.0) is Word.DIAL  # the same dial
    assert unverified.word(named(2), "another", 1.0) is Word.DIAL
    unverified.on_outcome(named(1), 2.0, found=True, somebody=True)
    assert unverified.word(named(2), ALONE, 2.0) is Word.DIAL


def test_where_another_peer_is_the_same_port_is_not_dialled_again_and_others_are():
    """A machine may have several nodes; and who is named under many ids is a third party."""
    unverified = UnverifiedContacts(CARDS)

    assert dialled(unverified, named(1), found=False, somebody=True) is Word.DIAL
    assert dialled(unverified, named(2), now_s=2.0) is Word.IGNORE
    assert dialled(unverified, named(2, port=4001), now_s=2.0, found=True) is Word.DIAL


def test_who_names_few_that_are_there_is_not_believed_for_a_minute():
    unverified = UnverifiedContacts(CARDS)
    for number in range(NAMES_LEAST):
        assert dialled(unverified, named(number, f"9.9.{number}.9")) is Word.DIAL

    elsewhere = named(99, "9.9.99.9")
    assert unverified.word(elsewhere, ALONE, 1.0) is Word.IGNORE
    assert unverified.word(elsewhere, "another", 1.0) is Word.DIAL
    assert unverified.word(elsewhere, ALONE, 1.0 + JUDGED_S) is Word.DIAL


def test_a_teller_in_a_swarm_of_which_half_has_left_is_believed():
    unverified = UnverifiedContacts(CARDS)

    for number in range(50):
        one = named(number, f"9.9.{number}.9")
        assert dialled(unverified, one, found=number % 2 == 0) is Word.DIAL


def test_nothing_is_held_against_anybody_while_our_own_network_fails():
    unverified = UnverifiedContacts(CARDS)
    others_answer(unverified, 0.5)
    for number in range(20):
        unverified.begin(named(number, f"9.9.{number}.9"), ALONE, 1.0)
        unverified.on_outcome(named(number, f"9.9.{number}.9"), 2.0, found=False, somebody=False)

    assert not unverified._refuted_s
    assert not unverified._tellers
    assert unverified.word(named(1), ALONE, 3.0) is Word.DIAL


def test_whom_we_have_found_ourselves_is_asked_whoever_names_it():
    home = named(1)
    unverified = UnverifiedContacts(CARDS, lambda contact: contact == home)
    assert dialled(unverified, named(2)) is Word.DIAL

    assert dialled(unverified, home) is Word.DIAL
    assert dialled(unverified, named(1, port=4001)) is Word.IGNORE


@pytest.mark.parametrize(
    ("target", "teller", "network"),
    [
        ("9.9.9.9", "8.8.8.8", "8.8.8.0/24"),
        ("9.9.9.9", "2600:1:2:3::4", "2600:1:2::/48"),
        ("a.example.org", "8.8.8.8", "8.8.8.0/24"),
        ("9.9.9.9", "seed.example.org", "seed.example.org"),
        ("9.9.9.9", "10.0.0.1", "10.0.0.0/24"),
        ("10.0.0.2", "8.8.8.8", ""),
        ("127.0.0.1", "127.0.0.1", ""),
    ],
)
def test_it_is_a_network_that_is_believed_or_not(target, teller, network):
    assert teller_of(named(1, target), named(2, teller)) == network
    assert teller_of(named(1, target), None) == ""


def test_what_is_remembered_is_bounded():
    unverified = UnverifiedContacts(CARDS)
    for number in range(HOSTS_MAX + 300):
        host = f"{11 + number // 65536}.{number // 256 % 256}.{number % 256}.1"
        dialled(unverified, named(number, host), f"teller {number}")

    assert len(unverified._refuted_s) <= HOSTS_MAX
    assert len(unverified._tellers) <= TELLERS_MAX


events = st.lists(
    st.tuples(
        st.integers(0, 5),
        st.sampled_from([VICTIM, "9.9.9.8", "2600:1::1", "2600:1::2"]),
        st.sampled_from(["a", "b"]),
        st.sampled_from([0.0, 1.0, 100.0, 4000.0]),
        st.booleans(),
    ),
    max_size=120,
)


@given(events)
def test_whatever_is_told_no_host_is_dialled_twice_in_vain_on_one_word(told):
    unverified, now_s = UnverifiedContacts(CARDS), 0.0
    vain_s: dict[tuple[str, str], float] = {}
    under_way: dict[Contact, str] = {}
    for number, host, teller, pause_s, ends in told:
        now_s += pause_s
        one, place = named(number, host), host[:6] if ":" in host else host
        if unverified.word(one, teller, now_s) is Word.DIAL and one not in under_way:
            assert now_s - vain_s.get((teller, place), -NAMED_REFUTED_S) >= NAMED_REFUTED_S
            unverified.begin(one, teller, now_s)
            under_way[one] = teller
        if ends and under_way:
            over, word_of = under_way.popitem()
            others_answer(unverified, now_s)
            unverified.on_outcome(over, now_s, found=False, somebody=False)
            there = over.address.host
            vain_s[word_of, there[:6] if ":" in there else there] = now_s
        places = Counter((teller, each.address.host) for each, teller in under_way.items())
        assert max(places.values(), default=0) <= 1


# In a lookup

HONEST, LIAR = named(500, "11.0.0.1"), named(600, "12.0.0.1")


def a_lookup(*start: Contact, unverified: UnverifiedContacts | None = None) -> Lookup:
    options = LookupOptions(width=20, settle=3, patience_s=5.0)
    lookup = Lookup(KEY, OWN, options, TimeoutEstimator(CONFIG), 0.0, unverified)
    lookup.on_contacts(start)
    return lookup


def answer(lookup: Lookup, who: Contact, *others: Contact) -> None:
    lookup.on_response(who.peer.raw, others)


def fail(lookup: Lookup, unverified: UnverifiedContacts, who: Contact) -> None:
    others_answer(unverified, 0.1)
    unverified.on_outcome(who, 0.1, found=False, somebody=False)
    lookup.on_failure(who.peer.raw)


def test_a_lookup_dials_a_host_once_though_twenty_ids_are_said_to_be_there():
    unverified = UnverifiedContacts(CARDS)
    lookup = a_lookup(LIAR, unverified=unverified)
    assert lookup.drain(0.0) == [LIAR]
    answer(lookup, LIAR, *[named(number) for number in range(1, 21)])

    assert lookup.drain(0.0) == [named(1)]
    fail(lookup, unverified, named(1))

    assert lookup.drain(0.2) == []
    assert lookup.finished
    again = a_lookup(LIAR, unverified=unverified)
    again.drain(1.0)
    answer(again, LIAR, *[named(number) for number in range(1, 21)])
    assert again.drain(1.0) == []


def test_a_liar_cannot_hide_a_peer_by_naming_it_elsewhere_first():
    unverified = UnverifiedContacts(CARDS)
    lookup = a_lookup(LIAR, HONEST, unverified=unverified)
    lookup.drain(0.0)
    answer(lookup, LIAR, named(1, "9.9.9.1"))
    answer(lookup, HONEST, named(1, "13.0.0.1"))
    assert lookup.drain(0.0) == [named(1, "9.9.9.1")]

    fail(lookup, unverified, named(1, "9.9.9.1"))

    assert lookup.drain(0.2) == [named(1, "13.0.0.1")]


def test_a_peer_that_has_failed_at_one_address_is_asked_at_another_that_is_told_later():
    unverified = UnverifiedContacts(CARDS)
    lookup = a_lookup(LIAR, HONEST, unverified=unverified)
    lookup.drain(0.0)
    answer(lookup, LIAR, named(1, "9.9.9.1"))
    lookup.drain(0.0)
    fail(lookup, unverified, named(1, "9.9.9.1"))

    answer(lookup, HONEST, named(1, "9.9.9.1"))
    assert lookup.drain(0.1) == []
    lookup = a_lookup(LIAR, HONEST, unverified=unverified)
    lookup.drain(0.2)
    answer(lookup, LIAR, named(1, "9.9.9.1"))
    assert lookup.drain(0.2) == []
    answer(lookup, HONEST, named(1, "13.0.0.1"))
    assert lookup.drain(0.2) == [named(1, "13.0.0.1")]


def test_a_lookup_tries_few_addresses_of_one_peer():
    unverified = UnverifiedContacts(CARDS)
    tellers = [named(500 + i, f"{20 + i}.0.0.1") for i in range(6)]
    lookup = a_lookup(*tellers, unverified=unverified)
    lookup.drain(0.0)
    for number, teller in enumerate(tellers):
        answer(lookup, teller, named(1, f"9.9.{number}.1")) if not lookup.finished else None

    tried = 0
    while asks := lookup.drain(0.0):
        tried += len(asks)
        fail(lookup, unverified, asks[0])

    assert tried <= CLAIMS_MAX
