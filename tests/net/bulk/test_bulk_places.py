"""Places for bulk connections: a crowd that nobody asked for costs itself alone."""

import pytest

from p2pswarm.base.errors import BadHandshake
from p2pswarm.net.bulk.bulk_places import BulkPlaces
from p2pswarm.net.guard.link_places import LinkUse

CROWD, ELSEWHERE = "192.0.2.1", "198.51.100.9"


def places(*links: tuple[str, str], **uses: LinkUse) -> BulkPlaces[str]:
    """All places taken by the named links, each at a host; `uses`: by name."""
    all_of_it = BulkPlaces(len(links), lambda link: uses.get(link, LinkUse.NOBODY))
    for number, (name, host) in enumerate(links):
        all_of_it.add(name, number, host)
    return all_of_it


def test_while_there_is_room_nobody_makes_way():
    held: BulkPlaces[str] = BulkPlaces(1, lambda _: LinkUse.NOBODY)

    assert held.make_room("a") == []


def test_the_oldest_idle_link_of_the_largest_crowd_makes_way():
    held = places(("a", ELSEWHERE), ("b", CROWD), ("c", CROWD), ("d", CROWD), b=LinkUse.THEM)

    assert held.make_room("new") == ["c"]


def test_a_link_that_only_its_peer_uses_makes_way_when_none_is_idle():
    held = places(("a", ELSEWHERE), ("b", CROWD), ("c", CROWD), b=LinkUse.US, c=LinkUse.THEM)

    assert held.make_room("new") == ["c"]


def test_a_link_that_we_use_never_makes_way_nor_the_one_that_is_joined():
    held = places(("a", CROWD), ("b", CROWD), b=LinkUse.US)

    with pytest.raises(BadHandshake, match="2 bulk connections"):
        held.make_room("a")


def test_a_link_that_is_over_frees_all_its_places():
    held = places(("a", CROWD), ("a", CROWD), ("b", CROWD))

    held.remove("a")
    held.remove("a")

    assert held.make_room("b") == []


def test_a_connection_that_has_ended_frees_its_place():
    held = places(("a", CROWD), ("a", CROWD))

    held.leave("a", 1)
    held.leave("a", 1)
    held.leave("unknown", 7)

    assert held.make_room("b") == []
    held.remove("a")
