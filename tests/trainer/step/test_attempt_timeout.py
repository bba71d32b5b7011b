"""How long an attempt may take: learned from those that finished, and from those that were late."""

from p2pswarm.run.push_io import PUSH_S
from p2pswarm.trainer.step.attempt_timeout import (
    BACKOFF,
    BACKOFF_MAX_S,
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


def test_who_is_under_way_when_others_are_late_may_take_twice_its_time_and_not_more():
    timeout = after(0.1)
    timeout.late(TIMEOUT_MIN_S)
    timeout.late(2 * TIMEOUT_MIN_S)

    assert timeout.timeout_s == 4 * TIMEOUT_MIN_S
    assert timeout.extended_s(TIMEOUT_MIN_S) == BACKOFF * TIMEOUT_MIN_S
    assert timeout.extended_s(4 * TIMEOUT_MIN_S) == 4 * TIMEOUT_MIN_S


def test_what_finished_late_gives_all_that_are_under_way_its_time_too():
    assert after(100.0).extended_s(TIMEOUT_MIN_S) == 400.0


def test_attempts_that_are_late_are_given_an_hour_at_most():
    timeout = after(0.1)

    for _ in range(20):
        timeout.late(timeout.timeout_s)

    assert timeout.timeout_s == BACKOFF_MAX_S


def test_no_push_ends_before_the_attempt_that_it_belongs_to():
    """A fixed limit below it would end every attempt of a slow swarm, whatever was learned."""
    assert after(BACKOFF_MAX_S).timeout_s <= PUSH_S
