"""Moves make a run weary, unless they are cheap and answer a change of who is there."""

from hypothesis import given
from hypothesis import strategies as st

from p2pswarm.plan.weariness import MOVES_A_CHANGE, WEARY, WEARY_S, Weariness

SERVERS = tuple(bytes([number]) for number in range(8))


def test_as_many_moves_as_servers_within_an_hour_make_a_move_bring_five_times_more():
    weariness = Weariness()
    weariness.see(SERVERS, 0.0)
    for _ in SERVERS:
        weariness.moved(1.0)

    assert weariness.factor(cheap=False) == weariness.factor(cheap=True) == 1.0 + WEARY
    assert not weariness.see(SERVERS, 2.0 + WEARY_S)
    assert weariness.factor(cheap=False) == 1.0


def test_moves_that_answer_a_change_count_only_where_they_are_dear():
    weariness = Weariness()
    assert not weariness.see(SERVERS, 0.0)
    assert weariness.see(SERVERS[1:], 1.0)
    for _ in range(MOVES_A_CHANGE):
        weariness.moved(2.0)

    assert weariness.factor(cheap=True) == 1.0
    assert weariness.factor(cheap=False) > 1.0


@given(st.lists(st.tuples(st.floats(0, 4000), st.sets(st.sampled_from(SERVERS)), st.booleans())))
def test_a_factor_is_never_below_one_and_cheap_moves_never_weary_more(told):
    weariness = Weariness()
    for now_s, there, moves in sorted(told, key=lambda each: each[0]):
        weariness.see(there, now_s)
        if moves:
            weariness.moved(now_s)
        assert 1.0 <= weariness.factor(cheap=True) <= weariness.factor(cheap=False)
