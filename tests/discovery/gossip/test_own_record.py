"""When our own record is renewed: at once for what concerns others, rarely in a large run."""

import random

from discovery.gossip.harness import PEERS, RUN, SERVING, TRAINING, card
from hypothesis import given
from hypothesis import strategies as st

from p2pswarm.discovery.gossip.messages import LIFE_MOST_S, VERSION_MAX, RunStanding
from p2pswarm.discovery.gossip.own_record import (
    RENEW_LEAST_S,
    RENEWALS_PER_S,
    URGENT_LEAST_S,
    OwnRecord,
)
from p2pswarm.discovery.gossip.record import Activity, FigureKey, RunRole, figures

CARD = card("alice")


def own() -> OwnRecord:
    return OwnRecord(PEERS["alice"], RUN, random.Random(1))


def busy(queue_s: float, state: int = Activity.WORKING) -> RunStanding:
    return RunStanding(RunRole.SERVER, state, 0, figures({FigureKey.QUEUE_S: queue_s}))


def test_who_has_nothing_to_say_says_nothing():
    assert own().next_deadline_s() == float("inf")


def test_a_standing_goes_out_at_once_and_again_before_its_life_is_over():
    mine = own()

    mine.stand(SERVING)
    assert mine.next_deadline_s() < 100.0
    first = mine.sign(CARD, 10, 100.0, 5000)

    assert (first.version, first.standings) == (5000, (SERVING,))
    assert 100 + 0.9 * RENEW_LEAST_S <= mine.next_deadline_s() <= 100 + 1.1 * RENEW_LEAST_S
    assert first.lives_s >= 3 * RENEW_LEAST_S


def test_a_new_load_waits_and_a_new_state_does_not():
    mine = own()
    mine.stand(busy(0.1))
    mine.sign(CARD, 10, 100.0, 5000)

    mine.stand(busy(0.9))
    assert mine.next_deadline_s() > 104
    mine.stand(busy(0.9, Activity.LEAVING))
    assert mine.next_deadline_s() == 100.0 + URGENT_LEAST_S


def test_a_new_card_goes_out_at_once():
    mine = own()
    mine.card_is(CARD)
    mine.stand(SERVING)
    mine.sign(CARD, 10, 100.0, 5000)

    mine.card_is(CARD)
    assert mine.next_deadline_s() > 104
    mine.card_is(card("alice", seq=2))
    assert mine.next_deadline_s() == 100.0 + URGENT_LEAST_S


def test_a_node_with_two_roles_says_both_and_goes_on_with_one():
    mine = own()
    mine.stand(SERVING)
    mine.stand(TRAINING)
    assert mine.sign(CARD, 10, 100.0, 5000).standings == (SERVING, TRAINING)

    mine.withdraw(RunRole.SERVER)
    mine.withdraw(RunRole.SERVER)
    assert mine.next_deadline_s() == 100.0 + URGENT_LEAST_S
    assert mine.sign(CARD, 10, 101.0, 6000).standings == (TRAINING,)


def test_who_leaves_says_so_once_and_for_as_long_as_its_last_record_lives():
    mine = own()
    mine.stand(SERVING)
    last = mine.sign(CARD, 4000, 100.0, 5000)

    mine.withdraw(RunRole.SERVER)
    gone = mine.sign(CARD, 10, 101.0, 5001)

    assert gone.left
    assert gone.lives_s >= last.lives_s
    assert mine.next_deadline_s() == float("inf")


def test_a_clock_that_goes_back_takes_no_version_back():
    mine = own()
    mine.stand(SERVING)

    assert mine.sign(CARD, 10, 100.0, 5000).version == 5000
    assert mine.sign(CARD, 10, 105.0, 1000).version == 5001


def test_who_was_here_before_with_a_better_clock_goes_on_above_that():
    mine = own()
    mine.stand(SERVING)
    mine.sign(CARD, 10, 100.0, 1000)

    mine.heard_of(900, 101.0)
    assert mine.next_deadline_s() > 104
    mine.heard_of(9000, 101.0)

    assert mine.next_deadline_s() == 101.0
    assert mine.sign(CARD, 10, 101.0, 1100).version == 9001


def test_a_clock_at_the_end_of_time_makes_no_version_that_nobody_reads():
    mine = own()
    mine.stand(SERVING)

    assert mine.sign(CARD, 10, 100.0, 1 << 60).version == VERSION_MAX
    assert mine.sign(CARD, 10, 105.0, 1 << 60).version == VERSION_MAX
    mine.heard_of(VERSION_MAX, 106.0)


@given(st.integers(1, 4096))
def test_all_members_together_renew_no_more_than_one_can_follow(members):
    mine = own()
    mine.stand(SERVING)
    made = mine.sign(CARD, members, 0.0, 1)
    period_s = mine.next_deadline_s()

    assert members / period_s <= 1.12 * RENEWALS_PER_S
    assert 2 * period_s < made.lives_s <= LIFE_MOST_S
