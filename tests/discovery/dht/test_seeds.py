"""Whom we greet at the start, and for ever."""

import random

from p2pswarm.base.ids import Address, Contact, PeerId
from p2pswarm.discovery.dht.config import DhtConfig
from p2pswarm.discovery.dht.upkeep import SEEDS_MAX, Seeds

CONFIG = DhtConfig()
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
    peer = PeerId(b"p" * 32)

    seeds.on_answer(seed(1).address, peer)
    seeds.on_answer(seed(9).address, peer)
    assert seeds.due(10.0) == [seed(1, peer)]

    seeds.on_answer(seed(1).address, None)
    assert seeds.due(20.0) == [seed(1)]
