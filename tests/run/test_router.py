"""The router: who gets the next microbatch, and how often."""

import heapq
import random
from collections import Counter
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from p2pswarm.run.messages.membership import MemberRecord
from p2pswarm.run.push import BUSY_LEAST_S, BUSY_MAX_S, PushTimes
from p2pswarm.run.router import (
    AVOID_FIRST_S,
    AVOID_MAX_S,
    BUSY_DOUBLINGS,
    QUEUE_EXPLAINED,
    REFUSED_S,
    Router,
)


def member(name: int, incarnation: int = 0) -> MemberRecord:
    return MemberRecord(bytes([name]) * 32, f"10.0.0.{name}:1", 0, incarnation, ready=True)


def router(*members: MemberRecord) -> Router:
    built = Router(random.Random(7))
    built.update(members)
    return built


def serve(
    built: Router, service_s: dict[bytes, float], microbatches: int, window: int
) -> dict[bytes, int]:
    """Keep `window` microbatches in flight over servers that work one at a time."""
    served = dict.fromkeys(service_s, 0)
    free_s = dict.fromkeys(service_s, 0.0)
    done: list[tuple[float, bytes, float]] = []
    now_s = 0.0
    for _ in range(microbatches):
        if len(done) == window:
            now_s, peer, started_s = heapq.heappop(done)
            built.settle(peer, PushTimes(started_s, now_s))
            built.over(peer, started_s)
        chosen = built.choose(now_s)
        assert chosen is not None
        free_s[chosen.peer] = max(now_s, free_s[chosen.peer]) + service_s[chosen.peer]
        heapq.heappush(done, (free_s[chosen.peer], chosen.peer, now_s))
        served[chosen.peer] += 1
    for end_s, peer, started_s in sorted(done):
        built.settle(peer, PushTimes(started_s, end_s))
        built.over(peer, started_s)
    return served


def test_a_peer_twice_as_fast_gets_twice_the_work():
    fast, slow = member(1), member(2)

    served = serve(router(fast, slow), {fast.peer: 0.1, slow.peer: 0.2}, 3_000, window=8)

    assert 1.8 <= served[fast.peer] / served[slow.peer] <= 2.2


def test_equal_peers_share_evenly():
    peers = [member(n) for n in range(1, 5)]

    served = serve(router(*peers), {p.peer: 0.05 for p in peers}, 2_000, window=16)

    assert max(served.values()) <= 1.05 * min(served.values())


def test_a_peer_that_slows_down_loses_work():
    one, two = member(1), member(2)
    built = router(one, two)
    serve(built, {one.peer: 0.1, two.peer: 0.1}, 500, window=8)

    for _ in range(100):
        built.settle(one.peer, PushTimes(1e6, 1e6))
    served = serve(built, {one.peer: 0.4, two.peer: 0.1}, 2_000, window=8)

    assert served[two.peer] > 2.5 * served[one.peer]


def test_a_newcomer_is_tried_at_once_and_not_flooded():
    old, new = member(1), member(2)
    built = router(old)
    serve(built, {old.peer: 0.1}, 200, window=4)

    built.update((old, new))
    first = [built.choose(1e3) for _ in range(10)]

    assert 4 <= sum(c == new for c in first) <= 6


@given(st.floats(0.01, 100.0), st.integers(1, 20))
def test_who_came_before_anybody_was_measured_is_not_flooded_afterwards(takes_s, early):
    """The first step is on its way to the others when it comes; then all are equally fast."""
    others = [member(n) for n in range(1, early + 1)]
    late = member(early + 1)
    built = router(*others)
    given_at = [built.choose(0.0) for _ in range(2 * early)]
    built.update((*others, late))
    done = Counter[bytes]()
    for one in given_at:
        assert one is not None
        before_s = done[one.peer] * takes_s
        done[one.peer] += 1
        times = PushTimes(0.0, before_s + takes_s, queue_s=before_s, compute_s=takes_s)
        built.settle(one.peer, times)
        built.over(one.peer, 0.0)

    count = 6 * (early + 1)
    chosen = Counter(one.peer for _ in range(count) if (one := built.choose(1e6)) is not None)

    assert chosen[late.peer] <= 6 + 3  # those that the others had when it came, and one to round


def test_times_of_nothing_are_measured_too():
    one, two = member(1), member(2)
    built = router(one)
    built.settle(one.peer, PushTimes(1.0, 1.0))
    built.update((one, two))
    built.update((two,))

    built.settle(two.peer, PushTimes(2.0, 2.5, compute_s=0.5))

    assert built.choose(4.0) == two


