"""A crowd of ids next to a key is seen, chance is not taken for one, and a region has the rest."""

import random

import pytest
from discovery.dht.harness import CARDS, CONFIG, KEY, OWN, contact, contacts
from hypothesis import given
from hypothesis import strategies as st

from p2pswarm.base.ids import Address, Contact, PeerId
from p2pswarm.discovery.dht.call_outcomes import TimeoutEstimator
from p2pswarm.discovery.dht.crowding import (
    CROWDED,
    CROWDED_S,
    KEYS_MAX,
    PARTS,
    REGION_MAX,
    REGION_PEERS,
    REGION_S,
    Crowd,
    CrowdedKeys,
    Spread,
    closest_of,
    crowd_within,
    distances_to,
    expected_within,
    members,
    points_around,
    size_of,
)
from p2pswarm.discovery.dht.lookup import Lookup, LookupOptions
from p2pswarm.discovery.dht.routing_table import ID_BITS, Table
from p2pswarm.discovery.dht.unverified_contacts import UnverifiedContacts

ALL = 1 << ID_BITS


def nearest_by_chance(size: int, rng: random.Random, count: int = 20) -> list[int]:
    """The distances of the closest of so many honest peers."""
    return sorted(rng.getrandbits(ID_BITS) for _ in range(size))[:count]


@pytest.mark.parametrize("size", [30, 300, 2000])
def test_chance_is_hardly_ever_taken_for_a_crowd(size):
    rng = random.Random(1)

    spreads = [Spread.of(nearest_by_chance(size, rng), size) for _ in range(1000)]

    assert spreads.count(Spread.CROWDED) <= 3
    assert spreads.count(Spread.DENSE) <= 200
    misjudged = [Spread.of(nearest_by_chance(size, rng), 0.6 * size) for _ in range(1000)]
    assert misjudged.count(Spread.CROWDED) <= 30


@pytest.mark.parametrize("ground", [8, 20, 200])
@pytest.mark.parametrize("size", [11, 100, 2000])
def test_ids_closer_than_all_honest_ones_are_a_crowd_or_leave_room_for_them(size, ground):
    """Of 300 keys, at most three have neither: no honest peer among the holders, and no crowd."""
    rng, hidden = random.Random(2), 0
    for _ in range(300):
        honest = nearest_by_chance(size, rng)
        near = sorted(rng.randrange(honest[0]) for _ in range(ground))
        spread = Spread.of(sorted(near + honest)[:20], size)
        holders = sorted(near + honest)[: 20 if spread is Spread.DENSE else 8]
        hidden += spread is not Spread.CROWDED and not set(holders) & set(honest)

    assert hidden <= 3


@pytest.mark.parametrize("radius", [0.5, 1.0, 2.0, 4.0, 8.0, 16.0])
def test_scattered_ids_hide_about_one_key_of_a_hundred(radius):
    rng, size, hidden = random.Random(3), 2000, 0
    for _ in range(300):
        honest = nearest_by_chance(size, rng, 40)
        near = [rng.randrange(int(radius * ALL / size)) for _ in range(20)]
        spread = Spread.of(sorted(near + honest)[:20], size)
        holders = sorted(near + honest)[: 20 if spread is Spread.DENSE else 8]
        hidden += spread is not Spread.CROWDED and not set(holders) & set(honest)

    assert hidden <= 6


def test_few_peers_are_no_crowd():
    assert Spread.of([], 1000.0) is Spread.EVEN
    assert Spread.of([1] * 7, 1000.0) is Spread.EVEN
    assert Spread.of([1] * 8, 1000.0) is Spread.CROWDED


