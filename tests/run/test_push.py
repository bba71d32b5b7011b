"""One push and its retries: a second server is asked only where the first cannot have it."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pswarm.base.errors import (
    BadMessage,
    Busy,
    DialFailed,
    Late,
    LinkLost,
    NotComputed,
    NotServing,
    Refused,
    TooLarge,
)
from p2pswarm.run.member_view import MemberView, view_parts
from p2pswarm.run.messages.membership import MemberRecord
from p2pswarm.run.messages.microbatch import Receipt
from p2pswarm.run.push import (
    BUSY_MAX_S,
    MOVES,
    UNGRANTED_S,
    OnlyPeer,
    PushProgress,
    PushState,
)
from p2pswarm.run.router import AVOID_FIRST_S, REFUSED_S, UNGRANTED_PAUSE_S, Router

RECEIPT = Receipt(0.1, 0.2)
NOBODY = "nobody serves stage 1"
DEFINITE = (Busy("full", 2.0), NotServing("of another step"))
AMBIGUOUS = (LinkLost("gone"), Late("600 s"), Refused("internal error"), BadMessage("a View"))


def member(name):
    return MemberRecord(bytes([name]) * 32, f"10.0.0.{name}:1", 1, name, ready=True)


FIRST, SECOND = member(1), member(2)


def router(*members):
    built = Router(random.Random(7))
    built.update(members)
    return built


def asked(progress, now_s=0.0):
    chosen = progress.choose(now_s)
    assert chosen is not None
    return chosen


def granted(progress):
    asked(progress)
    progress.granted(1.0)


def sent(progress):
    granted(progress)
    progress.sent(2.0)


def test_a_push_is_done_when_its_server_has_computed():
    progress = PushProgress(router(FIRST), NOBODY, 0.0)

    states = [progress.state]
    assert asked(progress) == FIRST
    states.append(progress.state)
    progress.granted(1.0)
    states.append(progress.state)
    progress.sent(1.0)
    states.append(progress.state)
    assert not progress.over
    progress.computed(3.0, RECEIPT)
    states.append(progress.state)

    assert states == [
        PushState.CHOOSING,
        PushState.ASKED,
        PushState.GRANTED,
        PushState.SENT,
        PushState.DONE,
    ]
    assert progress.over
    assert progress.reason is None


@pytest.mark.parametrize(("ready_s", "measured_s"), [(0.5, 9.0), (4.0, 6.0)])
def test_a_server_is_measured_from_its_grant_or_from_when_the_bytes_were_there(ready_s, measured_s):
    settled = []

    class Watched(Router):
        def settle(self, peer, times):
            settled.append((peer, times.answered_s - times.started_s))

    candidates = Watched(random.Random(1))
    candidates.update((FIRST,))
    progress = PushProgress(candidates, NOBODY, 0.0)
    granted(progress)

    progress.sent(ready_s)
    progress.computed(10.0, RECEIPT)

    assert settled == [(FIRST.peer, measured_s)]


@pytest.mark.parametrize("error", DEFINITE, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("reach", [asked, granted, sent])
def test_a_definite_refusal_lets_another_server_be_asked(reach, error):
    progress = PushProgress(router(FIRST, SECOND), NOBODY, 0.0)
    reach(progress)

    progress.failed(error, 3.0)

    assert progress.state is PushState.CHOOSING
    assert progress.choose(3.0) is not None


@pytest.mark.parametrize("error", AMBIGUOUS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("reach", [asked, granted, sent])
def test_whatever_else_happens_to_a_push_is_the_coordinators_matter(reach, error):
    """A plain Refused is how a handler that was cut off ends: its server may compute still."""
    candidates = router(FIRST, SECOND)
    progress = PushProgress(candidates, NOBODY, 0.0)
    reach(progress)

    progress.failed(error, 3.0)

    assert progress.state is PushState.UNKNOWN
    assert progress.reason == str(error)
    assert progress.over


@pytest.mark.parametrize("reach", [asked, granted, sent])
def test_a_server_that_could_not_compute_ends_the_attempt_and_is_avoided(reach):
    candidates = router(FIRST, SECOND)
    progress = PushProgress(candidates, NOBODY, 0.0)
    reach(progress)
    failing = FIRST if candidates.choose(0.0) == SECOND else SECOND

    progress.failed(NotComputed("mzxw6ytb could not compute it: out of memory"), 3.0)

    assert progress.state is PushState.NOT_COMPUTED
    assert progress.over
    assert progress.reason is None
    assert {candidates.choose(3.0 + AVOID_FIRST_S / 2) for _ in range(5)} == {
        SECOND if failing == FIRST else FIRST
    }


def test_a_server_that_cannot_be_dialled_never_had_it():
    progress = PushProgress(router(FIRST, SECOND), NOBODY, 0.0)
    first = asked(progress)

    progress.failed(DialFailed("no route"), 1.0)

    assert {asked(progress, 1.0), first} == {FIRST, SECOND}


@pytest.mark.parametrize("reach", [granted, sent])
def test_a_dial_cannot_fail_after_the_grant(reach):
    progress = PushProgress(router(FIRST, SECOND), NOBODY, 0.0)
    reach(progress)

    progress.failed(DialFailed("says the peer"), 3.0)

    assert progress.state is PushState.UNKNOWN


def test_what_is_too_large_for_one_is_given_up():
    progress = PushProgress(router(FIRST, SECOND), NOBODY, 0.0)
    asked(progress)

    progress.failed(TooLarge("1 TiB"), 1.0)

    assert progress.state is PushState.GIVEN_UP
    assert progress.reason == "1 TiB"


def test_an_error_without_words_is_named_by_its_class():
    progress = PushProgress(router(FIRST), NOBODY, 0.0)
    asked(progress)

    progress.failed(LinkLost(), 1.0)

    assert progress.reason == "LinkLost"


def test_a_stream_that_ends_badly_after_the_receipt_changes_nothing():
    progress = PushProgress(router(FIRST), NOBODY, 0.0)
    sent(progress)
    progress.computed(3.0, RECEIPT)

    progress.failed(LinkLost("late"), 3.0)

    assert progress.state is PushState.DONE
    assert progress.reason is None


def test_a_busy_server_is_waited_for_as_long_as_it_says():
    progress = PushProgress(router(FIRST), NOBODY, 0.0)
    asked(progress)
    progress.failed(Busy("full", 2.0), 1.0)

    assert progress.choose(1.0) is None
    assert progress.state is PushState.WAITING
    assert progress.next_deadline_s() == 3.0

    assert progress.choose(3.0) == FIRST


def test_a_server_that_refuses_is_left_alone_for_a_little_while():
    progress = PushProgress(router(FIRST), NOBODY, 0.0)
    asked(progress)
    progress.failed(NotServing("of another step"), 1.0)

    progress.choose(1.0)

    assert progress.next_deadline_s() == 1.0 + REFUSED_S


def test_a_push_waits_for_a_view_while_no_server_is_known():
    candidates = router()
    progress = PushProgress(candidates, NOBODY, 5.0, search_s=60.0)
    assert progress.choose(5.0) is None
    assert progress.state is PushState.WAITING
    assert progress.next_deadline_s() == 65.0

    candidates.update((FIRST,))

    assert progress.choose(20.0) == FIRST
    assert progress.next_deadline_s() is None


def test_a_push_that_nobody_takes_is_given_up_with_the_last_reason():
    never, refused = (PushProgress(router(*known), NOBODY, 0.0) for known in ((), (FIRST,)))
    never.choose(0.0)
    asked(refused)
    refused.failed(Busy("full", 100.0), 1.0)
    refused.choose(1.0)
    assert refused.next_deadline_s() == 1.0 + BUSY_MAX_S

    assert never.choose(60.0) is None
    assert refused.choose(60.0) is None

    assert (never.state, never.reason) == (PushState.GIVEN_UP, NOBODY)
    assert (refused.state, refused.reason) == (PushState.GIVEN_UP, "full")


def view(*members):
    picture = MemberView()
    picture.receive(*view_parts(1, members))
    return picture


def test_a_gradient_goes_to_one_peer_and_waits_while_it_is_busy():
    progress = PushProgress(OnlyPeer(view(FIRST, SECOND), FIRST.peer), NOBODY, 0.0)
    assert asked(progress) == FIRST
    progress.failed(Busy("full", 2.0), 1.0)

    assert progress.choose(1.0) is None
    assert progress.next_deadline_s() == 3.0
    assert progress.choose(3.0) == FIRST
    progress.granted(3.0)
    progress.sent(3.0)
    progress.computed(4.0, RECEIPT)

    assert progress.reason is None


@pytest.mark.parametrize("error", [NotServing("not due"), DialFailed("no route")])
def test_a_gradient_that_its_peer_will_not_have_is_given_up_at_once(error):
    progress = PushProgress(OnlyPeer(view(FIRST), FIRST.peer), NOBODY, 0.0)
    asked(progress)
    progress.failed(error, 1.0)

    assert progress.choose(1.0) is None

    assert (progress.state, progress.reason) == (PushState.GIVEN_UP, str(error))


def test_a_gradient_whose_peer_has_left_is_given_up_at_once():
    progress = PushProgress(OnlyPeer(view(SECOND), FIRST.peer), NOBODY, 0.0)

    assert progress.choose(0.0) is None

    assert (progress.state, progress.reason) == (PushState.GIVEN_UP, NOBODY)


ERRORS = (*DEFINITE, *AMBIGUOUS, DialFailed("no route"), TooLarge("1 TiB"))


@given(
    st.lists(
        st.tuples(
            st.integers(0, 3),  # how far a server comes: asked, granted, sent, computed
            st.sampled_from(ERRORS),
            st.floats(0.0, 5.0),
            st.sets(st.integers(1, 4)),  # the servers that the next view names
        ),
        max_size=40,
    ),
    st.booleans(),
)
def test_never_two_servers_that_may_both_have_it(story, alone):
    """Whoever is asked, and whatever comes of it: nobody who was asked before may have it."""
    candidates = router(FIRST, SECOND)
    picture = view(FIRST)
    progress = PushProgress(
        OnlyPeer(picture, FIRST.peer) if alone else candidates, NOBODY, 0.0, search_s=30.0
    )
    may_have, now_s, before = set(), 0.0, progress.state
    for reach, error, later_s, known in story:
        now_s += later_s
        candidates.update(tuple(member(name) for name in sorted(known)))
        if progress.over:
            assert len(may_have) <= 1
            break
        chosen = progress.choose(now_s)
        assert progress.state in MOVES[before] or progress.state is before
        if chosen is None:
            due_s = progress.next_deadline_s()
            assert progress.over or (due_s is not None and due_s > now_s)
            before = progress.state
            continue
        assert may_have == set()
        may_have.add(chosen.peer)
        if reach >= 1:
            progress.granted(now_s)
        if reach >= 2:
            progress.sent(now_s)
        if reach == 3:
            progress.computed(now_s, RECEIPT)
        else:
            progress.failed(error, now_s)
            never_left = isinstance(error, DialFailed) and reach == 0
            if isinstance(error, Busy | NotServing | TooLarge) or never_left:
                may_have.remove(chosen.peer)
        if may_have:
            assert progress.over
        assert (progress.state is PushState.DONE) == (progress.reason is None)
        before = progress.state


@pytest.mark.parametrize("error", [NotComputed("no memory"), LinkLost("gone")])
def test_a_gradient_that_its_only_server_could_not_take_goes_nowhere_else(error):
    view = MemberView()
    view.receive(*view_parts(1, (FIRST,)))
    only = OnlyPeer(view, FIRST.peer)
    progress = PushProgress(only, NOBODY, 0.0)
    sent(progress)

    progress.failed(error, 3.0)

    assert progress.over
    assert only.choose(4.0) is None
    assert only.free_at_s() is None


def test_a_server_that_takes_the_bytes_and_is_busy_then_is_avoided_as_one_that_fails():
    servers = router(FIRST, SECOND)
    progress = PushProgress(servers, NOBODY, 0.0)
    first = asked(progress)
    progress.granted(0.0)
    progress.sent(0.0)

    progress.failed(Busy("full", 0.0), 1.0)

    second = asked(progress, 1.0)
    assert second != first
    assert {servers.choose(1.0 + AVOID_FIRST_S - 0.1) for _ in range(4)} == {second}


def test_a_gradient_is_offered_again_soon_however_long_its_server_says_that_it_is_busy():
    progress = PushProgress(OnlyPeer(view(FIRST), FIRST.peer), NOBODY, 0.0)
    asked(progress)

    progress.failed(Busy("full", 3600.0), 1.0)

    assert progress.choose(1.0) is None
    assert progress.next_deadline_s() == 1.0 + BUSY_MAX_S


def test_a_server_that_has_not_granted_when_the_push_is_taken_back_is_left_alone():
    """It is taken back where another could do it: the server may be dead, or its road broken."""
    candidates = router(FIRST, SECOND)
    progress = PushProgress(candidates, NOBODY, 0.0)
    one = asked(progress)

    progress.ended(UNGRANTED_S)

    (other,) = {FIRST.peer, SECOND.peer} - {one.peer}
    for _ in range(4):
        again = PushProgress(candidates, NOBODY, UNGRANTED_S)
        assert asked(again, UNGRANTED_S).peer == other
    assert not candidates.nobody_reached(UNGRANTED_S)


def test_a_lone_server_that_does_not_grant_is_as_good_as_nobody_for_a_moment():
    candidates = router(FIRST)
    progress = PushProgress(candidates, NOBODY, 0.0)
    asked(progress)

    progress.ended(UNGRANTED_S)

    assert candidates.nobody_reached(UNGRANTED_S)
    assert not candidates.nobody_reached(UNGRANTED_S + UNGRANTED_PAUSE_S)


def test_a_push_that_is_taken_back_at_once_says_nothing_of_its_server():
    candidates = router(FIRST)
    progress = PushProgress(candidates, NOBODY, 0.0)
    asked(progress)

    progress.ended(UNGRANTED_S / 2)

    assert not candidates.nobody_reached(UNGRANTED_S / 2)


def test_a_server_that_did_not_grant_again_and_again_is_tried_as_soon_as_the_first_time():
    """It was stopped, and goes on: who waits ever longer would not see that."""
    candidates, now_s = router(FIRST), 0.0
    for _ in range(9):
        progress = PushProgress(candidates, NOBODY, now_s)
        asked(progress, now_s)
        now_s += UNGRANTED_S
        progress.ended(now_s)
        now_s += UNGRANTED_PAUSE_S

    assert not candidates.nobody_reached(now_s)