def test_a_newcomer_gets_the_next_microbatches_while_the_others_have_yet_to_answer():
    """At the end of a step a sender has few left to send: one that is idle must not miss them."""
    old, new = member(1), member(2)
    built = router(old)
    for _ in range(3):
        assert built.choose(0.0) == old

    built.update((old, new))

    assert [built.choose(0.0), built.choose(0.0)] == [new, new]
    assert old in [built.choose(0.0), built.choose(0.0)], "what it missed is not all made up for"


def test_a_busy_peer_is_left_alone_until_it_said():
    one, two = member(1), member(2)
    built = router(one, two)
    built.busy(one.peer, 0.0, 5.0)

    assert {built.choose(4.9) for _ in range(5)} == {two}
    assert one in {built.choose(5.0) for _ in range(5)}


def test_when_all_are_busy_nobody_is_chosen_and_the_wait_is_known():
    one, two = member(1), member(2)
    built = router(one, two)
    built.busy(one.peer, 0.0, 5.0)
    built.busy(two.peer, 0.0, 3.0)

    assert built.choose(2.0) is None
    assert built.free_at_s() == 3.0


def test_a_lost_peer_is_avoided_for_a_while_and_tried_again_without_a_new_view():
    one, two = member(1), member(2)
    built = router(one, two)
    built.lost(one.peer, 0.0)
    assert {built.choose(AVOID_FIRST_S - 0.1) for _ in range(4)} == {two}

    assert one in {built.choose(AVOID_FIRST_S) for _ in range(4)}


def test_pauses_after_failures_double_to_a_limit_and_a_success_makes_them_short_again():
    one = member(1)
    built, now_s, pauses_s = router(one), 0.0, []
    for _ in range(8):
        built.lost(one.peer, now_s)
        pauses_s.append(built.free_at_s() - now_s)
        now_s = built.free_at_s()

    assert pauses_s[:3] == [AVOID_FIRST_S, 2 * AVOID_FIRST_S, 4 * AVOID_FIRST_S]
    assert pauses_s[-1] == AVOID_MAX_S
    built.settle(one.peer, PushTimes(now_s, now_s + 1.0))
    built.lost(one.peer, now_s)
    assert built.free_at_s() == now_s + AVOID_FIRST_S


def test_pushes_that_fail_together_are_one_failure():
    """A cut ends all that go over it at once: that says no more than one of them."""
    one, two = member(1), member(2)
    built = router(one, two)

    for late_s in range(8):
        built.lost(one.peer, 1.0 + 0.05 * late_s)

    assert one in {built.choose(1.0 + AVOID_FIRST_S) for _ in range(4)}


def test_nobody_is_reached_while_all_servers_were_lost_a_moment_ago():
    one, two = member(1), member(2)
    built = router(one, two)
    assert not router().nobody_reached(0.0)
    built.lost(one.peer, 0.0)
    assert not built.nobody_reached(0.0)
    built.lost(two.peer, 0.1)

    assert built.nobody_reached(0.1)
    assert not built.nobody_reached(AVOID_FIRST_S)
    built.settle(two.peer, PushTimes(0.0, 0.2))
    assert not built.nobody_reached(0.2)


def test_the_only_server_is_asked_again_though_it_failed():
    one, two = member(1), member(2)
    built = router(one)
    built.failed(one.peer, 0.0)

    assert built.choose(0.0) == one

    built.update((one, two))
    built.busy(two.peer, 0.0, 0.2)
    assert built.choose(0.1) is None
    assert built.free_at_s() == 0.2


@given(
    bad=st.integers(0, 8),
    fails_s=st.floats(0.0, 0.01),
    computes_s=st.floats(0.05, 1.0),
)
def test_a_server_that_fails_fast_gets_little_of_the_work(bad, fails_s, computes_s):
    """Once in 30 s at least it may show that it works again."""
    peers = [member(n) for n in range(1, 10)]
    built, now_s, failures, done = router(*peers), 0.0, 0, 0
    while done < 500:
        chosen = built.choose(now_s)
        assert chosen is not None
        built.over(chosen.peer, now_s)
        if chosen == peers[bad]:
            failures += 1
            now_s += fails_s
            built.failed(chosen.peer, now_s)
        else:
            done += 1
            built.settle(chosen.peer, PushTimes(now_s, now_s + computes_s))
            now_s += computes_s

    assert failures <= 8 + now_s / AVOID_MAX_S


def test_a_new_incarnation_of_a_peer_starts_without_its_history():
    one, two = member(1), member(2)
    built = router(one, two)
    for _ in range(50):
        built.settle(one.peer, PushTimes(0.0, 40.0))
        built.settle(two.peer, PushTimes(0.0, 0.1))

    again = member(1, incarnation=3)
    built.update((again, two))
    chosen = [built.choose(1e3) for _ in range(40)]

    assert 10 <= chosen.count(again) <= 30


