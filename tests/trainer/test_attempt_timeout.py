"""How long an attempt may take: learned from those that finished, and from those that were late."""

from p2pswarm.trainer.attempt_timeout import (
    MEASURED,
    SLOWEST_FACTOR,
    TIMEOUT_FIRST_S,
    TIMEOUT_MIN_S,
    USUAL_MAX_S,
    AttemptTimeout,
)


def after(*took_s: float) -> AttemptTimeout:
    timeout = AttemptTimeout()
    for one_s in took_s:
        timeout.finished(one_s)
    return timeout


def test_the_first_attempts_have_long():
    assert AttemptTimeout().timeout_s == TIMEOUT_FIRST_S


def test_it_is_four_times_what_most_take_within_limits():
    assert after(*[5.0] * 20).timeout_s == 20.0
    assert after(*[0.01] * 20).timeout_s == TIMEOUT_MIN_S
    assert after(*[200.0] * 20).timeout_s == USUAL_MAX_S


def test_what_took_longest_may_take_as_long_again_until_it_is_forgotten():
    timeout = after(*[0.1] * MEASURED, 1000.0)
    assert timeout.timeout_s == SLOWEST_FACTOR * 1000.0

    for _ in range(MEASURED):
        timeout.finished(0.1)

    assert timeout.timeout_s == TIMEOUT_MIN_S


def test_a_late_attempt_doubles_it_until_one_finishes():
    timeout = after(0.1)

    assert timeout.late(TIMEOUT_MIN_S) == 2 * TIMEOUT_MIN_S
    assert timeout.late(TIMEOUT_MIN_S) == 2 * TIMEOUT_MIN_S
    assert timeout.timeout_s == 2 * TIMEOUT_MIN_S
    assert timeout.late(2 * TIMEOUT_MIN_S) == timeout.timeout_s == 4 * TIMEOUT_MIN_S

    timeout.finished(0.1)
    assert timeout.timeout_s == TIMEOUT_MIN_S
