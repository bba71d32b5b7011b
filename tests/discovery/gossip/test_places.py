"""Who has a place where many want one."""

from discovery.gossip.harness import stranger
from hypothesis import given
from hypothesis import strategies as st

from p2pswarm.discovery.gossip.places import NOWHERE, PER_NEAR_NET, PER_WIDE_NET, Places, networks


def test_a_small_network_has_so_many_places_and_the_next_one_has_others():
    places = Places()
    here = [places.enter(stranger(n, f"5.5.5.{n % 250}"))[0] for n in range(PER_NEAR_NET + 10)]

    assert sum(here) == PER_NEAR_NET
    assert places.enter(stranger(999, "5.5.6.1")) == (True, None)


def test_a_wide_network_has_so_many_places():
    places = Places()
    here = [places.enter(stranger(n, f"5.5.{n % 250}.1"))[0] for n in range(PER_WIDE_NET + 10)]

    assert sum(here) == PER_WIDE_NET
    assert places.enter(stranger(999, "5.6.6.1")) == (True, None)


def test_a_private_network_has_no_limit_of_its_own():
    places = Places()

    assert all(places.enter(stranger(n, "10.0.0.1"))[0] for n in range(PER_NEAR_NET + 10))


def test_names_of_one_owner_are_one_network_and_those_who_only_dial_are_another():
    assert networks("a.b.example.org") == networks("c.example.org") == ("example.org",) * 2
    assert networks("laptop") == ("", "laptop")
    assert networks("") == (NOWHERE, NOWHERE)
    assert networks("2001:db8::1")[0] == ""  # for documents: nobody dials it
    assert networks("2600:1:2:3::1") == ("2600:1:2::/48", "2600:1::/32")


def test_a_newcomer_takes_the_place_of_the_largest_network_that_was_never_met():
    places = Places(4)
    crowd = [stranger(n, f"5.5.5.{n}") for n in range(3)]
    lone = stranger(10, "6.6.6.6")
    for each in (*crowd, lone):
        assert places.enter(each) == (True, None)

    assert places.enter(stranger(11, "7.7.7.7")) == (True, crowd[0].prefix)
    assert places.enter(stranger(12, "5.5.5.77")) == (False, None), "its own network is the largest"


def test_who_was_met_keeps_its_place():
    places = Places(2)
    crowd = [stranger(n, f"5.5.5.{n}") for n in range(2)]
    for each in crowd:
        places.enter(each)
        places.met(each.prefix)

    assert places.was_met(crowd[0].prefix)
    assert places.enter(stranger(11, "7.7.7.7")) == (False, None)
    places.lost(crowd[1].prefix)
    assert places.enter(stranger(11, "7.7.7.7")) == (True, crowd[1].prefix)


@given(st.lists(st.tuples(st.integers(0, 30), st.sampled_from(["enter", "leave", "met", "lost"]))))
def test_counts_are_those_of_whoever_is_there(steps):
    places, here = Places(8), set()
    for number, step in steps:
        each = stranger(number, f"{5 + number % 3}.5.5.{number}")
        if step == "enter" and each.prefix not in here:
            entered, victim = places.enter(each)
            here.discard(victim)
            if entered:
                here.add(each.prefix)
        elif each.prefix in here:
            if step == "leave":
                places.leave(each.prefix)
                here.discard(each.prefix)
            elif step == "met":
                places.met(each.prefix)
            elif step == "lost":
                places.lost(each.prefix)
        assert len(places) == len(here) <= 8
        assert sum(places._wide.values()) == sum(places._near.values()) == len(here)
        assert {p for unmet in places._unmet.values() for p in unmet} <= here
        assert set(places._lost) <= here
