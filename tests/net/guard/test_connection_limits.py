"""Tests of `net/guard/connection_limits.py`."""

from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pswarm.base.errors import BadHandshake, Busy, DialFailed
from p2pswarm.base.ids import PeerId
from p2pswarm.net.config import TransportConfig
from p2pswarm.net.guard.connection_limits import (
    PEER_LINKS_MAX,
    BulkSlots,
    ConcurrencyLimit,
    FairSlots,
    GroupCounter,
    HandlerLimits,
    HandshakeSlots,
    LinkSlots,
    LinkUse,
)

GROUPS = st.tuples(st.sampled_from("ab"), st.sampled_from("cde"), st.sampled_from("fgh"))


def test_the_oldest_of_the_largest_group_goes_first():
    places: FairSlots[int] = FairSlots()
    places.add(0, ("a", "x"))
    for item in (1, 2, 3):
        places.add(item, ("b", "y"))

    assert list(places.next_to_go()) == [1, 2, 3]


def test_a_network_of_many_hosts_is_larger_than_a_busy_host_elsewhere():
    places: FairSlots[int] = FairSlots()
    for item in (0, 1):
        places.add(item, ("a", "busy"))
    for item in (2, 3, 4):
        places.add(item, ("b", f"host-{item}"))

    assert list(places.next_to_go()) == [2]


def test_of_groups_alike_the_one_that_was_so_large_first_goes():
    places: FairSlots[int] = FairSlots()
    for item, name in enumerate("abc"):
        places.add(item, (name,))

    places.remove(0)
    places.add(3, ("a",))

    assert list(places.next_to_go()) == [1]


def test_who_left_twice_or_never_came_changes_nothing():
    places: FairSlots[int] = FairSlots()
    places.add(1, ("a",))

    places.remove(1)
    places.remove(1)
    places.remove(2)

    assert len(places) == 0
    assert 1 not in places


@given(st.lists(GROUPS, min_size=1, max_size=40), st.data())
def test_at_each_level_no_group_is_larger_than_the_one_that_gives_way(groups, data):
    """The same as counting anew at each level, whoever came and left before."""
    places: FairSlots[int] = FairSlots()
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


HONEST = "198.51.100.9"
ROUND_TRIP_S = 0.3  # a host 150 ms away
CONFIG = TransportConfig()
BOOL = st.booleans()


def test_a_newcomer_displaces_the_oldest_when_all_is_full():
    limiter = HandshakeSlots(2, 2)
    first, _ = limiter.enter("192.0.2.1")
    limiter.enter("198.51.100.2")

    _, displaced = limiter.enter("203.0.113.3")

    assert displaced == first


def test_a_crowd_from_one_host_displaces_its_own():
    limiter = HandshakeSlots(3, 3)
    limiter.enter("198.51.100.9")
    crowd = [limiter.enter("192.0.2.1")[0] for _ in range(2)]

    _, displaced = limiter.enter("192.0.2.1")

    assert displaced == crowd[0]


def test_silence_never_displaces_who_was_answered():
    limiter = HandshakeSlots(1, 1)
    honest, _ = limiter.enter("192.0.2.1")
    limiter.on_answer(honest)

    displaced = [limiter.enter("192.0.2.1")[1] for _ in range(100)]

    assert honest not in displaced


def test_who_was_answered_makes_way_for_others_who_were():
    limiter = HandshakeSlots(9, 2)
    tickets = [limiter.enter("192.0.2.1")[0] for _ in range(3)]

    assert [limiter.on_answer(ticket) for ticket in tickets] == [None, None, tickets[0]]


def test_what_becomes_a_websocket_displaces_only_what_does():
    limiter = HandshakeSlots(9, 9, 2)
    silent, answered, *web = [limiter.enter("192.0.2.1")[0] for _ in range(5)]
    limiter.on_answer(answered)

    assert [limiter.on_upgrade(ticket, "192.0.2.1") for ticket in web] == [None, None, web[0]]
    assert limiter.has_answer(answered)
    assert limiter.on_answer(silent) is None


