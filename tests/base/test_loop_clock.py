"""Tests of `base/loop_clock.py`."""

import asyncio
from collections.abc import Callable

import pytest

from p2pswarm.base.loop_clock import Alarm


class Timer:
    """A timer of the clock below."""

    def __init__(self, at_s: float, callback: Callable[[], None]) -> None:
        self.at_s = at_s
        self.callback = callback
        self.cancelled = False

    def when(self) -> float:
        return self.at_s

    def cancel(self) -> None:
        self.cancelled = True


class Clock:
    """Notes the timers that were set, and fires them when told."""

    def __init__(self) -> None:
        self.timers: list[Timer] = []

    def call_at(self, when: float, callback: Callable[[], None]) -> Timer:
        self.timers.append(Timer(when, callback))
        return self.timers[-1]

    def pending_s(self) -> list[float]:
        return [timer.at_s for timer in self.timers if not timer.cancelled]

    def fire(self) -> None:
        (timer,) = [timer for timer in self.timers if not timer.cancelled]
        self.timers.clear()
        timer.callback()


@pytest.fixture
def clock(monkeypatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(asyncio, "get_running_loop", lambda: clock)
    return clock


def an_alarm() -> tuple[Alarm, list[str]]:
    rung: list[str] = []
    return Alarm(lambda: rung.append("rung")), rung


def test_it_rings_at_its_deadline_once(clock):
    alarm, rung = an_alarm()

    alarm.set(2.0)
    clock.fire()

    assert rung == ["rung"]
    assert clock.pending_s() == []


def test_a_sooner_deadline_moves_the_timer(clock):
    alarm, _ = an_alarm()
    alarm.set(2.0)

    alarm.set(1.0)

    assert clock.pending_s() == [1.0]


def test_a_later_deadline_leaves_the_timer_where_it_is(clock):
    alarm, _ = an_alarm()
    alarm.set(2.0)

    alarm.set(3.0)
    alarm.set(2.0)
    alarm.set(None)

    assert [timer.at_s for timer in clock.timers] == [2.0]


def test_without_a_deadline_no_timer_is_set(clock):
    alarm, _ = an_alarm()

    alarm.set(None)

    assert clock.timers == []


def test_after_it_rang_it_can_be_set_again(clock):
    alarm, rung = an_alarm()
    alarm.set(2.0)
    clock.fire()

    alarm.set(5.0)
    clock.fire()

    assert rung == ["rung", "rung"]


def test_a_cancelled_alarm_does_not_ring(clock):
    alarm, _ = an_alarm()
    alarm.cancel()
    alarm.set(2.0)

    alarm.cancel()
    assert clock.pending_s() == []

    alarm.set(3.0)
    assert clock.pending_s() == [3.0]
