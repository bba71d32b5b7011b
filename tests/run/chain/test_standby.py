import random
from itertools import pairwise

import pytest
from run.chain.harness import peer

from p2pswarm.run.chain.standby import (
    ATTEMPT_S,
    CHANCE_S,
    KEEN_S,
    RANK_S,
    SILENCE_S,
    Standby,
    StandbyState,
)
from p2pswarm.run.messages.types import TERM_MAX

A, B = peer("a"), peer("b")


def waiting(rank: int = 0, now_s: float = 0.0) -> Standby:
    return Standby(rank, random.Random(1), now_s)


def following(rank: int = 0) -> Standby:
    standby = waiting(rank)
    standby.heard(A, 1, 10.0)
    return standby


@pytest.mark.parametrize("rank", [0, 1, 3])
def test_it_stands_after_silence_and_its_rank(rank):
    standby = following(rank)

    least_s = 10.0 + SILENCE_S + rank * RANK_S
    assert least_s <= standby.next_deadline_s <= least_s + CHANCE_S
    assert standby.on_deadline(standby.next_deadline_s) == 2
    assert standby.state is StandbyState.STANDING


@pytest.mark.parametrize("rank", [0, 1])
def test_a_lost_link_to_the_coordinator_shortens_the_wait(rank):
    standby = following(rank)

    standby.link_lost(A, 11.0)

    assert 11.0 + rank * RANK_S <= standby.next_deadline_s <= 11.0 + rank * RANK_S + CHANCE_S


def test_other_links_do_not_matter():
    standby = following()
    before_s = standby.next_deadline_s

    standby.link_lost(B, 11.0)

    assert standby.next_deadline_s == before_s


def test_every_word_of_a_coordinator_begins_the_wait_anew():
    standby = following()

    assert not standby.heard(A, 1, 14.0)

    assert standby.next_deadline_s >= 14.0 + SILENCE_S


def test_it_gives_way_to_who_leads_a_term_not_below_its_own():
    standby = following()
    standby.on_deadline(20.0)

    assert not standby.heard(A, 1, 20.1)
    assert standby.state is StandbyState.STANDING
    assert standby.heard(B, 2, 20.2)

    assert standby.state is StandbyState.FOLLOWING
    assert standby.coordinator == B


def test_an_attempt_that_hangs_is_given_up_and_tried_again_in_a_higher_term():
    standby = following()
    standby.on_deadline(20.0)
    assert standby.next_deadline_s == 20.0 + ATTEMPT_S

    assert standby.on_deadline(23.0) is None
    assert standby.on_deadline(standby.next_deadline_s) == 3


def test_a_denied_attempt_takes_a_term_above_what_it_heard_of():
    standby = following()
    standby.on_deadline(20.0)

    standby.failed(7, 20.5)

    assert standby.on_deadline(standby.next_deadline_s) == 8


def test_pauses_grow_to_a_limit():
    standby = following()
    pauses_s = []
    for _ in range(8):
        now_s = standby.next_deadline_s
        standby.on_deadline(now_s)
        standby.failed(0, now_s)
        pauses_s.append(standby.next_deadline_s - now_s)

    assert pauses_s[0] <= CHANCE_S
    assert 9.0 <= pauses_s[-1] <= 9.0 + CHANCE_S


def test_pauses_do_not_grow_while_the_voters_may_still_find_that_the_coordinator_is_gone():
    standby = following()
    standby.link_lost(A, 11.0)
    tries_s = []
    while (now_s := standby.next_deadline_s) < 11.0 + KEEN_S:
        standby.on_deadline(now_s)
        standby.failed(0, now_s + 0.001)
        tries_s.append(now_s)

    assert all(b - a <= CHANCE_S + 0.001 for a, b in pairwise([11.0, *tries_s, 11.0 + KEEN_S]))
    assert len(tries_s) < 60  # a few small calls each
    pauses_s = []
    for _ in range(3):
        now_s = standby.next_deadline_s
        standby.on_deadline(now_s)
        standby.failed(0, now_s)
        pauses_s.append(standby.next_deadline_s - now_s)
    assert pauses_s[-1] > 3 * (RANK_S + CHANCE_S)


def test_who_leads_waits_for_nobody_until_it_is_deposed():
    standby = following()
    standby.on_deadline(20.0)

    standby.leads()
    standby.link_lost(A, 21.0)
    assert standby.next_deadline_s is None
    assert standby.state is StandbyState.LEADING

    assert standby.heard(B, 3, 22.0)
    assert standby.next_deadline_s >= 22.0 + SILENCE_S


def test_a_founder_stands_at_once():
    standby = waiting(now_s=3.0)

    standby.start(3.0)

    assert standby.on_deadline(3.0) == 1


def test_when_terms_run_out_nobody_stands():
    standby = waiting()
    standby.heard(A, TERM_MAX, 1.0)

    assert standby.on_deadline(10.0) is None
    assert standby.next_deadline_s is None


def test_the_successor_that_a_coordinator_names_stands_when_the_voters_have_heard_of_it():
    standby = following(rank=3)

    standby.handed_over(A, B, 11.0, ours=True)
    standby.link_lost(A, 11.1)
    assert standby.named

    assert standby.next_deadline_s == 11.0 + RANK_S
    assert standby.on_deadline(standby.next_deadline_s) == 2


def test_the_others_wait_for_the_successor_as_for_a_coordinator():
    standby = following()

    standby.handed_over(A, B, 11.0, ours=False)
    standby.link_lost(A, 11.1)

    assert standby.next_deadline_s >= 11.0 + SILENCE_S


def test_only_the_coordinator_that_is_followed_names_a_successor():
    standby = following()
    before_s = standby.next_deadline_s

    standby.handed_over(B, B, 11.0, ours=True)

    assert standby.next_deadline_s == before_s


def test_a_trainer_that_was_named_is_so_no_more_once_it_leads_fails_twice_or_follows():
    for ended in (
        lambda one: one.leads(),
        lambda one: (one.failed(2, 12.0), one.failed(3, 13.0)),
        lambda one: one.heard(B, 5, 12.0),
    ):
        standby = following()
        standby.handed_over(A, B, 11.0, ours=True)
        ended(standby)
        assert not standby.named