def test_who_has_become_a_websocket_and_is_answered_keeps_its_place_among_those():
    limiter = HandshakeSlots(9, 1, 2)
    plain, *web = [limiter.enter("192.0.2.1")[0] for _ in range(3)]
    limiter.on_answer(plain)
    for ticket in web:
        limiter.on_upgrade(ticket, "192.0.2.1")

    assert not limiter.has_answer(web[0])
    assert [limiter.on_answer(ticket) for ticket in web] == [None, None]
    assert limiter.has_answer(web[0])
    limiter.leave(web[0])
    assert not limiter.has_answer(web[0])


def test_a_host_that_a_proxy_names_counts_instead_of_the_proxys():
    limiter = HandshakeSlots(9, 9, 3)
    tickets = [limiter.enter("127.0.0.1")[0] for _ in range(4)]
    displaced: list[int | None] = []
    for ticket, host in zip(tickets, ("203.0.113.9", *["198.51.100.7"] * 3), strict=True):
        displaced += [limiter.on_upgrade(ticket, "127.0.0.1"), limiter.on_upgrade(ticket, host)]

    assert [ticket for ticket in displaced if ticket is not None] == [tickets[1]]
    assert limiter.on_upgrade(tickets[1], "203.0.113.9") is None


def test_who_has_left_or_was_displaced_displaces_nobody():
    limiter = HandshakeSlots(1, 1)
    gone, _ = limiter.enter("192.0.2.1")
    _, displaced = limiter.enter("192.0.2.1")
    assert displaced == gone

    assert limiter.on_answer(gone) is None
    last, _ = limiter.enter("192.0.2.1")
    limiter.leave(last)

    assert limiter.enter("192.0.2.1")[1] is None


def test_a_simulated_host_counts_by_its_name():
    limiter = HandshakeSlots(2, 2)
    first, _ = limiter.enter("host-1")
    limiter.enter("host-2")

    assert limiter.enter("host-1")[1] == first


def test_leaving_twice_is_harmless():
    limiter = HandshakeSlots(1, 1)
    ticket, _ = limiter.enter("192.0.2.1")

    limiter.leave(ticket)
    limiter.leave(ticket)


@given(
    st.lists(st.tuples(st.sampled_from(["10.0.0.1", "10.0.0.2", "10.1.0.1", "::1", "x"]), BOOL)),
    st.integers(1, 3),
    st.data(),
)
def test_nobody_is_displaced_by_its_own_coming_or_when_it_has_gone(comers, most, data):
    limiter = HandshakeSlots(most, most)
    here: dict[int, bool] = {}  # ticket: answered
    for host, speaks in comers:
        ticket, displaced = limiter.enter(host)
        assert displaced is None or here.pop(displaced) is False
        here[ticket] = False
        if speaks:
            here[ticket] = True
            displaced = limiter.on_answer(ticket)
            assert displaced != ticket
            assert displaced is None or here.pop(displaced) is True
        if data.draw(BOOL):
            gone = data.draw(st.sampled_from(sorted(here)))
            limiter.leave(gone)
            del here[gone]
        assert all(sum(v is kind for v in here.values()) <= most for kind in (False, True))


def hosts(count: int, prefix: str) -> list[str]:
    return [f"{prefix}.{i // 200}.{i % 200 + 1}" for i in range(count)]


