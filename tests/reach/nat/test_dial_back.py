"""Whom we dial for others, how often, and whom we ask."""

from hypothesis import given
from hypothesis import strategies as st

from p2pswarm.base.ids import Address, Contact, PeerId
from p2pswarm.reach.nat.dial_back import (
    GROUP_MAX,
    OBSERVERS,
    PEER_MAX,
    TOGETHER_MAX,
    TOTAL_MAX,
    WINDOW_S,
    DialBackLimits,
    Observer,
    choose,
    may_dial,
)


def peer(number: int) -> PeerId:
    return PeerId(number.to_bytes(32))


def dialled(limits: DialBackLimits, number: int, host: str, now_s: float) -> bool:
    """Dial for a peer at once, if that is allowed."""
    begun = limits.begin(peer(number), host, now_s)
    if begun:
        limits.on_end(peer(number))
    return begun


def test_one_peer_has_a_few_dials_a_minute():
    limits = DialBackLimits()

    begun = [dialled(limits, 1, "1.1.1.1", float(at)) for at in range(10)]

    assert sum(begun) == PEER_MAX
    assert dialled(limits, 1, "1.1.1.1", WINDOW_S)


def test_peers_of_one_group_share_its_dials():
    limits = DialBackLimits()

    begun = [dialled(limits, at, f"1.1.{at}.1", 0.0) for at in range(40)]

    assert sum(begun) == GROUP_MAX
    assert dialled(limits, 99, "2.2.2.2", 0.0)


def test_one_dial_at_a_time_for_a_peer_and_some_for_all():
    limits = DialBackLimits()

    assert limits.begin(peer(0), "9.9.9.9", 0.0)
    assert not limits.begin(peer(0), "9.9.9.9", 0.0)
    begun = [limits.begin(peer(at), f"{at}.1.1.1", 0.0) for at in range(1, 40)]
    assert sum(begun) == TOGETHER_MAX - 1
    limits.on_end(peer(0))
    assert limits.begin(peer(77), "77.1.1.1", 0.0)


@given(
    asked=st.lists(
        st.tuples(st.integers(0, 40), st.integers(0, 255), st.floats(0.0, 5.0)), max_size=400
    )
)
def test_no_minute_has_more_dials_than_allowed(asked):
    limits, now_s, dials = DialBackLimits(), 0.0, []
    for number, network, pause_s in asked:
        now_s += pause_s
        if dialled(limits, number, f"{network}.1.1.1", now_s):
            dials.append(now_s)

    for begin_s in dials:
        assert sum(begin_s <= at_s < begin_s + WINDOW_S for at_s in dials) <= TOTAL_MAX


def test_nobody_has_us_dial_our_own_machine_or_what_is_no_host():
    assert may_dial("198.51.100.7", "203.0.113.1")
    assert may_dial("192.168.1.7", "192.168.1.5")
    assert may_dial("127.0.0.1", "127.0.0.1")
    for host in ("127.0.0.1", "::1", "203.0.113.1", "0.0.0.0", "224.0.0.1", "fe80::1%eth0", "name"):
        assert not may_dial(host, "203.0.113.1")


def observer(host: str, *, dialled: bool = True) -> Observer:
    return Observer(Contact(peer(1), Address(host, 1)), host, dialled)


def test_observers_are_of_different_groups_and_rather_those_that_we_chose():
    near = [observer("1.1.0.1", dialled=False), observer("1.1.0.2"), observer("1.1.0.3")]

    chosen = choose([*near, observer("2.2.0.1"), observer("3.3.0.1"), observer("4.4.0.1")], never)

    assert len(chosen) == OBSERVERS
    assert chosen[0].host == "1.1.0.2"
    assert [each.host for each in chosen[1:]] == ["2.2.0.1", "3.3.0.1"]


def test_who_was_asked_longest_ago_is_asked_first():
    times = {"1.1.0.1": 5.0, "2.2.0.1": 1.0, "3.3.0.1": 9.0, "4.4.0.1": 3.0}

    chosen = choose([observer(host) for host in times], times.get)

    assert [each.host for each in chosen] == ["2.2.0.1", "4.4.0.1", "1.1.0.1"]


def never(_host: str) -> None:
    return None