@given(st.binary(min_size=32, max_size=32), st.floats(1, 1e6), st.integers())
def test_points_lie_in_all_parts_of_the_region_and_cannot_be_foreseen(key, size, seed):
    rng = random.Random(seed)

    points = points_around(key, size, rng)

    number = int.from_bytes(key)
    far = max(int.from_bytes(each) ^ number for each in points)
    expected = size * 2 ** far.bit_length() / ALL
    assert min(size, REGION_PEERS) <= expected <= max(size, 2 * REGION_PEERS)
    parts = {int.from_bytes(each) >> (far.bit_length() - 3) for each in points}
    assert len(parts) == PARTS
    assert not set(points) & set(points_around(key, size, rng))
    amid = closest_of(key, points)
    assert all(int.from_bytes(amid) ^ number <= int.from_bytes(each) ^ number for each in points)
    assert amid in points


def a_full_table(size: int, seed: int, near: list[int] | None = None) -> Table:
    """The table of a node that knows the swarm well, and refreshed all of its buckets."""
    rng = random.Random(seed)
    table = Table(PeerId(OWN), CONFIG)
    for number in [rng.getrandbits(ID_BITS) for _ in range(size)] + (near or []):
        table.on_contact(Contact(PeerId(number.to_bytes(32)), Address("10.0.0.1", 1)), 0.0)
    for bit in range(table.depth):
        at = int.from_bytes(OWN) ^ 1 << ID_BITS - 1 - bit
        table.on_refresh(at.to_bytes(32), [], 0.0)
        table.on_refresh(at.to_bytes(32), [OWN] * CONFIG.k, 0.0)
    return table


@pytest.mark.parametrize("size", [5, 30, 300, 3000])
def test_a_table_tells_about_how_large_the_swarm_is(size):
    sizes = sorted(size_of(a_full_table(size, seed)) for seed in range(9))

    assert 0.6 * size <= sizes[4] <= 1.7 * size
    assert 0.3 * size <= sizes[0]
    assert sizes[-1] <= 3 * size


def test_ids_next_to_us_do_not_make_the_swarm_look_larger():
    own = int.from_bytes(OWN)
    crowd = [own ^ number for number in range(1, 200)]

    for size in (30, 300, 3000):
        assert size_of(a_full_table(size, 1, crowd)) <= 3 * size


def test_a_newcomer_counts_its_neighbours():
    empty = Table(PeerId(OWN), CONFIG)
    assert size_of(empty) == 1.0
    for number in range(5):
        empty.on_contact(contact(1 << 250 + number), 0.0)
    assert size_of(empty) == 6.0


def test_crowded_keys_are_remembered_for_a_while():
    keys, region = CrowdedKeys(), contacts(1, 2)
    keys.add(KEY, 0.0)
    keys.on_region(KEY, region, 1.0)
    keys.on_region(OWN, region, 1.0)

    assert keys.holds(KEY, CROWDED_S - 1)
    assert not keys.holds(KEY, CROWDED_S)
    assert not keys.holds(OWN, 1.0)
    assert keys.region(KEY, REGION_S) == region
    assert keys.region(KEY, REGION_S + 1) == []
    assert keys.region(OWN, 1.0) == []
    keys.add(KEY, CROWDED_S)
    assert keys.holds(KEY, CROWDED_S + 1)


def test_few_crowded_keys_are_remembered():
    keys = CrowdedKeys()
    for number in range(3 * KEYS_MAX):
        keys.add(number.to_bytes(32), 0.0)
        keys.on_region(number.to_bytes(32), contacts(1), 0.0)

    assert len(keys._seen_s) == KEYS_MAX
    assert keys.region(bytes(32), 0.0) == []


def test_members_are_those_of_all_parts_once_in_no_order():
    found = [contacts(1, 2, 3), contacts(3, 4), contacts(*range(100, 100 + 2 * REGION_MAX))]

    some = members(found[:2], random.Random(1))
    assert sorted(some) == contacts(1, 2, 3, 4)
    assert len(members(found, random.Random(1))) == REGION_MAX
    orders = {tuple(members(found[:2], random.Random(seed))) for seed in range(20)}
    assert len(orders) > 5
    assert distances_to(KEY, contacts(5, 6)) == [5, 6]


# In a lookup

TABLE = contacts(*range(1, 21))


