"""Our own values are published again before they expire."""

import random

import pytest

from p2pswarm.discovery.dht.config import DhtConfig
from p2pswarm.discovery.dht.publications import Publication, Publications


def a_value(subkey: bytes = b"a", ttl_s: float = 300.0) -> Publication:
    return Publication(bytes(32), subkey, b"value", 1, ttl_s, 0.0)


def ours(**changes: int) -> Publications:
    return Publications(DhtConfig(**changes), random.Random(1))  # type: ignore[arg-type]


def test_a_value_is_due_after_about_a_third_of_its_life():
    """At 100 s, 20 % earlier or later, so that nodes do not act in step."""
    values = ours()
    dues_s = []
    for i in range(50):
        value = a_value(bytes([i]))
        values.keep(value, 0.0)
        dues_s.append(value.due_s)

    assert all(80 <= due_s <= 120 for due_s in dues_s)
    assert max(dues_s) - min(dues_s) > 20
    assert values.next_deadline_s() == min(dues_s)
    assert values.due(79.0) == []


def test_what_is_due_is_due_again_later():
    values = ours()
    values.keep(a_value(), 0.0)

    assert values.due(150.0) == [a_value_of(values)]
    assert 230 <= values.next_deadline_s() <= 270


def a_value_of(values: Publications) -> Publication:
    return next(iter(values._ours.values()))


def test_a_new_value_takes_the_place_of_the_old():
    values = ours()
    values.keep(a_value(), 0.0)
    values.keep(a_value(ttl_s=30.0), 0.0)

    assert values.next_deadline_s() <= 12


def test_a_withdrawn_value_is_published_no_more():
    values = ours()
    values.keep(a_value(), 0.0)

    values.withdraw(bytes(32), b"a")
    values.withdraw(bytes(32), b"unknown")

    assert values.due(1e9) == []
    assert values.next_deadline_s() is None


def test_more_values_than_any_peer_would_keep_are_refused():
    values = ours(records_per_publisher=1)
    values.keep(a_value(b"a"), 0.0)
    values.keep(a_value(b"a"), 0.0)

    with pytest.raises(ValueError, match="1 values are published already"):
        values.keep(a_value(b"b"), 0.0)
