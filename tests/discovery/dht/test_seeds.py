"""Whom we greet at the start, and for ever."""

import itertools
import random

from p2pswarm.base.ids import Address, Contact, PeerId
from p2pswarm.discovery.dht.config import DhtConfig
from p2pswarm.discovery.dht.upkeep import SEEDS_MAX, Seeds

CONFIG = DhtConfig()
PEER, OTHER = PeerId(b"p" * 32), PeerId(b"o" * 32)
OWN = Contact(PeerId(bytes(32)), Address("10.0.0.1", 1))


def seed(port: int, peer: PeerId | None = None) -> Contact:
    return Contact(peer, Address("10.0.0.2", port))


def started(count: int = 3) -> Seeds:
    seeds = Seeds(OWN, CONFIG, random.Random(1))
    seeds.start([seed(port) for port in range(1, count + 1)], 0.0)
    return seeds


def test_all_are_greeted_at_once():
    seeds = Seeds(OWN, CONFIG, random.Random(1))

    assert seeds.start([seed(1), seed(2)], 0.0) == [seed(1), seed(2)]
    assert seeds.due(0.0) == []


def test_we_are_no_seed_of_our_own():
    """By address, by id, or as it turns out later."""
    seeds = Seeds(OWN, CONFIG, random.Random(1))
    named = [Contact(None, OWN.address), seed(2, OWN.peer), seed(3)]

    assert seeds.start(named, 0.0) == [seed(3)]
    seeds.on_own_address(seed(3).address)
    seeds.on_own_address(seed(4).address)

    assert seeds.due(1e9) == []
    assert seeds.next_deadline_s() is None


def test_only_so_many_seeds_are_taken():
    many = [seed(port) for port in range(1, SEEDS_MAX + 2)]

    assert Seeds(OWN, CONFIG, random.Random(1)).start(many, 0.0) == many[:SEEDS_MAX]


def test_all_are_greeted_again_for_a_minute_then_one_at_random():
    seeds = started()
    rounds = []
    for _ in range(30):
        now_s = seeds.next_deadline_s()
        assert now_s is not None
        rounds.append((now_s, seeds.due(now_s)))

    young = [greeted for now_s, greeted in rounds if now_s <= 60]
    later = [greeted for now_s, greeted in rounds if now_s > 60]
    assert all(len(greeted) == 3 for greeted in young)
    assert 10 <= len(young) <= 15
    assert all(len(greeted) == 1 for greeted in later)
    assert {greeted[0] for greeted in later} == {seed(1), seed(2), seed(3)}
    assert 240 <= rounds[-1][0] - rounds[-2][0] <= 360


def test_a_seed_that_answered_is_greeted_by_its_id():
    """So that the link that is up is used; who fell silent may be somebody else next time."""
    seeds = started(1)

    seeds.on_answer(seed(1).address, PEER, 0.0)
    seeds.on_answer(seed(9).address, PEER, 0.0)
    assert seeds.due(10.0) == [seed(1, PEER)]

    seeds.on_answer(seed(1).address, None, 10.0)
    assert seeds.due(20.0) == [seed(1)]


def greetings(seeds: Seeds, until_s: float) -> list[float]:
    """The times at which somebody is greeted until then; nobody answers."""
    times = []
    while (now_s := seeds.next_deadline_s()) is not None and now_s < until_s:
        for each in seeds.due(now_s):
            times.append(now_s)
            seeds.on_answer(each.address, None, now_s)
    return times


def calm(count: int = 1) -> Seeds:
    """Seeds of a node that is no longer young; each has answered."""
    seeds = started(count)
    for port in range(1, count + 1):
        seeds.on_answer(seed(port).address, PEER if port == 1 else OTHER, 0.0)
    while (now_s := seeds.next_deadline_s()) < 1000.0:
        seeds.due(now_s)
    return seeds


def test_a_seed_whose_link_ended_is_greeted_within_seconds_until_it_answers():
    """Without an id: it may have come back as somebody else."""
    seeds = calm()
    seeds.on_loss(PEER, 1000.0)

    first_s = seeds.next_deadline_s()
    assert first_s <= 1000.0 + CONFIG.seeds_silent_every_s
    assert seeds.due(first_s) == [seed(1)]
    times = greetings(seeds, 1075.0)
    assert max(b - a for a, b in itertools.pairwise([first_s, *times])) <= 6.0

    seeds.on_answer(seed(1).address, OTHER, 1075.0)
    seeds.due(1082.0)
    assert seeds.next_deadline_s() > 1100.0


def test_a_seed_that_stays_away_is_greeted_less_often_but_for_ever():
    seeds = calm()
    seeds.on_loss(PEER, 1000.0)
    times = greetings(seeds, 10_000.0)

    late = [b - a for a, b in itertools.pairwise(times) if a > 1000.0 + CONFIG.seeds_silent_s + 10]
    assert 10.0 < sum(late) / len(late) <= 1.2 * CONFIG.seeds_late_every_s


def test_who_is_no_seed_is_not_greeted_when_it_is_lost():
    seeds = calm()
    before_s = seeds.next_deadline_s()

    seeds.on_loss(OTHER, 1000.0)

    assert seeds.next_deadline_s() == before_s


def test_of_several_seeds_only_the_silent_ones_are_greeted_so_often():
    seeds = calm(2)
    seeds.on_loss(PEER, 1000.0)

    assert seeds.due(seeds.next_deadline_s()) == [seed(1)]


def test_a_seed_that_hangs_up_again_and_again_is_not_dialled_each_time_at_once():
    """It has too many links: of 2,000 nodes some 60 a second would come back."""
    waits = []
    for number in range(50):
        seeds = Seeds(OWN, CONFIG, random.Random(number))
        seeds.start([seed(1)], -1000.0)
        seeds.on_answer(seed(1).address, PEER, 0.0)
        seeds.due(0.0)
        seeds.on_loss(PEER, 0.0)
        seeds.due(5.0)
        seeds.on_answer(seed(1).address, PEER, 5.0)
        seeds.due(12.0)
        seeds.on_loss(PEER, 12.0)
        waits.append(seeds.next_deadline_s() - 12.0)

    assert sum(waits) / len(waits) > CONFIG.seeds_all_s / 4
