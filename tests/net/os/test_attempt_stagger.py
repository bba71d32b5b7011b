"""When the next address is tried beside those under way."""

from hypothesis import given
from hypothesis import strategies as st

from p2pswarm.net.os.attempt_stagger import (
    ATTEMPT_DELAY_S,
    DELAY_MAX_S,
    HANDSHAKE_RTTS,
    TIMES_MAX,
    AttemptStagger,
    ConnectTimes,
)


def test_an_address_that_shows_nothing_holds_up_the_next_for_a_quarter_of_a_second():
    stagger = AttemptStagger()
    assert stagger.due(0.0)

    stagger.on_attempt(1.0)

    assert not stagger.due(1.0 + ATTEMPT_DELAY_S - 0.01)
    assert stagger.due(1.0 + ATTEMPT_DELAY_S)


def test_one_at_which_somebody_is_holds_it_up_for_a_handshake():
    stagger = AttemptStagger()
    stagger.on_attempt(0.0)

    stagger.on_connection(0.2, 0.2)

    assert stagger.next_s == 0.2 + HANDSHAKE_RTTS * 0.2


def test_a_known_far_host_has_the_time_that_it_took_before_but_no_second_one():
    stagger = AttemptStagger(0.4)

    stagger.on_attempt(0.0)
    assert stagger.next_s > 0.5
    stagger.on_attempt(1.0)

    assert stagger.next_s == 1.0 + ATTEMPT_DELAY_S


def test_a_failure_lets_the_next_address_be_tried_at_once():
    stagger = AttemptStagger(0.4)
    stagger.on_attempt(0.0)

    stagger.on_failure()

    assert stagger.due(0.0)


@given(st.floats(0, 100), st.lists(st.tuples(st.floats(0, 10), st.floats(0, 10)), max_size=20))
def test_no_address_holds_the_next_up_for_more_than_a_second_after_it_was_heard_of(first_s, steps):
    """Whoever accepts connections and says nothing is no worse than that."""
    stagger, now_s = AttemptStagger(first_s), 0.0
    stagger.on_attempt(now_s)
    assert ATTEMPT_DELAY_S <= stagger.next_s <= DELAY_MAX_S
    for pause_s, took_s in steps:
        now_s += pause_s
        before_s = stagger.next_s
        stagger.on_connection(took_s, now_s)
        assert before_s <= stagger.next_s <= max(before_s, now_s + DELAY_MAX_S)


def test_the_newest_times_are_remembered_and_no_more_than_there_is_room_for():
    times = ConnectTimes()
    for host in range(TIMES_MAX + 1):
        times.note(str(host), 0.1)
    times.note("1", 0.3)

    assert times.of("0") == 0.0
    assert times.of("1") == 0.3
    assert len(times._took_s) == TIMES_MAX
