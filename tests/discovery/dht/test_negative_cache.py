"""What was not found is not looked for again at once."""

from hypothesis import given
from hypothesis import strategies as st

from p2pswarm.discovery.dht.negative_cache import NegativeCache


def test_a_miss_is_remembered_for_a_while():
    misses = NegativeCache(misses_max=2, keep_s=5.0)
    assert not misses.holds(b"a", 0.0)

    misses.add(b"a", 1.0)

    assert misses.holds(b"a", 5.9)
    assert not misses.holds(b"a", 6.0)
    assert not misses.holds(b"b", 1.0)


def test_a_miss_is_forgotten_when_the_key_may_be_there():
    misses = NegativeCache(misses_max=2, keep_s=5.0)
    misses.add(b"a", 0.0)

    misses.forget(b"a")
    misses.forget(b"unknown")

    assert not misses.holds(b"a", 0.0)


def test_the_miss_noted_longest_ago_makes_room():
    misses = NegativeCache(misses_max=2, keep_s=5.0)
    for key in (b"a", b"b", b"a", b"c"):
        misses.add(key, 0.0)

    assert [misses.holds(key, 0.0) for key in (b"a", b"b", b"c")] == [True, False, True]


@given(st.lists(st.tuples(st.binary(max_size=1), st.floats(0, 1e9))), st.integers(0, 5))
def test_it_is_bounded_whatever_is_missed(history, misses_max):
    misses = NegativeCache(misses_max, keep_s=5.0)
    for key, now_s in history:
        misses.add(key, now_s)
        held = [misses.holds(each, float("-inf")) for each in dict(history)]
        assert sum(held) <= misses_max
