"""Places for links: a crowd of strangers costs itself, never a newcomer or the work in hand."""

import pytest

from p2pswarm.base.errors import DialFailed
from p2pswarm.base.ids import PeerId
from p2pswarm.net.guard.link_places import PEER_LINKS_MAX, LinkPlaces, LinkUse

CROWD, ELSEWHERE = "192.0.2.1", "198.51.100.9"
NEWCOMER = PeerId(b"n" * 32)


def peer(n: int) -> PeerId:
    return PeerId(n.to_bytes(32))


def places(most: int, hosts: list[str], **uses: LinkUse) -> LinkPlaces[int]:
    """`most` places, of which each of `hosts` holds one; `uses`: by number of link, _0, _1 ..."""
    all_of_it = LinkPlaces(most, lambda link: uses.get(f"_{link}", LinkUse.NOBODY))
    for n, host in enumerate(hosts):
        all_of_it.add(n, peer(n), host)
    return all_of_it


def test_while_there_is_room_nobody_makes_way():
    assert places(3, [CROWD] * 2).make_room(NEWCOMER) == []


def test_the_oldest_idle_link_of_the_largest_crowd_makes_way():
    held = places(4, [ELSEWHERE, CROWD, CROWD, CROWD], _1=LinkUse.THEM)

    assert held.make_room(NEWCOMER) == [2]


def test_streams_that_never_end_hold_no_places_for_ever():
    held = places(2, [CROWD] * 2, _0=LinkUse.THEM, _1=LinkUse.THEM)

    assert held.make_room(NEWCOMER) == [0]


def test_a_site_whose_links_are_used_keeps_them_while_it_holds_a_fair_share():
    hosts = [f"10.{n}.0.1" for n in range(4)]
    held = places(4, hosts, **{f"_{n}": LinkUse.THEM for n in range(4)})

    with pytest.raises(DialFailed, match="4 links are up already"):
        held.make_room(NEWCOMER)


def test_what_we_do_ourselves_never_makes_way():
    held = places(2, [CROWD] * 2, _0=LinkUse.US, _1=LinkUse.US)

    with pytest.raises(DialFailed, match="2 links"):
        held.make_room(NEWCOMER)


def test_one_peer_has_a_few_links_and_the_oldest_makes_way():
    held: LinkPlaces[int] = LinkPlaces(100, lambda _: LinkUse.US)
    for n in range(PEER_LINKS_MAX):
        assert held.make_room(NEWCOMER) == []
        held.add(n, NEWCOMER, f"192.0.2.{n}")

    assert held.make_room(NEWCOMER) == [0]


def test_a_link_that_is_over_leaves_its_place_once():
    held = places(1, [CROWD])

    held.remove(0, peer(0))
    held.remove(0, peer(0))

    assert held.make_room(NEWCOMER) == []