@pytest.mark.parametrize(
    ("crowd", "rate_per_s", "speaks"),
    [
        ([HONEST], 200, False),  # the dialler's own host
        (hosts(100, "192.0"), 600, False),
        (hosts(500, "192.0"), 2000, True),
        (hosts(100, "192.0"), 4000, True),
        ([HONEST], 400, True),
    ],
    ids=["own host", "100 hosts", "500 hosts speak", "4000 first messages", "own host speaks"],
)
def test_a_dialler_far_away_keeps_its_slot_for_its_round_trip(crowd, rate_per_s, speaks):
    """Every honest handshake among a crowd that stays as long as it may, second by second."""
    limiter = HandshakeSlots(CONFIG.silent_max, CONFIG.answered_max)
    waiting: deque[tuple[float, int]] = deque()
    displaced: set[int | None] = set()
    for n in range(int(rate_per_s * 3)):
        now_s = n / rate_per_s
        ticket, out = limiter.enter(crowd[n % len(crowd)])
        displaced.add(out)
        if speaks:
            displaced.add(limiter.on_answer(ticket))
        if n % (rate_per_s // 10) == 0:
            honest, out = limiter.enter(HONEST)
            displaced |= {out, limiter.on_answer(honest)}
            waiting.append((now_s + ROUND_TRIP_S, honest))
        while waiting and waiting[0][0] <= now_s:
            _, done = waiting.popleft()
            assert done not in displaced
            limiter.leave(done)


CROWD, ELSEWHERE = "192.0.2.1", "198.51.100.9"
NEWCOMER = PeerId(b"n" * 32)


def peer(n: int) -> PeerId:
    return PeerId(n.to_bytes(32))


def link_slots(most: int, hosts: list[str], **uses: LinkUse) -> LinkSlots[int]:
    """`most` places, of which each of `hosts` holds one; `uses`: by number of link, _0, _1 ..."""
    all_of_it = LinkSlots(most, lambda link: uses.get(f"_{link}", LinkUse.NOBODY))
    for n, host in enumerate(hosts):
        all_of_it.add(n, peer(n), host)
    return all_of_it


def test_while_there_is_room_nobody_makes_way():
    assert link_slots(3, [CROWD] * 2).make_room(NEWCOMER) == []


def test_the_oldest_idle_link_of_the_largest_crowd_makes_way():
    held = link_slots(4, [ELSEWHERE, CROWD, CROWD, CROWD], _1=LinkUse.THEM)

    assert held.make_room(NEWCOMER) == [2]


def test_streams_that_never_end_hold_no_slots_for_ever():
    held = link_slots(2, [CROWD] * 2, _0=LinkUse.THEM, _1=LinkUse.THEM)

    assert held.make_room(NEWCOMER) == [0]


def test_a_site_whose_links_are_used_keeps_them_while_it_holds_a_fair_share():
    hosts = [f"10.{n}.0.1" for n in range(4)]
    held = link_slots(4, hosts, **{f"_{n}": LinkUse.THEM for n in range(4)})

    with pytest.raises(DialFailed, match="4 links are up already"):
        held.make_room(NEWCOMER)


def test_what_we_do_ourselves_never_makes_way():
    held = link_slots(2, [CROWD] * 2, _0=LinkUse.US, _1=LinkUse.US)

    with pytest.raises(DialFailed, match="2 links"):
        held.make_room(NEWCOMER)


def test_one_peer_has_a_few_links_and_the_oldest_makes_way():
    held: LinkSlots[int] = LinkSlots(100, lambda _: LinkUse.US)
    for n in range(PEER_LINKS_MAX):
        assert held.make_room(NEWCOMER) == []
        held.add(n, NEWCOMER, f"192.0.2.{n}")

    assert held.make_room(NEWCOMER) == [0]


def test_a_link_that_is_over_leaves_its_slot_once():
    held = link_slots(1, [CROWD])

    held.remove(0, peer(0))
    held.remove(0, peer(0))

    assert held.make_room(NEWCOMER) == []


def bulk_slots(*links: tuple[str, str], **uses: LinkUse) -> BulkSlots[str]:
    """All places taken by the named links, each at a host; `uses`: by name."""
    all_of_it = BulkSlots(len(links), lambda link: uses.get(link, LinkUse.NOBODY))
    for number, (name, host) in enumerate(links):
        all_of_it.add(name, number, host)
    return all_of_it


def test_while_there_is_room_no_link_loses_its_bulk_connections():
    held: BulkSlots[str] = BulkSlots(1, lambda _: LinkUse.NOBODY)

    assert held.make_room("a") == []


def test_the_oldest_idle_link_of_the_largest_crowd_makes_way_for_a_bulk_connection():
    held = bulk_slots(
        ("a", ELSEWHERE),
        ("b", CROWD),
        ("c", CROWD),
        ("d", CROWD),
        b=LinkUse.THEM,
    )

    assert held.make_room("new") == ["c"]


def test_a_link_that_only_its_peer_uses_makes_way_when_none_is_idle():
    held = bulk_slots(
        ("a", ELSEWHERE),
        ("b", CROWD),
        ("c", CROWD),
        b=LinkUse.US,
        c=LinkUse.THEM,
    )

    assert held.make_room("new") == ["c"]


def test_a_link_that_we_use_never_makes_way_nor_the_one_that_is_joined():
    held = bulk_slots(("a", CROWD), ("b", CROWD), b=LinkUse.US)

    with pytest.raises(BadHandshake, match="2 bulk connections"):
        held.make_room("a")


def test_a_link_that_is_over_frees_all_its_slots():
    held = bulk_slots(("a", CROWD), ("a", CROWD), ("b", CROWD))

    held.remove("a")
    held.remove("a")

    assert held.make_room("b") == []


def test_a_connection_that_has_ended_frees_its_slot():
    held = bulk_slots(("a", CROWD), ("a", CROWD))

    held.leave("a", 1)
    held.leave("a", 1)
    held.leave("unknown", 7)

    assert held.make_room("b") == []
    held.remove("a")


ALICE, BOB = PeerId(b"a" * 32), PeerId(b"b" * 32)


def test_a_limit_stops_one_peer_and_lets_another_in() -> None:
    limit = ConcurrencyLimit(HandlerLimits(per_peer=2, total=3))
    limit.enter(ALICE)
    limit.enter(ALICE)

    with pytest.raises(Busy, match="2 calls of yours"):
        limit.enter(ALICE)
    limit.enter(BOB)
    assert limit.count == 3


def test_a_limit_stops_all_at_its_total() -> None:
    limit = ConcurrencyLimit(HandlerLimits(per_peer=2, total=1))
    limit.enter(ALICE)

    with pytest.raises(Busy, match="1 in all"):
        limit.enter(BOB)


def test_who_leaves_makes_room_and_is_forgotten() -> None:
    limit = ConcurrencyLimit(HandlerLimits(per_peer=2, total=2))
    limit.enter(ALICE)
    limit.enter(ALICE)
    limit.leave(ALICE)
    limit.enter(BOB)

    limit.leave(ALICE)
    limit.leave(BOB)

    assert limit.count == 0


def entered(limit: ConcurrencyLimit, network: str, first: int) -> int:
    """How many handlers the ids of one network get, with as many ids as they like."""
    for n in range(first, first + 5000):
        try:
            limit.enter(PeerId(n.to_bytes(32)), network)
        except Busy:
            return n - first
    return 5000


def test_many_ids_of_one_network_leave_half_of_all_to_others():
    limit = ConcurrencyLimit(HandlerLimits())

    crowd = entered(limit, "192.0.2.0/24", 0)

    assert crowd == HandlerLimits().total // 2 + 1
    assert entered(limit, "198.51.100.0/24", 10_000) > 1000


def test_beside_three_greedy_networks_a_peer_has_all_that_it_may():
    limit = ConcurrencyLimit(HandlerLimits())
    for n in range(3):
        entered(limit, f"10.{n}.0.0/24", n * 10_000)

    for _ in range(HandlerLimits().per_peer):
        limit.enter(ALICE, "198.51.100.0/24")


def test_a_network_whose_handlers_have_ended_is_forgotten():
    limit = ConcurrencyLimit(HandlerLimits(total=2))
    peer = PeerId(b"p" * 32)
    for _ in range(5):
        limit.enter(peer, "192.0.2.0/24")
        limit.enter(peer, "192.0.2.0/24")
        limit.leave(peer, "192.0.2.0/24")
        limit.leave(peer, "192.0.2.0/24")

    assert limit.count == 0


def test_a_group_counts_what_is_in_it_and_takes_no_memory_without():
    counter = GroupCounter()

    for group in ("network", "host", "network"):
        counter.add(group)
    counter.remove("host")

    assert [counter["network"], counter["host"], counter["elsewhere"]] == [2, 0, 0]
    assert list(counter) == ["network"]


def test_slots_are_counted_by_the_path_to_a_group():
    slots = FairSlots()

    slots.add(1, ("IPv4", "10.0.0.0/16", "10.0.0.1/32"))
    slots.add(2, ("IPv4", "10.0.0.0/16", "10.0.0.2/32"))

    assert slots.count(("IPv4", "10.0.0.0/16")) == 2
    assert slots.count(("IPv4", "10.0.0.0/16", "10.0.0.2/32")) == 1
    assert slots.count(("IPv4", "10.1.0.0/16", "10.1.0.1/32")) == 0
