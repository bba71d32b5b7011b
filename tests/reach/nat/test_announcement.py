"""Tests of `reach/nat/announcement.py`."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pswarm.base.ids import Address, Contact, PeerId
from p2pswarm.reach.nat.announcement import (
    BURST,
    EVERY_S,
    LOST_AFTER_S,
    RELAYS_AFTER_S,
    RELAYS_LINGER_S,
    SPARE_AFTER_S,
    Announcement,
    Announcer,
    ReachabilityEvents,
    SeekRelays,
    on_this_machine_alone,
    reachable_line,
)
from p2pswarm.reach.nat.reachability import Belief, Finding, NatKind, State

PORT = 4000
PUBLIC, PUBLIC6 = Address("203.0.114.7", PORT), Address("2a00::7", PORT)
HOME, HOME6 = Address("192.168.1.10", PORT), Address("fe80::1%eth0", PORT)
OUTSIDE, STRANGER = Address("203.0.114.9", 4321), Address("198.51.101.66", PORT)
RELAY = Contact(PeerId(bytes(31) + b"\1"), Address("203.0.115.1", PORT))
PROBING, NO_NET = Belief(State.PROBING), Finding(Belief(State.ABSENT), None, None)


def announcer(**settings) -> Announcer:
    return Announcer(**{"fixed": None, "through_relays": False, "serves": True, **settings})


def public(at: Address = PUBLIC, own: Address | None = PUBLIC, *, sure: bool = True) -> Finding:
    return Finding(Belief(State.PUBLIC, NatKind.NONE, at, sure), own, None)


def natted(own: Address | None = HOME, *, sure: bool = True) -> Finding:
    return Finding(Belief(State.NATTED, NatKind.EASY, None, sure), own, None)


def mapped(own: Address = HOME, *, sure: bool = False) -> Finding:
    return Finding(Belief(State.MAPPED, NatKind.EASY, OUTSIDE, sure), own, OUTSIDE)


def told(*found: Finding, **settings) -> Announcement:
    """What a node says that finds out this and nothing else."""
    ours = announcer(**settings)
    ours.on_findings(found, 0.0)
    return ours.current


def seeks_of(ours: Announcer) -> list[SeekRelays]:
    """How many relays it has asked for since the last call."""
    return [each for each in ours.drain() if isinstance(each, SeekRelays)]


def at_home(now_s: float = 0.0) -> Announcer:
    """Behind a router, with a peer that could dial us, and nobody has."""
    ours = announcer()
    ours.on_findings([Finding(PROBING, HOME, None)], now_s)
    ours.on_link(now_s)
    ours.drain()
    return ours


def test_where_others_dial_us_is_told():
    assert told(public()) == Announcement((PUBLIC,), relay=True)
    assert told(public(), public(PUBLIC6, PUBLIC6)).direct == (PUBLIC, PUBLIC6)
    assert told(public(), NO_NET).direct == (PUBLIC,)


def test_a_port_of_the_router_is_told_beside_our_own_address_for_neighbours():
    said = told(mapped())

    assert (said.direct, said.mapped) == ((HOME,), (OUTSIDE,))
    assert not said.client


def test_where_there_is_room_for_one_address_it_is_the_one_that_strangers_can_dial():
    us = PeerId(bytes(32))
    at_relay = RELAY.address.through(us)

    assert told(public()).best(us) == PUBLIC
    assert told(mapped()).best(us) == OUTSIDE
    assert Announcement((HOME,), relays=(RELAY,)).best(us) == at_relay
    assert Announcement((HOME,)).best(us) == HOME
    assert Announcement().best(us) is None


def test_before_anything_is_known_nothing_is_told():
    ours = announcer()
    ours.on_link(0.0)
    ours.on_relays([RELAY], 1.0)

    assert [each for each in ours.drain() if isinstance(each, Announcement)] == []


def test_until_somebody_has_tried_our_own_address_is_told():
    assert told(Finding(PROBING, PUBLIC, None)) == Announcement((PUBLIC,), relay=True)
    assert told(Finding(PROBING, HOME, None)) == Announcement((HOME,))


def test_who_surely_cannot_be_dialled_is_a_client():
    assert told(natted(PUBLIC)).client
    assert not told(natted(PUBLIC, sure=False)).client
    assert told(natted(PUBLIC), public(PUBLIC6, PUBLIC6)).direct == (PUBLIC6,)


def test_neighbours_are_told_the_private_address_of_who_is_behind_a_router():
    assert told(natted()) == Announcement((HOME,))


def test_an_address_with_a_zone_means_nothing_to_others():
    assert told(Finding(PROBING, HOME6, None)).client


def test_an_address_that_one_stranger_has_named_is_not_told():
    assert told(public(STRANGER, PUBLIC, sure=False)).direct == (PUBLIC,)
    assert told(public(STRANGER, PUBLIC, sure=True)).direct == (STRANGER, PUBLIC)


def test_the_users_address_is_the_only_one():
    ours = announcer(fixed=STRANGER)
    ours.on_link(0.0)
    ours.on_findings([natted(PUBLIC)], 0.0)

    assert ours.current == Announcement((STRANGER,), relay=True)
    assert ours.next_deadline_s() is None
    assert [each for each in ours.drain() if isinstance(each, SeekRelays)] == []


def test_who_is_behind_relays_that_the_user_has_named_tells_these_alone_and_is_none():
    ours = announcer(through_relays=True)
    ours.on_relays([RELAY], 0.0)
    ours.on_findings([Finding(PROBING, PUBLIC, None)], 0.0)

    assert ours.current == Announcement(relays=(RELAY,))
    assert ours.current.client
    assert SeekRelays(2) in ours.drain()
    assert ours.next_deadline_s() is None


def test_a_node_that_is_told_so_is_no_relay():
    assert not told(public(), serves=False).relay


def test_relays_are_sought_when_somebody_was_there_and_nobody_has_come():
    ours = announcer()
    ours.on_findings([Finding(PROBING, HOME, None)], 0.0)
    assert ours.next_deadline_s() is None  # alone, it has nobody to ask
    ours.on_link(7.0)
    assert ours.next_deadline_s() == 7.0 + RELAYS_AFTER_S
    assert SeekRelays(2) not in ours.drain()

    ours.on_deadline(7.0 + RELAYS_AFTER_S)

    assert ours.drain() == [SeekRelays(2)]
    assert ours.next_deadline_s() is None


def test_member_that_others_dial_has_a_spare_relay_soon_and_keeps_it():
    """If the road to one of its peers fails, a third peer joins them."""
    ours = announcer(spare=1)
    ours.on_findings([public()], 1.0)
    ours.on_deadline(100.0)
    assert seeks_of(ours) == [], "nobody is there whom it could ask"

    ours = announcer(spare=1)
    ours.on_link(0.5)
    ours.on_findings([public()], 1.0)
    assert seeks_of(ours) == []
    assert ours.next_deadline_s() == 1.0 + SPARE_AFTER_S
    ours.on_deadline(1.0 + SPARE_AFTER_S)
    assert seeks_of(ours) == [SeekRelays(1)]
    ours.on_deadline(1e6)
    assert seeks_of(ours) == []


def test_member_that_was_hidden_keeps_one_of_its_relays_when_others_dial_it_again():
    ours = announcer(spare=1)
    ours.on_link(0.0)
    ours.on_findings([natted()], 0.0)
    ours.on_deadline(RELAYS_AFTER_S)
    assert seeks_of(ours) == [SeekRelays(2)]
    ours.on_findings([public()], 10.0)
    ours.on_deadline(10.0 + RELAYS_LINGER_S)
    assert seeks_of(ours) == [SeekRelays(1)]


def test_spare_relay_is_kept_while_another_is_sought():
    ours = announcer(spare=1)
    ours.on_link(0.0)
    ours.on_findings([public()], 0.0)
    ours.on_deadline(SPARE_AFTER_S)
    ours.on_findings([natted()], 20.0)
    assert seeks_of(ours) == [SeekRelays(1)]
    ours.on_deadline(20.0 + RELAYS_AFTER_S)
    assert seeks_of(ours) == [SeekRelays(2)]


def test_who_is_dialled_at_once_seeks_no_relays():
    ours = at_home()
    ours.on_findings([public(HOME, HOME)], 0.2)

    ours.on_deadline(RELAYS_AFTER_S)

    assert ours.drain() == [Announcement((HOME,), relay=True)]


def test_relays_are_kept_for_a_while_when_the_router_forwards_a_port_after_all():
    ours = at_home()
    ours.on_deadline(RELAYS_AFTER_S)
    ours.on_relays([RELAY], 1.0)
    ours.on_findings([mapped()], 2.0)
    assert ours.current == Announcement((HOME,), (OUTSIDE,), (RELAY,), relay=True)
    assert ours.next_deadline_s() == 2.0 + RELAYS_LINGER_S
    ours.drain()

    ours.on_deadline(2.0 + RELAYS_LINGER_S)

    assert ours.drain() == [SeekRelays(0)]


def test_a_port_that_the_router_has_lost_is_told_for_a_moment_more():
    ours = announcer()
    ours.on_findings([mapped()], 0.0)
    ours.on_findings([natted()], 50.0)
    assert ours.current.mapped == (OUTSIDE,)
    ours.on_deadline(51.0)  # relays are sought meanwhile
    assert ours.next_deadline_s() == 50.0 + LOST_AFTER_S
    ours.on_findings([mapped()], 55.0)
    ours.on_findings([natted()], 56.0)

    ours.on_deadline(56.0 + LOST_AFTER_S)

    assert ours.current == Announcement((HOME,))


def test_in_another_network_the_old_addresses_are_gone_at_once():
    ours = announcer()
    ours.on_findings([mapped()], 0.0)

    ours.on_findings([Finding(PROBING, PUBLIC, None)], 1.0)

    assert ours.current == Announcement((PUBLIC,), relay=True)


def test_what_is_no_news_is_not_told_again():
    ours = announcer()
    ours.on_findings([public()], 0.0)
    ours.drain()

    ours.on_findings([public()], 1.0)
    ours.on_relays([], 2.0)

    assert ours.drain() == []


KNOWN = st.sampled_from(
    [
        public(),
        natted(),
        mapped(),
        natted(PUBLIC),
        Finding(PROBING, HOME, None),
        NO_NET,
        public(STRANGER, PUBLIC, sure=False),
        public(PUBLIC6, PUBLIC6),
    ]
)
STEPS = st.tuples(
    st.floats(0.0, 30.0),
    st.one_of(
        st.lists(KNOWN, min_size=1, max_size=2), st.sampled_from(["met", "relay", "no relay"])
    ),
)


def tell(ours: Announcer, what: object, now_s: float) -> None:
    if what == "met":
        ours.on_link(now_s)
    elif isinstance(what, list):
        ours.on_findings(what, now_s)
    else:
        ours.on_relays([RELAY] if what == "relay" else [], now_s)


@given(st.lists(STEPS, max_size=60), st.booleans(), st.booleans(), st.integers(0, 2))
def test_it_is_told_seldom_and_in_the_end_all_is_true(steps, through_relays, serves, spare):
    ours = announcer(through_relays=through_relays, serves=serves, spare=spare)
    now_s, said_s, seeks = 0.0, [], 0

    def drain() -> None:
        nonlocal seeks
        for event in ours.drain():
            if isinstance(event, SeekRelays):
                assert event.count != seeks
                seeks = event.count
            else:
                said_s.append(now_s)
                assert STRANGER not in event.direct
                assert event.client == (not event.direct and not event.mapped)
                assert not (event.relay and through_relays)

    for pause_s, what in steps:
        until_s = now_s + pause_s
        while (due_s := ours.next_deadline_s()) is not None and due_s <= until_s:
            now_s = max(due_s, now_s)
            ours.on_deadline(now_s)
            drain()
        now_s = until_s
        tell(ours, what, now_s)
        drain()
    while (due_s := ours.next_deadline_s()) is not None:
        now_s = max(due_s, now_s)
        ours.on_deadline(now_s)
        drain()

    for i, begin_s in enumerate(said_s):
        for j, end_s in enumerate(said_s[i:]):
            assert j + 1 <= BURST + (end_s - begin_s) / EVERY_S + 1e-6
    last = next((what for _, what in reversed(steps) if isinstance(what, list)), [])
    relays = [what for _, what in steps if what in ("relay", "no relay")]
    plain = announcer(through_relays=through_relays, serves=serves)
    plain.on_findings(last, 0.0)
    plain.on_relays([RELAY] if relays[-1:] == ["relay"] else [], 0.0)
    assert not steps or ours.current == plain.current


AT = Address("203.0.113.7", 4000)


@pytest.mark.parametrize(
    ("belief", "line"),
    [
        (Belief(State.ABSENT), ""),
        (Belief(State.PROBING), ""),
        (Belief(State.PUBLIC, address=AT, sure=True), "reachable: direct at 203.0.113.7:4000"),
        (
            Belief(State.MAPPED, NatKind.HARD, AT),
            "reachable: mapped at 203.0.113.7:4000, as one network of peers says",
        ),
        (
            Belief(State.NATTED, NatKind.FIREWALL, sure=True),
            (
                "reachable: no, a firewall keeps out who dials port 4000; "
                "p2pswarm doctor tells what to change"
            ),
        ),
        (
            Belief(State.NATTED, NatKind.UNKNOWN, sure=True),
            (
                "reachable: no, the router before this machine forwards no port; "
                "p2pswarm doctor tells what to change"
            ),
        ),
    ],
)
def test_a_belief_in_a_line(belief, line):
    assert reachable_line(belief, 4000) == line


def test_a_line_is_said_once_and_bad_news_wait_for_the_router():
    news = ReachabilityEvents(4000)
    natted, public = Belief(State.NATTED, sure=True), Belief(State.PUBLIC, address=AT, sure=True)

    said = [
        news.line(natted, settled=False),
        news.line(public, settled=False),
        news.line(public, settled=True),
        news.line(natted, settled=True),
    ]

    assert [line[:14] for line in said] == ["", "reachable: dir", "", "reachable: no,"]


def test_a_relay_is_news_as_soon_as_it_is_there_and_until_the_node_is_reached_without():
    news, relayed = ReachabilityEvents(4000), Address("198.51.100.1", 4000)
    probing, mapped = Belief(State.PROBING), Belief(State.MAPPED, address=AT, sure=True)

    said = [
        news.line(probing, settled=False, relayed=relayed),
        news.line(Belief(State.NATTED), settled=True, relayed=relayed),
        news.line(mapped, settled=True, relayed=relayed),
    ]

    assert said == [f"reachable: relayed at {relayed}", "", f"reachable: mapped at {AT}"]


def test_why_nothing_is_known_is_said_once_and_only_where_nothing_is():
    news = ReachabilityEvents(4000)
    public = Belief(State.PUBLIC, address=AT, sure=True)

    assert news.lone_line("from this machine alone") == "reachable: from this machine alone"
    assert news.lone_line("from this machine alone") == ""
    assert news.line(public, settled=True) == f"reachable: direct at {AT}"
    assert news.lone_line("from this machine alone") == ""


def test_who_listens_on_loopback_has_nothing_to_find_out():
    assert on_this_machine_alone(Address("127.0.0.1", 1))
    assert on_this_machine_alone(Address("::1", 1))
    assert not on_this_machine_alone(Address("0.0.0.0", 1))
    assert not on_this_machine_alone(Address("::", 1))
