"""The router: who gets the next microbatch, and how often."""

import heapq
import random

from hypothesis import given
from hypothesis import strategies as st

from p2pswarm.swarm.messages.membership import MemberRecord
from p2pswarm.swarm.router import AVOID_FIRST_S, AVOID_MAX_S, Router


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
            built.settle(peer, started_s, now_s)
        chosen = built.choose(now_s)
        assert chosen is not None
        free_s[chosen.peer] = max(now_s, free_s[chosen.peer]) + service_s[chosen.peer]
        heapq.heappush(done, (free_s[chosen.peer], chosen.peer, now_s))
        served[chosen.peer] += 1
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
        built.settle(one.peer, 1e6, 1e6)
    served = serve(built, {one.peer: 0.4, two.peer: 0.1}, 2_000, window=8)

    assert served[two.peer] > 2.5 * served[one.peer]


def test_a_newcomer_is_tried_at_once_and_not_flooded():
    old, new = member(1), member(2)
    built = router(old)
    serve(built, {old.peer: 0.1}, 200, window=4)

    built.update((old, new))
    first = [built.choose(1e3) for _ in range(10)]

    assert 4 <= sum(c == new for c in first) <= 6


def test_a_busy_peer_is_left_alone_until_it_said():
    one, two = member(1), member(2)
    built = router(one, two)
    built.busy(one.peer, until_s=5.0)

    assert {built.choose(4.9) for _ in range(5)} == {two}
    assert one in {built.choose(5.0) for _ in range(5)}


def test_when_all_are_busy_nobody_is_chosen_and_the_wait_is_known():
    one, two = member(1), member(2)
    built = router(one, two)
    built.busy(one.peer, until_s=5.0)
    built.busy(two.peer, until_s=3.0)

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
    built.settle(one.peer, now_s, now_s + 1.0)
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
    built.settle(two.peer, 0.0, 0.2)
    assert not built.nobody_reached(0.2)


def test_the_only_server_is_asked_again_though_it_failed():
    one, two = member(1), member(2)
    built = router(one)
    built.failed(one.peer, 0.0)

    assert built.choose(0.0) == one

    built.update((one, two))
    built.busy(two.peer, 0.2)
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
        if chosen == peers[bad]:
            failures += 1
            now_s += fails_s
            built.failed(chosen.peer, now_s)
        else:
            done += 1
            built.settle(chosen.peer, now_s, now_s + computes_s)
            now_s += computes_s

    assert failures <= 8 + now_s / AVOID_MAX_S


def test_a_new_incarnation_of_a_peer_starts_without_its_history():
    one, two = member(1), member(2)
    built = router(one, two)
    for _ in range(50):
        built.settle(one.peer, 0.0, 40.0)
        built.settle(two.peer, 0.0, 0.1)

    again = member(1, incarnation=3)
    built.update((again, two))
    chosen = [built.choose(1e3) for _ in range(40)]

    assert 10 <= chosen.count(again) <= 30


def test_answers_about_strangers_change_nothing():
    built = router()

    built.settle(b"x" * 32, 0.0, 1.0)
    built.busy(b"x" * 32, 9.0)
    built.lost(b"x" * 32, 9.0)
    built.failed(b"x" * 32, 9.0)

    assert built.choose(0.0) is None
    assert built.free_at_s() is None
