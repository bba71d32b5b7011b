"""How long an observer waits for a reduction that is decided."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pswarm.server.observing import SILENT_S, STEPS_KEPT, ObserverPatience


@pytest.fixture
def patience():
    return ObserverPatience()


def test_a_reduction_that_is_not_decided_is_waited_for_without_end(patience):
    patience.piece_began(3)
    patience.piece_ended(3, now_s=1.0, came=True)

    assert patience.give_up_s(3) is None


def test_one_that_is_decided_and_of_which_nothing_comes_is_given_up(patience):
    patience.decided(3, now_s=10.0)

    assert patience.give_up_s(3) == 10.0 + SILENT_S


def test_a_later_decision_tells_of_the_earlier_ones_as_well(patience):
    patience.decided(5, now_s=10.0)
    patience.decided(4, now_s=20.0)

    assert patience.give_up_s(3) == patience.give_up_s(4) == 10.0 + SILENT_S
    assert patience.give_up_s(6) is None


def test_a_piece_on_its_way_takes_as_long_as_it_takes(patience):
    patience.decided(3, now_s=10.0)
    patience.piece_began(3)
    assert patience.give_up_s(3) is None

    patience.piece_ended(3, now_s=400.0, came=True)

    assert patience.give_up_s(3) == 400.0 + SILENT_S


def test_pieces_of_a_later_step_that_wait_for_their_order_say_nothing_of_this_one(patience):
    patience.decided(3, now_s=10.0)
    patience.piece_began(4)

    assert patience.give_up_s(3) == 10.0 + SILENT_S


def test_announcements_that_come_to_nothing_neither_lengthen_nor_shorten_the_wait(patience):
    patience.decided(3, now_s=10.0)
    patience.piece_began(3)
    patience.piece_ended(3, now_s=12.0, came=True)

    for step in (3, *range(1000, 1000 + 2 * STEPS_KEPT)):
        patience.piece_began(step)
        patience.piece_ended(step, now_s=14.0, came=False)

    assert patience.give_up_s(3) == 12.0 + SILENT_S


def test_the_same_decision_twice_gives_no_more_time(patience):
    patience.decided(3, now_s=10.0)
    patience.decided(3, now_s=14.0)

    assert patience.give_up_s(3) == 10.0 + SILENT_S


STEP = st.integers(0, 200)
INPUT = st.tuples(st.sampled_from(("began", "came", "failed", "decided")), STEP)


@given(st.lists(INPUT, max_size=300), STEP)
def test_whatever_comes_a_reduction_is_given_up_only_when_decided_silent_and_alone(inputs, step):
    patience, under_way, decided_s, heard_s = ObserverPatience(), {}, {}, {}

    for now_s, (kind, number) in enumerate(inputs):
        if kind == "began":
            patience.piece_began(number)
            under_way[number] = under_way.get(number, 0) + 1
        elif kind == "decided":
            patience.decided(number, now_s)
            decided_s.setdefault(number, now_s)
        elif under_way.get(number):
            patience.piece_ended(number, now_s, came=kind == "came")
            under_way[number] -= 1
            if kind == "came":
                heard_s[number] = now_s

    give_up_s = patience.give_up_s(step)
    if not any(one >= step for one in decided_s) or under_way.get(step):
        assert give_up_s is None
    elif len(decided_s) <= STEPS_KEPT and len(heard_s) <= STEPS_KEPT:
        first_s = min(at_s for one, at_s in decided_s.items() if one >= step)
        assert give_up_s == max(first_s, heard_s.get(step, 0.0)) + SILENT_S
    sizes = len(patience._heard_s), len(patience._decided_s)
    assert max(sizes) <= STEPS_KEPT
    assert len(patience._under_way) <= sum(under_way.values())
