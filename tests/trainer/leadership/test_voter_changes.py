"""When voters are changed at once: for the dead and the missing ones, and not without end."""

from hypothesis import given
from hypothesis import strategies as st

from p2pswarm.run.chain.record import VoterId
from p2pswarm.trainer.leadership.voter_changes import AGAIN_S, AT_ONCE, SPARE_S, VoterChanges

A, B, C, D, E = (VoterId(bytes([n]) * 32, bytes(8)) for n in range(1, 6))
NOBODY: set[bytes] = set()


def test_a_dead_voter_is_replaced_at_once():
    assert VoterChanges().due((A, B, C), (A, B, D), {C.peer}, 1.0)


def test_missing_voters_are_added_at_once():
    assert VoterChanges().due((A, B, C), (A, B, C, D, E), NOBODY, 1.0)


def test_what_can_wait_for_the_step_waits():
    changes = VoterChanges()

    assert not changes.due((A, B, C), (A, B, D), NOBODY, 1.0)
    assert not changes.due((A, B, C), (A,), NOBODY, 1.0 + SPARE_S)
    assert not changes.due((A, B, C), (A, B, C), {C.peer}, 1.0)


def test_voters_are_removed_when_no_spare_has_come_for_a_while():
    changes = VoterChanges()

    assert not changes.due((A, B, C), (A,), {C.peer}, 1.0)
    assert not changes.due((A, B, C), (A,), {C.peer}, 0.9 + SPARE_S)
    assert changes.due((A, B, C), (A,), {C.peer}, 1.0 + SPARE_S)


def test_a_voter_that_came_back_begins_the_wait_anew():
    changes = VoterChanges()
    changes.due((A, B, C), (A,), {C.peer}, 1.0)
    changes.whole()

    assert not changes.due((A, B, C), (A,), {C.peer}, 1.0 + SPARE_S)
    changes.due((A, B, C), (A, B, C), NOBODY, 2.0 + SPARE_S)
    assert not changes.due((A, B, C), (A,), {C.peer}, 2.0 + 2 * SPARE_S)


def test_while_a_majority_is_lost_nothing_is_proposed_and_who_comes_back_is_waited_for():
    changes, two = VoterChanges(), {B.peer, C.peer}

    assert not changes.due((A, B, C), (A, D, C), two, 1.0)
    assert not changes.due((A, B, C), (A,), two, 1.0 + SPARE_S)
    assert not changes.due((A, B, C), (A,), {C.peer}, 2.0 + SPARE_S)
    assert changes.due((A, B, C), (A,), {C.peer}, 2.0 + 2 * SPARE_S)


def test_records_of_their_own_are_few():
    changes = VoterChanges()

    for _ in range(AT_ONCE):
        assert changes.due((A, B, C), (A, B, D), {C.peer}, 100.0)
        changes.proposed(100.0)

    assert not changes.due((A, B, C), (A, B, D), {C.peer}, 99.0 + AGAIN_S)
    assert changes.due((A, B, C), (A, B, D), {C.peer}, 100.0 + AGAIN_S)


@given(st.lists(st.floats(0.0, 30.0), max_size=200))
def test_a_voter_that_comes_and_goes_does_not_flood_the_chain(pauses_s):
    changes, now_s, records = VoterChanges(), 50.0, 0
    for pause_s in pauses_s:
        now_s += pause_s
        if changes.due((A, B, C), (A, B, D), {C.peer}, now_s):
            changes.proposed(now_s)
            records += 1

    assert records <= AT_ONCE + (now_s - 50.0) / AGAIN_S + 1e-6