def a_lookup(*start: Contact, size: float, **options: object) -> Lookup:
    plan = LookupOptions(width=20, settle=8, patience_s=5.0, size=size, **options)  # type: ignore[arg-type]
    lookup = Lookup(KEY, OWN, plan, TimeoutEstimator(CONFIG), 0.0, UnverifiedContacts(CARDS))
    lookup.on_contacts(start)
    return lookup


def test_a_lookup_that_meets_a_crowd_ends_and_says_so():
    lookup = a_lookup(*TABLE, size=1000.0)
    answered = 0
    while asks := lookup.drain(0.0):
        for each in asks:
            if not lookup.finished:
                lookup.on_response(each.peer.raw, [])
                answered += 1

    assert lookup.crowded
    assert answered == 8


def test_a_crowd_that_a_liar_has_made_up_is_none():
    """They never answer, so that nobody is made to look at a whole region."""
    liar = contact(1 << 255)
    lookup = a_lookup(liar, size=1000.0)
    lookup.drain(0.0)
    lookup.on_response(liar.peer.raw, TABLE)
    while asks := lookup.drain(0.0):
        for each in asks:
            lookup.on_failure(each.peer.raw)

    assert lookup.finished
    assert not lookup.crowded


def test_a_lookup_that_is_closed_asks_nobody_else():
    lookup = a_lookup(*TABLE[:2], size=0.0, closed=True)
    assert sorted(lookup.drain(0.0)) == TABLE[:2]

    lookup.on_response(TABLE[0].peer.raw, TABLE[5:])
    lookup.on_response(TABLE[1].peer.raw, TABLE[5:])

    assert lookup.drain(0.0) == []
    assert lookup.finished
    assert lookup.responders(20) == TABLE[:2]


@given(st.floats(1, 1e6))
def test_a_crowd_takes_the_place_of_few_honest_peers_and_of_no_small_swarm(size):
    expected = expected_within(crowd_within(size), size)

    assert expected <= max(CROWDED.values()) * 1.001
    assert expected <= size / 8 * 1.001
    assert expected > 0.1


def test_a_lookup_that_goes_round_a_crowd_asks_nobody_in_it():
    crowd, others = TABLE, contacts(*(1 << 250 | number for number in range(3)))
    lookup = a_lookup(*crowd[:2], *others[:2], size=0.0, shunned=Crowd(KEY, 1 << 200))

    asked = lookup.drain(0.0)
    lookup.on_response(others[0].peer.raw, [*crowd, *others])
    asked += lookup.drain(0.0)

    assert sorted(asked) == others
    assert all(lookup.shuns(each) for each in crowd)
    assert not lookup.shuns(Contact(None, Address("seed.example.org", 1)))
    assert not a_lookup(size=0.0).shuns(crowd[0])


def public(number: int, host: str) -> Contact:
    return Contact(PeerId(number.to_bytes(32)), Address(host, 4000))


def test_those_whom_a_liar_invents_hold_a_lookup_up_no_longer_than_its_credit():
    """A liar's ids are closer than all others; an honest teller's peers are asked all the same."""
    liar, honest = public(1 << 250, "11.0.0.1"), public(1 << 251, "12.0.0.1")
    invented = [public(number, f"13.{number}.0.1") for number in range(1, 21)]
    real = [public(1000 + number, f"14.{number}.0.1") for number in range(1, 21)]
    lookup = a_lookup(liar, honest, size=0.0)
    lookup.drain(0.0)
    lookup.on_response(liar.peer.raw, invented)
    lookup.on_response(honest.peer.raw, real)

    asked: list[Contact] = []
    for _ in range(20):
        asks = [each for each in lookup.drain(0.0) if each is not None]
        asked += asks
        for each in asks:
            if each in real:
                lookup.on_response(each.peer.raw, [])
        if lookup.finished:
            break

    assert len([each for each in asked if each in real]) >= 8
    assert len([each for each in asked if each in invented]) <= 4
