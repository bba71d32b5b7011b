"""When a server serves and ends: what the settings may say, and what they mean."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pswarm.settings.node_config import ServeConfig
from p2pswarm.settings.parser import from_values
from p2pswarm.settings.service_hours import (
    DAY_MINUTES,
    RANGES_MAX,
    ServingHours,
    idle_s,
    leaves_with_run,
)

MIDNIGHT = datetime(2026, 11, 28)  # noqa: DTZ001  a clock on the wall has no zone
NO_ENDS = ["run, run", "run,", ",run", "run, never", "never, idle:5", "idle:5, idle:6", "run; run"]
BOTH = ["run, idle:600", "idle:600,run", " idle:600 , run "]
NO_ENDS = [
    "run, run",
    "run,",
    ",run",
    "run, never",
    "never, idle:5",
    "idle:5, idle:6",
    "run; idle:5",
]
minutes = st.integers(0, DAY_MINUTES - 1)
texts = st.tuples(minutes, minutes).filter(lambda each: each[0] != each[1])


def clock(minute: int) -> str:
    return f"{minute // 60:02}:{minute % 60:02}"


def at(minute: int) -> datetime:
    return MIDNIGHT + timedelta(minutes=minute)


def hours_of(*ranges: tuple[int, int]) -> ServingHours:
    return ServingHours.of(", ".join(f"{clock(begin)}-{clock(end)}" for begin, end in ranges))


@given(texts, minutes)
def test_a_minute_is_in_a_range_or_in_the_range_of_its_ends_the_other_way_round(ends, minute):
    begin, end = ends

    inside, outside = hours_of((begin, end)), hours_of((end, begin))

    assert inside.serves_at(at(minute)) != outside.serves_at(at(minute))


@given(texts)
def test_the_first_minute_of_a_range_is_in_it_and_its_end_is_not(ends):
    hours = hours_of(ends)

    assert hours.serves_at(at(ends[0]))
    assert not hours.serves_at(at(ends[1]))


@given(st.lists(texts, min_size=1, max_size=5), minutes)
def test_several_ranges_serve_whenever_one_of_them_does(ranges, minute):
    each = [hours_of(one).serves_at(at(minute)) for one in ranges]

    assert hours_of(*ranges).serves_at(at(minute)) == any(each)


@given(texts)
def test_hours_are_written_as_they_were_read(ends):
    hours = hours_of(ends)

    assert ServingHours.of(str(hours)) == hours


def test_no_hours_are_all_day():
    assert all(ServingHours.of(" ").serves_at(at(minute)) for minute in range(DAY_MINUTES))


def test_a_day_may_end_at_24():
    hours = ServingHours.of("20:00-24:00")

    assert hours.serves_at(at(DAY_MINUTES - 1))
    assert not hours.serves_at(at(0))


@pytest.mark.parametrize(
    ("month", "day", "served"),
    [(3, 29, 1.0), (10, 25, 3.0), (6, 1, 2.0)],
)
def test_an_hour_that_summer_time_takes_or_gives_is_served_as_the_clock_shows_it(
    month, day, served
):
    """In Berlin, from 01:00 to 03:00 on the wall: one hour in spring, three in autumn."""
    hours, zone = ServingHours.of("01:00-03:00"), ZoneInfo("Europe/Berlin")
    begun = datetime(2026, month, day, tzinfo=zone).astimezone(UTC)

    local = [(begun + timedelta(minutes=m)).astimezone(zone) for m in range(DAY_MINUTES)]

    assert sum(hours.serves_at(each) for each in local) == 60 * served


@pytest.mark.parametrize(
    "text",
    [
        *("20-8", "20:00", "20:00-08:60", "24:00-08:00", "08:00-08:00", "08:00-25:00", "night"),
        *("20:00-08:00,", ",", "20:00-08:00; 9:00-10:00", "٢٠:00-08:00"),
        ", ".join(["20:00-08:00"] * (RANGES_MAX + 1)),
    ],
)
def test_hours_that_are_none_are_named_with_an_example(text):
    with pytest.raises(ValueError, match=r'serve\.hours is hours of .* as "20:00-08:00"'):
        from_values(ServeConfig, {"hours": text}, "serve")


@pytest.mark.parametrize("text", ["run", "never", "idle:1", "idle:600", "idle:10000000", *BOTH])
def test_a_server_leaves_when_its_settings_say(text):
    assert from_values(ServeConfig, {"leave": text}, "serve").leave == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "idle",
        "idle:",
        "idle:0",
        "idle:-5",
        "idle:1e3",
        "idle:10000001",
        "600",
        "runs",
        *NO_ENDS,
    ],
)
def test_another_word_for_leaving_is_refused_with_those_that_are_allowed(text):
    with pytest.raises(ValueError, match=r'serve\.leave is "run", "never", or "idle:N"'):
        from_values(ServeConfig, {"leave": text}, "serve")


def test_only_idle_has_seconds():
    assert idle_s("idle:600") == 600.0
    assert idle_s("run") is idle_s("never") is None


@pytest.mark.parametrize("text", BOTH)
def test_a_server_may_leave_at_the_first_of_both_ends(text):
    assert leaves_with_run(text)
    assert idle_s(text) == 600.0


@pytest.mark.parametrize(("text", "does"), [("run", True), ("idle:9", False), ("never", False)])
def test_a_server_leaves_with_its_run_if_its_settings_say_run(text, does):
    assert leaves_with_run(text) == does
