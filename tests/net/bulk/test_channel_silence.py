"""When a bulk connection counts as silent: soon, and never without a reason."""

from hypothesis import given
from hypothesis import strategies as st

from p2pswarm.net.bulk.channel_silence import (
    BLIND_S,
    CALM_S,
    COUNTED_S_MAX,
    PATIENCE_S_MAX,
    REPORT_S,
    ChannelSilence,
)

PATIENCE_S = 1.4


def found_s(silence, at_s, *, acknowledged=0, step_s=REPORT_S):
    """How long reports of a connection that brings nothing go on until it is silent."""
    now_s = at_s
    while not silence.on_report(0, 3, 5, acknowledged, PATIENCE_S, now_s):
        assert now_s < at_s + 1000, "never found"
        now_s += step_s
    return now_s - at_s


def test_a_connection_that_brings_nothing_is_found_within_three_seconds():
    assert PATIENCE_S <= found_s(ChannelSilence(), 100.0) <= PATIENCE_S + REPORT_S


def test_where_the_kernel_says_nothing_more_patience_is_needed():
    assert found_s(ChannelSilence(), 0.0, acknowledged=None) >= BLIND_S


def test_each_that_is_closed_doubles_the_patience_and_calm_halves_it_again():
    silence = ChannelSilence()
    at_s, took = 0.0, []
    for _ in range(6):
        took.append(found_s(silence, at_s))
        at_s += took[-1]

    assert took == sorted(took)
    assert took[1] >= 2 * PATIENCE_S
    assert PATIENCE_S_MAX <= took[-1] <= PATIENCE_S_MAX + REPORT_S
    assert found_s(silence, at_s + 10 * CALM_S) == took[0]


def test_a_peer_that_stood_still_is_no_silence():
    """Its reports stop, and those that waited come all at once."""
    silence = ChannelSilence()
    assert not silence.on_report(0, 3, 5, 0, PATIENCE_S, 0.0)

    assert not silence.on_report(0, 3, 5, 0, COUNTED_S_MAX + 0.1, 60.0)
    assert not any(silence.on_report(0, 3, 5, 0, COUNTED_S_MAX + 0.1, 60.0) for _ in range(100))


def test_one_that_has_ended_is_forgotten():
    silence = ChannelSilence()
    silence.on_report(0, 3, 5, 0, PATIENCE_S, 0.0)
    silence.forget(0)
    silence.forget(0)

    assert len(silence) == 0
    assert not silence.on_report(0, 3, 5, 0, PATIENCE_S, 60.0)


reports = st.tuples(
    st.integers(0, 3),  # chunks that came since
    st.integers(0, 3),  # chunks that were taken since
    st.integers(0, 2),  # bytes acknowledged since
    st.floats(0.0, 5.0),  # seconds since
)


@given(st.lists(reports, max_size=80), st.floats(0.1, 8.0), st.booleans())
def test_only_what_made_no_progress_for_the_patience_is_ever_silent(told, patience_s, blind):
    silence = ChannelSilence()
    came = taken = acknowledged = 0
    now_s = since_s = 0.0
    first = True
    for more_came, more_taken, more_acknowledged, passed_s in told:
        now_s += passed_s
        taken += more_taken
        moved = min(more_came, taken - came)
        came, acknowledged = came + moved, acknowledged + more_acknowledged
        known = None if blind else acknowledged
        silent = silence.on_report(0, came, taken, known, patience_s, now_s)
        if first or moved or (more_acknowledged and not blind) or came == taken:
            first, since_s = False, now_s
            assert not silent
        if silent:
            assert now_s - since_s >= min(patience_s, PATIENCE_S_MAX) - 1e-9
            first = True


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1), st.integers(0, 50))
def test_whatever_a_peer_claims_nothing_is_raised(came, again, taken):
    silence = ChannelSilence()
    for step, claim in enumerate((came, again, came)):
        silence.on_report(7, claim, taken, 0, PATIENCE_S, float(step))

    assert len(silence) <= 1
