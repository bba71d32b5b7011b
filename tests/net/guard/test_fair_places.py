"""Fair places: a crowd displaces its own members, however it spreads."""

from hypothesis import given
from hypothesis import strategies as st

from p2pswarm.net.guard.fair_places import FairPlaces

GROUPS = st.tuples(st.sampled_from("ab"), st.sampled_from("cde"), st.sampled_from("fgh"))


def test_the_oldest_of_the_largest_group_goes_first():
    places: FairPlaces[int] = FairPlaces()
    places.add(0, ("a", "x"))
    for item in (1, 2, 3):
        places.add(item, ("b", "y"))

    assert list(places.next_to_go()) == [1, 2, 3]


def test_a_network_of_many_hosts_is_larger_than_a_busy_host_elsewhere():
    places: FairPlaces[int] = FairPlaces()
    for item in (0, 1):
        places.add(item, ("a", "busy"))
    for item in (2, 3, 4):
        places.add(item, ("b", f"host-{item}"))

    assert list(places.next_to_go()) == [2]


def test_of_groups_alike_the_one_that_was_so_large_first_goes():
    places: FairPlaces[int] = FairPlaces()
    for item, name in enumerate("abc"):
        places.add(item, (name,))

    places.remove(0)
    places.add(3, ("a",))

    assert list(places.next_to_go()) == [1]


def test_who_left_twice_or_never_came_changes_nothing():
    places: FairPlaces[int] = FairPlaces()
    places.add(1, ("a",))

    places.remove(1)
    places.remove(1)
    places.remove(2)

    assert len(places) == 0
    assert 1 not in places


@given(st.lists(GROUPS, min_size=1, max_size=40), st.data())
def test_at_each_level_no_group_is_larger_than_the_one_that_gives_way(groups, data):
    """The same as counting anew at each level, whoever came and left before."""
    places: FairPlaces[int] = FairPlaces()
    held: dict[int, tuple[str, ...]] = {}
    for item, group in enumerate(groups):
        places.add(item, group)
        held[item] = group
        if data.draw(st.booleans()):
            gone = data.draw(st.sampled_from(sorted(held)))
            places.remove(gone)
            del held[gone]
    if not held:
        assert len(places) == 0
        return

    chosen = held[next(places.next_to_go())]

    within = list(held.values())
    for level in range(3):
        sizes = [sum(g[level] == name for g in within) for name in {g[level] for g in within}]
        within = [g for g in within if g[level] == chosen[level]]
        assert len(within) == max(sizes)
    assert list(places.next_to_go()) == [item for item, g in held.items() if g == chosen]
