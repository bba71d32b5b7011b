"""What a node announces of what it has found out, how soon, and how often at most."""

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
    SeekRelays,
)
from p2pswarm.reach.nat.standing import Belief, Finding, NatKind, State

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
    ours.found(found, 0.0)
    return ours.said


def seeks_of(ours: Announcer) -> list[SeekRelays]:
    """How many relays it has asked for since the last call."""
    return [each for each in ours.events() if isinstance(each, SeekRelays)]


def at_home(now_s: float = 0.0) -> Announcer:
    """Behind a router, with a peer that could dial us, and nobody has."""
    ours = announcer()
    ours.found([Finding(PROBING, HOME, None)], now_s)
    ours.met(now_s)
    ours.events()
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
    ours.met(0.0)
    ours.reserved([RELAY], 1.0)

    assert [each for each in ours.events() if isinstance(each, Announcement)] == []


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
    ours.met(0.0)
    ours.found([natted(PUBLIC)], 0.0)

    assert ours.said == Announcement((STRANGER,), relay=True)
    assert ours.next_deadline_s() is None
    assert [each for each in ours.events() if isinstance(each, SeekRelays)] == []


def test_who_is_behind_relays_that_the_user_has_named_tells_these_alone_and_is_none():
    ours = announcer(through_relays=True)
    ours.reserved([RELAY], 0.0)
    ours.found([Finding(PROBING, PUBLIC, None)], 0.0)

    assert ours.said == Announcement(relays=(RELAY,))
    assert ours.said.client
    assert SeekRelays(2) in ours.events()
    assert ours.next_deadline_s() is None


def test_a_node_that_is_told_so_is_no_relay():
    assert not told(public(), serves=False).relay


def test_relays_are_sought_when_somebody_was_there_and_nobody_has_come():
    ours = announcer()
    ours.found([Finding(PROBING, HOME, None)], 0.0)
    assert ours.next_deadline_s() is None  # alone, it has nobody to ask
    ours.met(7.0)
    assert ours.next_deadline_s() == 7.0 + RELAYS_AFTER_S
    assert SeekRelays(2) not in ours.events()

    ours.on_deadline(7.0 + RELAYS_AFTER_S)

    assert ours.events() == [SeekRelays(2)]
    assert ours.next_deadline_s() is None


def test_member_that_others_dial_has_a_spare_relay_soon_and_keeps_it():
    """If the road to one of its peers fails, a third peer joins them."""
    ours = announcer(spare=1)
    ours.found([public()], 1.0)
    ours.on_deadline(100.0)
    assert seeks_of(ours) == [], "nobody is there whom it could ask"

    ours = announcer(spare=1)
    ours.met(0.5)
    ours.found([public()], 1.0)
    assert seeks_of(ours) == []
    assert ours.next_deadline_s() == 1.0 + SPARE_AFTER_S
    ours.on_deadline(1.0 + SPARE_AFTER_S)
    assert seeks_of(ours) == [SeekRelays(1)]
    ours.on_deadline(1e6)
    assert seeks_of(ours) == []


def test_member_that_was_hidden_keeps_one_of_its_relays_when_others_dial_it_again():
    ours = announcer(spare=1)
    ours.met(0.0)
    ours.found([natted()], 0.0)
    ours.on_deadline(RELAYS_AFTER_S)
    assert seeks_of(ours) == [SeekRelays(2)]
    ours.found([public()], 10.0)
    ours.on_deadline(10.0 + RELAYS_LINGER_S)
    assert seeks_of(ours) == [SeekRelays(1)]


def test_spare_relay_is_kept_while_another_is_sought():
    ours = announcer(spare=1)
    ours.met(0.0)
    ours.found([public()], 0.0)
    ours.on_deadline(SPARE_AFTER_S)
    ours.found([natted()], 20.0)
    assert seeks_of(ours) == [SeekRelays(1)]
    ours.on_deadline(20.0 + RELAYS_AFTER_S)
    assert seeks_of(ours) == [SeekRelays(2)]


def test_who_is_dialled_at_once_seeks_no_relays():
    ours = at_home()
    ours.found([public(HOME, HOME)], 0.2)

    ours.on_deadline(RELAYS_AFTER_S)

    assert ours.events() == [Announcement((HOME,), relay=True)]


def test_relays_are_kept_for_a_while_when_the_router_forwards_a_port_after_all():
    ours = at_home()
    ours.on_deadline(RELAYS_AFTER_S)
    ours.reserved([RELAY], 1.0)
    ours.found([mapped()], 2.0)
    assert ours.said == Announcement((HOME,), (OUTSIDE,), (RELAY,), relay=True)
    assert ours.next_deadline_s() == 2.0 + RELAYS_LINGER_S
    ours.events()

    ours.on_deadline(2.0 + RELAYS_LINGER_S)

    assert ours.events() == [SeekRelays(0)]


def test_a_port_that_the_router_has_lost_is_told_for_a_moment_more():
    ours = announcer()
    ours.found([mapped()], 0.0)
    ours.found([natted()], 50.0)
    assert ours.said.mapped == (OUTSIDE,)
    ours.on_deadline(51.0)  # relays are sought meanwhile
    assert ours.next_deadline_s() == 50.0 + LOST_AFTER_S
    ours.found([mapped()], 55.0)
    ours.found([natted()], 56.0)

    ours.on_deadline(56.0 + LOST_AFTER_S)

    assert ours.said == Announcement((HOME,))


def test_in_another_network_the_old_addresses_are_gone_at_once():
    ours = announcer()
    ours.found([mapped()], 0.0)

    ours.found([Finding(PROBING, PUBLIC, None)], 1.0)

    assert ours.said == Announcement((PUBLIC,), relay=True)


def test_what_is_no_news_is_not_told_again():
    ours = announcer()
    ours.found([public()], 0.0)
    ours.events()

    ours.found([public()], 1.0)
    ours.reserved([], 2.0)

    assert ours.events() == []


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
        ours.met(now_s)
    elif isinstance(what, list):
        ours.found(what, now_s)
    else:
        ours.reserved([RELAY] if what == "relay" else [], now_s)


@given(st.lists(STEPS, max_size=60), st.booleans(), st.booleans(), st.integers(0, 2))
def test_it_is_told_seldom_and_in_the_end_all_is_true(steps, through_relays, serves, spare):
    ours = announcer(through_relays=through_relays, serves=serves, spare=spare)
    now_s, said_s, seeks = 0.0, [], 0

    def drain() -> None:
        nonlocal seeks
        for event in ours.events():
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
    plain.found(last, 0.0)
    plain.reserved([RELAY] if relays[-1:] == ["relay"] else [], 0.0)
    assert not steps or ours.said == plain.said