def test_a_server_that_is_dialled_elsewhere_keeps_what_it_has_shown():
    """A new card comes whenever a node learns an address of its own: often in its first minutes."""
    fast, slow = member(1), member(2)
    built = router(fast, slow)
    serve(built, {fast.peer: 0.1, slow.peer: 0.9}, 100, window=8)

    elsewhere = replace(slow, address="10.9.9.9:1", card=b"new")
    built.update((fast, elsewhere))
    chosen = [built.choose(1e3) for _ in range(40)]

    assert 2 <= chosen.count(elsewhere) <= 6  # of a server without a history: half
    assert slow not in chosen  # it is dialled where it is now


def test_answers_about_strangers_change_nothing():
    built = router()

    built.settle(b"x" * 32, PushTimes(0.0, 1.0))
    built.busy(b"x" * 32, 0.0, 9.0)
    built.lost(b"x" * 32, 9.0)
    built.failed(b"x" * 32, 9.0)

    assert built.choose(0.0) is None
    assert built.free_at_s() is None


def answer(built: Router, peer: bytes, chosen_s: float, now_s: float, **told: float) -> None:
    """A microbatch that was given to a server is computed."""
    built.settle(peer, PushTimes(chosen_s, now_s, chosen_s, **told))
    built.over(peer, chosen_s)


def learned(*peers: MemberRecord, **told: float) -> Router:
    """A router that has had answers after 0.5 s from each, 20 of them."""
    built = router(*peers)
    for turn in range(20 * len(peers)):
        now_s = 0.5 * turn
        chosen = built.choose(now_s)
        assert chosen is not None
        answer(built, chosen.peer, now_s, now_s + 0.5, **told)
    return built


@given(stalled=st.integers(0, 3), pause_s=st.floats(0.01, 0.3))
def test_a_stalled_server_loses_new_work_within_twice_its_usual_time(stalled, pause_s):
    peers = [member(n) for n in range(1, 5)]
    built, now_s, begun_s, late = learned(*peers), 100.0, None, 0
    for _ in range(300):
        chosen = built.choose(now_s)
        assert chosen is not None
        if chosen != peers[stalled]:
            answer(built, chosen.peer, now_s, now_s + 0.5)
        elif begun_s is None:
            begun_s = now_s
        else:
            late += now_s > begun_s + 2 * 0.5 + 1e-9
        now_s += pause_s

    assert begun_s is not None
    assert late == 0


def test_a_server_that_answers_again_is_not_flooded_with_what_it_missed():
    one, two = member(1), member(2)
    built = learned(one, two)
    while built.choose(100.0) != one:
        built.over(two.peer, 100.0)
    for turn in range(200):
        now_s = 102.0 + turn
        assert built.choose(now_s) == two
        answer(built, two.peer, now_s, now_s + 0.5)

    answer(built, one.peer, 100.0, 302.0)
    chosen = []
    for turn in range(10):
        now_s = 302.0 + turn
        chosen.append(built.choose(now_s))
        answer(built, chosen[-1].peer, now_s, now_s + 0.5)

    assert chosen.count(two) >= 4


def test_when_all_are_behind_the_work_goes_on():
    one, two = member(1), member(2)
    built = learned(one, two)

    chosen = [built.choose(100.0 + 10 * turn) for turn in range(8)]

    assert chosen.count(one) == chosen.count(two) == 4


@given(
    fast=st.integers(0, 3),
    slower=st.floats(8.0, 20.0),
    faster=st.floats(1.0, 3.0),
)
def test_a_server_with_a_congestion_behind_it_gets_less_however_fast_it_is(fast, slower, faster):
    peers = [member(n) for n in range(1, 5)]
    built, given_to, now_s = router(*peers), Counter(), 0.0
    for _ in range(400):
        chosen = built.choose(now_s)
        congested = chosen == peers[fast]
        took_s = 0.3 / faster if congested else 0.3
        told = {"compute_s": took_s, "gradient_s": 3.0 * slower if congested else 3.0}
        answer(built, chosen.peer, now_s, now_s + took_s, **told)
        given_to[chosen.peer] += 1
        now_s += 0.3

    others = [given_to[p.peer] for p in peers if p != peers[fast]]
    assert given_to[peers[fast].peer] < min(others)


@given(claimed_s=st.floats(0.0, 0.01), took_s=st.floats(2.0, 10.0))
def test_a_server_that_claims_to_be_fast_and_answers_late_gets_little(claimed_s, took_s):
    """Nine of ten microbatches go to the one that needs a 16th of the liar's time or less."""
    liar, honest = member(1), member(2)
    built, given_to, now_s = router(liar, honest), Counter(), 0.0
    for _ in range(400):
        chosen = built.choose(now_s)
        lies = chosen == liar
        last_s = took_s if lies else took_s / 160
        told = {"compute_s": claimed_s if lies else last_s, "queue_s": last_s if lies else 0.0}
        answer(built, chosen.peer, now_s, now_s + last_s, **told)
        given_to[chosen.peer] += 1
        now_s += last_s

    assert given_to[liar.peer] < 60


