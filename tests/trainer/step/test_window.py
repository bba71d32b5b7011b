"""The window: Little's law by measured times, and memory."""

import heapq

from hypothesis import given
from hypothesis import strategies as st

from p2pswarm.run.view import Incarnation
from p2pswarm.trainer.step.window import MARGIN, MARGIN_LEAST, PER_ENTRY_MAX, LaunchPace

ANN = Incarnation(b"a" * 32, 1)


def play(pace: LaunchPace, steps: int, entries: int, rate: float, alone_s: float) -> list[int]:
    """A pipeline that finishes `rate` a second at most, and one that is alone after `alone_s`."""
    windows, now_s = [], 0.0
    for _ in range(steps):
        windows.append(pace.window(entries, 4 * entries))
        under_way: list[tuple[float, float]] = []
        free_s = now_s
        for _ in range(256):
            if len(under_way) == windows[-1]:
                now_s, launched_s = heapq.heappop(under_way)
                pace.on_completion(launched_s, now_s)
            free_s = max(free_s + 1 / rate, now_s + alone_s)
            heapq.heappush(under_way, (free_s, now_s))
        while under_way:
            now_s, launched_s = heapq.heappop(under_way)
            pace.on_completion(launched_s, now_s)
        pace.begin()
    return windows


@given(entries=st.integers(1, 8), rate=st.floats(0.5, 50.0), alone_s=st.floats(0.5, 20.0))
def test_the_window_comes_to_a_few_times_what_is_in_flight_by_little_and_stays_there(
    entries, rate, alone_s
):
    windows = play(LaunchPace(), 12, entries, rate, alone_s)

    most = PER_ENTRY_MAX * entries
    least = min(MARGIN * rate * alone_s, most, 256)
    served = entries / rate  # what those before it in the first queue add to the time of a first
    assert 0.8 * least <= windows[-1]
    assert windows[-1] <= max(1.3 * MARGIN * rate * (alone_s + served) + 1, 2 * entries)
    assert max(windows) <= max(most, 16 * entries)


def test_before_a_step_was_measured_all_servers_have_something():
    pace = LaunchPace()

    assert pace.window(4, 16) == 32
    assert pace.window(4, 5) == 16
    pace.begin()
    assert pace.window(4, 16) == 32


def test_the_first_step_does_not_wait_for_its_end_to_widen_the_window():
    """A road of 4 s, 4 microbatches a second: 32 at once keep no server busy."""
    pace = LaunchPace()
    narrow = pace.window(4, 16)
    for turn in range(32):
        pace.on_completion(turn / 4, 4.0 + turn / 4)

    wide = pace.window(4, 16)
    assert narrow < wide <= MARGIN * 4 * 4.75 + 1
    pace.begin()
    assert wide / 2 <= pace.window(4, 16) <= 2 * wide


def test_a_step_of_few_microbatches_says_nothing():
    pace = LaunchPace()
    for turn in range(15):
        pace.on_completion(0.0, 1.0 + turn)
    pace.begin()

    assert pace.window(4, 16) == 32


def test_counts_that_are_told_in_one_moment_say_nothing():
    pace = LaunchPace()
    for _ in range(40):
        pace.on_completion(0.0, 1.0)
    pace.begin()

    assert pace.window(4, 16) == 32


def test_the_margin_shrinks_while_graphs_are_computed_again_and_grows_again():
    pace = LaunchPace()
    calm = play(pace, 4, 4, 4.0, 4.0)[-1]
    windows = []
    for graphs in range(1, 11):
        pace.on_recomputation(ANN, graphs)
        windows += play(pace, 1, 4, 4.0, 4.0)
    again = play(pace, 14, 4, 4.0, 4.0)[-1]

    assert windows[-1] < 0.6 * calm
    assert windows[-1] >= 0.9 * MARGIN_LEAST / MARGIN * calm
    assert again >= 0.95 * calm


def test_a_member_that_computed_graphs_again_in_another_life_says_nothing_new():
    pace = LaunchPace()
    calm = play(pace, 4, 4, 4.0, 4.0)[-1]
    pace.on_recomputation(ANN, 7)
    pace.on_end(ANN)
    pace.on_recomputation(ANN, 9)
    pace.on_recomputation(ANN, 9)

    assert play(pace, 2, 4, 4.0, 4.0)[-1] >= 0.95 * calm
