"""A server's attendance: hours, pauses, and the end after idle seconds, told by `now_s` alone."""

import math
from datetime import datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from p2pswarm.node.attendance import LOOK_EVERY_S, PAUSED, Attendance

NOON = datetime(2026, 11, 28, 12)  # noqa: DTZ001  a clock on the wall has no zone
NIGHT = "20:00-08:00"


def server(leave: str = "never", hours: str = "", local: datetime = NOON) -> Attendance:
    return Attendance(leave, hours, 0.0, local)


def test_a_server_without_hours_serves_and_waits_for_no_time():
    one = server()

    assert one.serves
    assert not one.why_not
    assert math.isinf(one.next_deadline_s())
    assert not one.end(1e9)


def test_a_pause_lasts_until_the_owner_ends_it():
    one = server()

    one.on_pause(1.0)
    assert not one.serves
    assert one.why_not == PAUSED
    one.on_resume(2.0)

    assert one.serves


def test_outside_of_its_hours_it_rests_and_comes_back_when_the_clock_says_so():
    one = server(hours=NIGHT)
    assert "20:00-08:00" in one.why_not

    now_s, local = 0.0, NOON
    while not one.serves:
        now_s = one.next_deadline_s()
        local = NOON + timedelta(seconds=now_s)
        one.on_deadline(now_s, local)

    assert timedelta() <= local - NOON.replace(hour=20) < timedelta(seconds=LOOK_EVERY_S)


def test_a_clock_that_is_set_is_believed_at_the_next_look():
    one = server(hours=NIGHT)

    one.on_deadline(LOOK_EVERY_S, NOON.replace(hour=23))

    assert one.serves


def test_a_look_that_comes_too_early_changes_nothing():
    one = server(hours=NIGHT)

    one.on_deadline(LOOK_EVERY_S / 2, NOON.replace(hour=23))

    assert not one.serves


def test_resumed_outside_of_its_hours_it_still_rests():
    one = server(hours=NIGHT)
    one.on_pause(1.0)

    one.on_resume(2.0)

    assert not one.serves
    assert "hours" in one.why_not


def test_it_ends_after_so_many_seconds_without_a_run():
    one = server("idle:600")

    assert one.next_deadline_s() == 600.0
    assert not one.end(599.9)
    assert one.end(600.0) == "no run for 600 s: this server ends (serve.leave)"


def test_a_run_ends_the_waiting_and_its_end_begins_it_anew():
    one = server("idle:600")

    one.on_run(500.0, within=True)
    assert math.isinf(one.next_deadline_s())
    assert not one.end(1e6)
    one.on_run(1e6, within=False)

    assert one.next_deadline_s() == 1e6 + 600.0


def test_a_server_that_leaves_with_its_run_may_also_end_while_it_has_none():
    one = server("run, idle:600")

    one.on_run(599.0, within=True)
    assert not one.end(1e6)
    one.on_run(1e6, within=False)

    assert not one.end(1e6 + 599.0)
    assert one.end(1e6 + 600.0)


def test_a_rest_is_not_idle():
    one = server("idle:600")

    one.on_pause(10.0)
    assert not one.end(1e6)
    one.on_resume(1e6)

    assert not one.end(1e6 + 599.0)
    assert one.end(1e6 + 600.0)


words = st.sampled_from(["pause", "resume", "enter", "lose"])


@given(st.lists(st.tuples(words, st.floats(0.0, 1_000.0)), max_size=30))
def test_it_ends_only_after_its_seconds_without_a_run_and_without_a_rest(inputs):
    one, now_s, idle_since_s, within, paused = server("idle:600"), 0.0, 0.0, False, False
    for word, later_s in inputs:
        now_s += later_s
        may = not within and not paused and now_s - idle_since_s >= 600.0
        assert bool(one.end(now_s)) == may
        if may:
            assert math.isinf(one.next_deadline_s())
            return
        match word:
            case "pause":
                one.on_pause(now_s)
                paused = True
            case "resume":
                one.on_resume(now_s)
                paused = False
            case "enter" | "lose":
                within = word == "enter"
                one.on_run(now_s, within=within)
        idle_since_s = now_s
