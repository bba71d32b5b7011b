"""What a node believes of itself, and that liars of one group cannot make it believe more."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pswarm.base.ids import Address
from p2pswarm.reach.nat.reachability import (
    AGAIN_S,
    AGAIN_STABLE_S,
    AGAIN_UNANSWERED_S,
    GROUPS_MAX,
    VOTE_S,
    AskPeers,
    Belief,
    BeliefChanged,
    GroupVotes,
    NatKind,
    ReachabilityBelief,
    State,
)

OWN, OUTSIDE, VICTIM = "192.168.1.5", "203.0.113.7", "198.51.100.66"
PORT, LEASED = 4000, 4321
ONE, TWO, THREE = "1.1.0.1", "2.2.0.1", "3.3.0.1"  # observers in groups of their own
HERE, FORWARDED = Address(OUTSIDE, PORT), Address(OUTSIDE, LEASED)


def machine(own: str | None = OWN) -> ReachabilityBelief:
    node = ReachabilityBelief(PORT)
    node.on_interface(own, 0.0)
    node.drain()
    return node


def behind_a_router() -> ReachabilityBelief:
    """Two groups see the same host, and have dialled in vain."""
    node = machine()
    for observer in (ONE, TWO):
        node.on_observation(observer, OUTSIDE, 1.0)
        node.on_dial_back(observer, HERE, 1.0, arrived=False)
    return node


def test_it_is_probing_until_a_peer_has_tried():
    node = machine()

    node.on_observation(ONE, OUTSIDE, 1.0)

    assert node.belief == Belief(State.PROBING)
    assert node.belief.reachable == "no"


def test_without_an_address_of_the_family_there_is_nothing_to_ask():
    node = machine(own=None)

    assert node.belief.state is State.ABSENT
    assert node.next_deadline_s() is None


def test_two_groups_that_arrive_at_our_own_address_make_us_public():
    node = machine(own=OUTSIDE)

    node.on_dial_back(ONE, HERE, 1.0, arrived=True)
    node.on_dial_back(TWO, HERE, 1.0, arrived=True)

    assert node.belief == Belief(State.PUBLIC, NatKind.NONE, HERE, sure=True)
    assert node.belief.reachable == "direct"


def test_one_observer_is_told_as_an_assumption():
    node = machine(own=OUTSIDE)

    node.on_dial_back(ONE, HERE, 1.0, arrived=True)

    assert node.belief == Belief(State.PUBLIC, NatKind.NONE, HERE, sure=False)


def test_single_groups_that_name_two_addresses_are_believed_only_about_one_that_we_know():
    node = machine()
    node.on_dial_back(ONE, HERE, 1.0, arrived=True)

    node.on_dial_back(TWO, Address(VICTIM, PORT), 1.0, arrived=True)
    assert node.belief.reachable == "no"
    node.on_dial_back(TWO, Address(OWN, PORT), 1.0, arrived=True)
    assert node.belief == Belief(State.PUBLIC, NatKind.NONE, Address(OWN, PORT), sure=False)


def test_two_of_three_groups_are_enough():
    node = machine()

    for observer, arrived in ((ONE, True), (TWO, False), (THREE, True)):
        node.on_dial_back(observer, HERE, 1.0, arrived=arrived)

    assert (node.belief.state, node.belief.address, node.belief.sure) == (State.PUBLIC, HERE, True)


def test_as_many_failures_as_arrivals_are_no_reachability():
    node = machine()

    for observer, arrived in ((ONE, True), (TWO, False), (THREE, True), ("4.4.0.1", False)):
        node.on_dial_back(observer, HERE, 1.0, arrived=arrived)

    assert node.belief.state is State.NATTED


def test_a_leased_port_at_which_peers_arrive_is_mapped():
    node = machine()
    node.on_lease(FORWARDED, 1.0)

    for observer in (ONE, TWO):
        node.on_dial_back(observer, HERE, 2.0, arrived=False)
        node.on_dial_back(observer, FORWARDED, 2.0, arrived=True)

    assert (node.belief.state, node.belief.address) == (State.MAPPED, FORWARDED)
    assert node.belief.reachable == "mapped"


def test_a_lost_lease_takes_its_dial_backs_along():
    node = machine()
    node.on_lease(FORWARDED, 1.0)
    node.on_dial_back(ONE, FORWARDED, 2.0, arrived=True)

    node.on_lease(None, 3.0)

    assert node.belief.state is State.PROBING
    node.on_dial_back(TWO, FORWARDED, 4.0, arrived=True)
    assert node.belief.state is State.PROBING


def test_a_new_lease_forgets_what_failed_at_its_port_and_is_tried_after_the_round_under_way():
    node = machine()
    node.on_deadline(0.0)
    node.drain()
    node.on_dial_back(ONE, HERE, 0.5, arrived=False)

    node.on_lease(HERE, 0.5)

    assert node.next_deadline_s() is None
    node.on_round_end(asked=1, answered=1, now_s=0.6)
    assert node.next_deadline_s() == 1.0
    assert node.belief.state is State.PROBING
    node.on_dial_back(ONE, HERE, 1.1, arrived=True)
    assert node.belief == Belief(State.MAPPED, NatKind.UNKNOWN, HERE, sure=False)


def test_nobody_arriving_at_our_own_address_is_a_firewall():
    node = machine(own=OUTSIDE)
    for observer in (ONE, TWO):
        node.on_observation(observer, OUTSIDE, 1.0)
        node.on_dial_back(observer, HERE, 1.0, arrived=False)

    assert node.belief == Belief(State.NATTED, NatKind.FIREWALL, None, sure=True)


@pytest.mark.parametrize(
    ("ports", "kind"),
    [
        ((), NatKind.UNKNOWN),
        ((7000,), NatKind.UNKNOWN),
        ((7000, 7000), NatKind.EASY),
        ((7000, 7001), NatKind.HARD),
        ((7000, 7000, 9), NatKind.EASY),
        ((7000, 7000, 9, 9), NatKind.UNKNOWN),
    ],
)
def test_the_kind_is_told_by_the_outside_ports_of_the_listening_port(ports, kind):
    node = behind_a_router()

    for group, port in enumerate(ports):
        node.on_outside_port(f"{group + 1}.9.0.1", Address(OUTSIDE, port), 1.0)

    assert node.belief.kind is kind
    assert node.belief.address == (Address(OUTSIDE, 7000) if kind is NatKind.EASY else None)


def test_another_own_address_is_another_beginning():
    node = behind_a_router()
    node.drain()

    node.on_interface("10.0.0.9", 5.0)

    assert node.drain() == [BeliefChanged(Belief(State.PROBING))]
    assert node.next_deadline_s() == 5.0


def test_a_round_is_asked_for_once_and_the_next_one_after_it():
    node = machine()

    node.on_deadline(0.0)
    node.on_deadline(1.0)

    assert node.drain() == [AskPeers((PORT,))]
    assert node.next_deadline_s() is None
    node.on_round_end(asked=2, answered=0, now_s=5.0)
    assert node.next_deadline_s() == 5.0 + AGAIN_UNANSWERED_S


def test_who_has_nobody_to_ask_waits_for_a_peer():
    node = machine()
    node.on_deadline(0.0)

    node.on_round_end(asked=0, answered=0, now_s=0.0)

    assert node.next_deadline_s() is None
    node.on_link(ONE, 2.0)
    assert node.next_deadline_s() == 2.0  # nobody was bothered by that round


def test_rounds_grow_rare_while_nothing_changes():
    node = behind_a_router()
    pauses = []
    for _ in range(4):
        now_s = node.next_deadline_s() or 0.0
        node.on_deadline(now_s)
        for observer in (ONE, TWO):
            node.on_dial_back(observer, HERE, now_s, arrived=False)
        node.on_round_end(asked=2, answered=2, now_s=now_s)
        pauses.append((node.next_deadline_s() or 0.0) - now_s)

    assert pauses == [AGAIN_S, AGAIN_S, AGAIN_STABLE_S, AGAIN_STABLE_S]


def test_a_peer_of_another_group_is_asked_soon_while_we_are_not_sure():
    node = machine()
    node.on_deadline(0.0)
    node.on_dial_back(ONE, HERE, 1.0, arrived=True)
    node.on_round_end(asked=1, answered=1, now_s=1.0)

    node.on_link("1.1.2.2", 2.0)  # of the group that was asked
    assert node.next_deadline_s() == 1.0 + AGAIN_S
    node.on_link(TWO, 2.0)
    assert node.next_deadline_s() == AGAIN_UNANSWERED_S
    node.on_deadline(12.0)
    node.on_dial_back(TWO, HERE, 12.0, arrived=True)
    node.on_round_end(asked=1, answered=1, now_s=12.0)
    node.on_link(THREE, 13.0)
    assert node.next_deadline_s() == 12.0 + AGAIN_S


def test_more_will_be_known_while_a_peer_of_another_group_waits_to_be_asked():
    node = machine()
    node.on_deadline(0.0)
    assert node.busy(0.0)
    node.on_dial_back(ONE, HERE, 1.0, arrived=False)
    node.on_round_end(asked=1, answered=1, now_s=1.0)
    assert not node.busy(1.0)

    node.on_link(TWO, 2.0)

    assert node.busy(2.0)
    node.on_deadline(10.0)
    node.on_round_end(asked=2, answered=1, now_s=11.0)
    assert not node.busy(11.0), "the next round would ask the same"


def test_old_votes_do_not_count():
    node = behind_a_router()

    node.on_deadline(1.0 + VOTE_S)

    assert node.belief.state is State.PROBING


ADDRESSES = st.builds(Address, st.sampled_from([OWN, OUTSIDE, VICTIM]), st.sampled_from([PORT, 9]))
LIARS = st.integers(0, 65_535).map(lambda rest: f"66.6.{rest >> 8}.{rest & 255}")
LIES = st.lists(
    st.one_of(
        st.tuples(st.just("observed"), LIARS, ADDRESSES),
        st.tuples(st.just("outside"), LIARS, ADDRESSES),
        st.tuples(st.just("arrived"), LIARS, ADDRESSES),
        st.tuples(st.just("failed"), LIARS, ADDRESSES),
    ),
    max_size=80,
)


def tell(node: ReachabilityBelief, lies: list[tuple[str, str, Address]], now_s: float) -> None:
    for what, host, address in lies:
        if what == "observed":
            node.on_observation(host, address.host, now_s)
        elif what == "outside":
            node.on_outside_port(host, address, now_s)
        else:
            node.on_dial_back(host, address, now_s, arrived=what == "arrived")


@given(lies=LIES)
def test_liars_of_one_group_alone_make_nothing_sure(lies):
    node = machine()

    tell(node, lies, 1.0)

    assert not node.belief.sure
    assert node.belief.kind not in (NatKind.EASY, NatKind.HARD)


@given(before=LIES, after=LIES)
def test_liars_of_one_group_change_no_sure_belief_of_three_honest_ones(before, after):
    """Honest peers found it natted; whatever a group says, it is not public, nor elsewhere."""
    node = machine()
    tell(node, before, 1.0)
    for observer in (ONE, TWO, THREE):
        node.on_observation(observer, OUTSIDE, 2.0)
        node.on_outside_port(observer, HERE, 2.0)
        node.on_dial_back(observer, HERE, 2.0, arrived=False)

    tell(node, after, 3.0)

    assert node.belief.reachable == "no"
    if node.belief.sure:
        assert node.belief.kind is NatKind.EASY
        assert node.belief.address == HERE


@given(before=LIES, after=LIES)
def test_liars_of_one_group_take_no_public_node_from_its_address(before, after):
    node = machine(own=OUTSIDE)
    tell(node, before, 1.0)
    for observer in (ONE, TWO, THREE):
        node.on_dial_back(observer, HERE, 2.0, arrived=True)

    tell(node, after, 3.0)

    assert node.belief == Belief(State.PUBLIC, NatKind.NONE, HERE, sure=True)


@given(groups=st.integers(1, 300))
def test_what_is_remembered_is_bounded(groups):
    votes: GroupVotes[int] = GroupVotes()

    for group in range(groups):
        votes.cast(str(group), group % 3, float(group))

    assert votes.count(float(groups)).total() == min(groups, GROUPS_MAX)
