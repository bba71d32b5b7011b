"""What a server tells of the road beyond it."""

from hypothesis import given
from hypothesis import strategies as st

from p2pswarm.server.gradient_returns import GradientReturns


def test_nothing_is_known_before_a_gradient_came_or_is_overdue():
    returns = GradientReturns()
    assert returns.usual_s(5.0) == 0.0
    returns.left((0, 0), 5.0)

    assert returns.usual_s(5.0) == 0.0
    assert returns.usual_s(9.0) == 4.0


def test_a_road_that_is_shut_is_told_by_its_oldest():
    returns = GradientReturns()
    for number in range(20):
        returns.left((number, 0), 10.0 * number)
        returns.came((number, 0), 10.0 * number + 2.0)
    returns.left((20, 0), 200.0)
    returns.left((21, 0), 240.0)

    assert returns.usual_s(201.0) == 2.0
    assert returns.usual_s(250.0) == 50.0
    returns.drop([(20, 0)])
    assert returns.usual_s(250.0) == 10.0
    returns.drop(None)
    assert returns.usual_s(1e6) == 2.0


def test_gradients_of_strangers_change_nothing():
    returns = GradientReturns()
    returns.came((1, 0), 3.0)
    returns.drop([(1, 0)])

    assert returns.usual_s(3.0) == 0.0


@given(st.lists(st.floats(0.1, 100.0), min_size=1, max_size=50))
def test_what_is_told_lies_between_the_fastest_and_the_slowest(took_s):
    returns, now_s = GradientReturns(), 0.0
    for number, each_s in enumerate(took_s):
        returns.left((number, 0), now_s)
        now_s += each_s
        returns.came((number, 0), now_s)

    assert 0.999 * min(took_s) <= returns.usual_s(now_s) <= 1.001 * max(took_s)
