"""What a node says of its reachability, and when it says nothing."""

import pytest

from p2pswarm.base.ids import Address
from p2pswarm.reach.nat.news import ReachabilityNews, on_this_machine_alone, reachable_line
from p2pswarm.reach.nat.standing import Belief, NatKind, State

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
    news = ReachabilityNews(4000)
    natted, public = Belief(State.NATTED, sure=True), Belief(State.PUBLIC, address=AT, sure=True)

    said = [
        news.line(natted, settled=False),
        news.line(public, settled=False),
        news.line(public, settled=True),
        news.line(natted, settled=True),
    ]

    assert [line[:14] for line in said] == ["", "reachable: dir", "", "reachable: no,"]


def test_a_relay_is_news_as_soon_as_it_is_there_and_until_the_node_is_reached_without():
    news, relayed = ReachabilityNews(4000), Address("198.51.100.1", 4000)
    probing, mapped = Belief(State.PROBING), Belief(State.MAPPED, address=AT, sure=True)

    said = [
        news.line(probing, settled=False, relayed=relayed),
        news.line(Belief(State.NATTED), settled=True, relayed=relayed),
        news.line(mapped, settled=True, relayed=relayed),
    ]

    assert said == [f"reachable: relayed at {relayed}", "", f"reachable: mapped at {AT}"]


def test_who_listens_on_loopback_has_nothing_to_find_out():
    assert on_this_machine_alone(Address("127.0.0.1", 1))
    assert on_this_machine_alone(Address("::1", 1))
    assert not on_this_machine_alone(Address("0.0.0.0", 1))
    assert not on_this_machine_alone(Address("::", 1))
