"""One link a peer: both sides choose the same one, without asking each other."""

import itertools
from dataclasses import replace

import pytest

from p2pswarm.base.ids import Address, Contact, PeerId
from p2pswarm.net.endpoint.link_table import SAME_TIME_S, LinkEntry, LinkTable, ProvenAddress

SMALL, LARGE = PeerId(bytes(31) + b"\1"), PeerId(bytes(31) + b"\2")
INCARNATION = b"i" * 16
ORDERS = list(itertools.permutations(["by small", "by large"]))


def entry(link: str, peer: PeerId, dialler: PeerId, since_s: float = 0.0, who: bytes = INCARNATION):
    return LinkEntry(link, peer, Address(link.replace(" ", "-"), 1), dialler, who, since_s)


@pytest.mark.parametrize("order_here", ORDERS)
@pytest.mark.parametrize("order_there", ORDERS)
def test_two_peers_that_dial_each_other_at_once_keep_the_same_link(order_here, order_there):
    """In whatever order the two links come up at either side."""
    diallers = {"by small": SMALL, "by large": LARGE}
    here, there = LinkTable(), LinkTable()
    for link in order_here:
        here.add(entry(link, LARGE, diallers[link]))
    for link in order_there:
        verdict = there.add(entry(link, SMALL, diallers[link]))

    assert here.best(LARGE) == there.best(SMALL) == "by small"
    assert verdict.drain == ("by large",)
    assert verdict.dead == ()


def test_of_two_links_by_the_same_dialler_the_newer_counts():
    table = LinkTable()
    table.add(entry("old", LARGE, LARGE))

    verdict = table.add(entry("new", LARGE, LARGE, since_s=1.0))

    assert table.best(LARGE) == "new"
    assert verdict.drain == ("old",)


def test_a_peer_that_dials_past_an_old_link_has_lost_it():
    """The rule of the smaller id is for links that come up together."""
    table = LinkTable()
    table.add(entry("old", LARGE, SMALL))

    table.add(entry("new", LARGE, LARGE, since_s=SAME_TIME_S + 1))

    assert table.best(LARGE) == "new"


def test_links_to_a_peers_former_process_are_dead():
    table = LinkTable()
    table.add(entry("old", LARGE, SMALL))

    verdict = table.add(entry("new", LARGE, LARGE, who=b"j" * 16))

    assert verdict.dead == ("old",)
    assert verdict.drain == ()
    assert table.best(LARGE) == "new"


def test_a_link_that_ends_leaves_the_other_in_use():
    table = LinkTable()
    table.add(entry("a", LARGE, SMALL))
    table.add(entry("b", LARGE, LARGE))
    assert table.all() == ("a", "b")

    table.remove(LARGE, "a")
    assert table.best(LARGE) == "b"
    table.remove(LARGE, "b")
    table.remove(LARGE, "b")

    assert table.best(LARGE) is None
    assert table.all() == ()


def test_a_contact_is_found_by_its_peer_or_else_by_any_address_of_it():
    table = LinkTable()
    table.add(entry("old", LARGE, LARGE))
    table.add(entry("new", LARGE, LARGE, since_s=1.0))
    old, elsewhere = Address("old", 1), Address("old", 2)

    assert table.find(Contact(LARGE, elsewhere)) == "new"
    assert table.find(Contact(None, old)) is None  # the peer says so, and nobody has dialled it
    table.add(entry("dialled", LARGE, SMALL, since_s=1.0))
    assert table.find(Contact(None, Address("dialled", 1))) == "dialled"
    assert table.find(Contact(SMALL, old)) is None
    assert table.find(Contact(None, elsewhere)) is None


@pytest.mark.parametrize(
    ("dialler", "reach"),
    [(SMALL, ProvenAddress.DIALLED), (LARGE, ProvenAddress.HOST)],
    ids=["we", "the peer"],
)
def test_a_link_shows_one_address_and_less_of_it_if_the_peer_dialled(dialler, reach):
    table = LinkTable()
    table.add(entry("here", LARGE, dialler))

    assert table.reach(Contact(LARGE, Address("here", 1))) is reach
    assert table.reach(Contact(LARGE, Address("here", 2))) is ProvenAddress.CLAIMED
    assert table.reach(Contact(LARGE, Address("elsewhere", 1))) is ProvenAddress.CLAIMED
    assert table.reach(Contact(SMALL, Address("here", 1))) is ProvenAddress.CLAIMED
    assert table.reach(Contact(None, Address("here", 1))) is ProvenAddress.CLAIMED


def test_an_address_that_was_dialled_counts_though_the_peer_dialled_too():
    table = LinkTable()
    theirs = entry("here", LARGE, LARGE)
    table.add(theirs)
    table.add(replace(theirs, link="ours", dialler=SMALL))

    assert table.reach(Contact(LARGE, Address("here", 1))) is ProvenAddress.DIALLED
