"""The pace of steps: the usual one is the median of the last, and three of it stand still."""

import pytest

from p2pswarm.progress.step_pace import STALL_STEPS, STEPS_TIMED, StepPace


def pace(*took_s: float, least_s: float = 0.0) -> StepPace:
    made = StepPace(least_s)
    for each_s in took_s:
        made.add(each_s)
    return made


def test_before_the_first_step_nothing_is_known():
    assert (pace().usual_s, pace().stall_s) == (None, None)


@pytest.mark.parametrize(
    ("took_s", "usual_s"), [((2.0,), 2.0), ((1.0, 9.0, 2.0), 2.0), ((4.0, 2.0), 3.0)]
)
def test_a_step_that_takes_several_usual_ones_stands_still(took_s, usual_s):
    made = pace(*took_s)

    assert made.usual_s == usual_s
    assert made.stall_s == STALL_STEPS * usual_s


def test_nobody_minds_less_than_the_least():
    assert pace(0.01, least_s=1.0).stall_s == 1.0


def test_old_steps_are_forgotten():
    assert pace(*[9.0] * STEPS_TIMED, *[1.0] * STEPS_TIMED).usual_s == 1.0