@given(
    st.lists(st.tuples(st.integers(0, 3), st.floats(0.01, 2.0), st.floats(0.0, 5.0)), max_size=60)
)
def test_equal_servers_get_equal_work_whatever_else_delays_their_answers(story):
    """Their receipts tell the same time; queues and other senders make the answers come late."""
    peers = [member(n) for n in range(1, 5)]
    built, given_to = router(*peers), Counter()
    for peer in peers:
        answer(built, peer.peer, 0.0, 0.3, compute_s=0.3)
    for turn in range(16):  # they start up to `FIRST_GUESS_S` apart, which is three microbatches
        chosen = built.choose(1.0 + turn)
        answer(built, chosen.peer, 1.0 + turn, 1.3 + turn, compute_s=0.3)
    for turn, (_, wait_s, queue_s) in enumerate(story, start=2):
        now_s = 10.0 * turn
        chosen = built.choose(now_s)
        given_to[chosen.peer] += 1
        took_s = 0.3 + wait_s + queue_s
        told = {"compute_s": 0.3, "queue_s": queue_s, "grant_s": wait_s}
        if took_s / QUEUE_EXPLAINED <= 0.3:
            answer(built, chosen.peer, now_s, now_s + took_s, **told)
        else:
            built.over(chosen.peer, now_s)

    counts = [given_to[p.peer] for p in peers]
    assert max(counts) - min(counts) <= 2


def test_what_is_over_is_forgotten_and_strangers_change_nothing():
    built = learned(member(1))
    built.over(b"x" * 32, 0.0)
    built.over(member(1).peer, 12.5)
    chosen = built.choose(1e3)
    built.over(chosen.peer, 1e3)
    built.over(chosen.peer, 1e3)

    assert built.choose(1e6) == member(1)


@given(retry_s=st.floats(0.0, 3600.0), late=st.booleans())
def test_a_server_that_only_refuses_costs_each_push_one_question_and_soon_few(retry_s, late):
    """It took no charge, so it would be asked first each time, for as long as it likes."""
    peers = [member(n) for n in range(1, 5)]
    liar, built = peers[0], router(*peers)
    asked = 0
    for turn in range(400):
        now_s = 0.05 * turn
        chosen = built.choose(now_s)
        if chosen == liar:
            asked += 1
            built.over(liar.peer, now_s)
            if late:
                built.refused(liar.peer, now_s)
            else:
                built.busy(liar.peer, now_s, retry_s)
            chosen = built.choose(now_s)
        assert chosen not in (liar, None)
        answer(built, chosen.peer, now_s, now_s + 0.05, compute_s=0.05)

    most_s = REFUSED_S if late else BUSY_LEAST_S * 2**BUSY_DOUBLINGS
    assert 1 <= asked <= BUSY_DOUBLINGS + 2 + 20.0 / most_s


def test_a_busy_server_is_asked_again_soon_however_long_it_says():
    one = member(1)
    built = router(one)

    built.busy(one.peer, 0.0, 3600.0)

    assert built.free_at_s() == BUSY_MAX_S


def test_refusals_at_one_time_are_one_and_a_success_forgives_them():
    one = member(1)
    built = router(one)
    for _ in range(5):
        built.refused(one.peer, 0.0)
    assert built.free_at_s() == REFUSED_S
    built.refused(one.peer, REFUSED_S)
    assert built.free_at_s() == 3 * REFUSED_S

    built.settle(one.peer, PushTimes(1.0, 2.0))
    built.refused(one.peer, 5.0)

    assert built.free_at_s() == 5.0 + REFUSED_S


@given(told_s=st.floats(1e-9, 1e-3), gradient_s=st.floats(0.5, 10.0), liar=st.integers(0, 1))
def test_one_of_two_cannot_starve_the_other_by_what_it_tells_of_gradients(told_s, gradient_s, liar):
    """They come back to us as late as ever, so the other is no later than is usual."""
    peers = [member(1), member(2)]
    built, given_to = router(*peers), Counter()
    for turn in range(200):
        now_s = 0.3 * turn
        built.on_gradients(1.1 * gradient_s)
        chosen = built.choose(now_s)
        told = told_s if chosen == peers[liar] else gradient_s
        answer(built, chosen.peer, now_s, now_s + 0.3, compute_s=0.3, gradient_s=told)
        given_to[chosen.peer] += 1

    assert given_to[peers[liar].peer] <= 104
