"""The times of a server: when it serves, by this machine's clock, and when it ends by itself.

Hours are what a clock on the wall shows. So they need no rule for summer time: an hour that is
there twice counts twice, and one that is left out does not count.

Units:   minutes since midnight; seconds.
"""

import re
from dataclasses import dataclass
from datetime import datetime

RUN, NEVER, IDLE = "run", "never", "idle:"
IDLE_MAX_S = 10_000_000  # 115 days: a longer wait is `never`
HOUR_MINUTES = 60
DAY_MINUTES = 24 * HOUR_MINUTES
RANGES_MAX = 24  # in a day: more is a mistake
HOURS_CHARS_MAX = RANGES_MAX * len("00:00-00:00, ")
RANGE = re.compile(r"([0-9]{1,2}):([0-9]{2})\s*-\s*([0-9]{1,2}):([0-9]{2})")


@dataclass(frozen=True, slots=True)
class LeaveWhen:
    """A text says when a server ends by itself: `serve.leave`."""

    def allows(self, text: str) -> bool:
        """Return whether it does."""
        ends = _ends(text)
        idle = [each for each in ends if _seconds(each) is not None]
        return text == NEVER or sorted(ends) in (idle[:1], [*idle[:1], RUN])

    def __str__(self) -> str:
        return (
            f'"run", "never", or "idle:N", N the seconds without a run, 1 to {IDLE_MAX_S:,}; '
            'or both as "run, idle:N"'
        )


def leaves_with_run(leave: str) -> bool:
    """Return whether a server ends when a run that it has served is over."""
    return RUN in _ends(leave)


def idle_s(leave: str) -> float | None:
    """The seconds without a run after which a server ends; None if `leave` names none."""
    return next((s for each in _ends(leave) if (s := _seconds(each)) is not None), None)


def _ends(leave: str) -> list[str]:
    return [each.strip() for each in leave.split(",")]


def _seconds(end: str) -> float | None:
    digits = end.removeprefix(IDLE)
    if digits == end or not re.fullmatch("[0-9]{1,9}", digits):
        return None
    return float(digits) if 1 <= int(digits) <= IDLE_MAX_S else None


@dataclass(frozen=True, slots=True)
class HoursText:
    """A text is empty, or names hours of the day: `serve.hours`."""

    def allows(self, text: str) -> bool:
        """Return whether it does."""
        try:
            ServingHours.of(text)
        except ValueError:
            return False
        return True

    def __str__(self) -> str:
        return (
            'hours of this machine\'s clock, as "20:00-08:00" or "12:00-13:30, 20:00-08:00", and '
            'no empty ones; "" for all day'
        )


@dataclass(frozen=True, slots=True)
class ServingHours:
    """The hours of a day in which a server serves. Its first minute is in a range, its end not."""

    ranges: tuple[tuple[int, int], ...] = ()
    """Begin and end, in minutes since midnight; one that ends before it begins is over midnight.

    Empty: all day.
    """

    @classmethod
    def of(cls, text: str) -> "ServingHours":
        """Read the setting; ValueError for a text that names no hours."""
        if len(text) > HOURS_CHARS_MAX:
            raise ValueError(f"hours have at most {RANGES_MAX} ranges")
        parts = text.split(",") if text.strip() else []
        return cls(tuple(_range(part.strip()) for part in parts))

    def serves_at(self, local: datetime) -> bool:
        """Return whether a server serves when a clock on the wall shows this."""
        minute = local.hour * HOUR_MINUTES + local.minute
        return not self.ranges or any(_within(minute, *each) for each in self.ranges)

    def __str__(self) -> str:
        return ", ".join(f"{_clock(begin)}-{_clock(end)}" for begin, end in self.ranges)


def _range(text: str) -> tuple[int, int]:
    found = RANGE.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is not HH:MM-HH:MM")
    begin_hour, begin_minute, end_hour, end_minute = map(int, found.groups())
    begin = begin_hour * HOUR_MINUTES + begin_minute
    end = end_hour * HOUR_MINUTES + end_minute
    wrong = max(begin_minute, end_minute) >= HOUR_MINUTES or begin == end
    if wrong or begin >= DAY_MINUTES or end > DAY_MINUTES:
        raise ValueError(f"{text!r} are no hours of a day")
    return begin, end


def _within(minute: int, begin: int, end: int) -> bool:
    return begin <= minute < end if begin < end else minute >= begin or minute < end


def _clock(minute: int) -> str:
    return f"{minute // HOUR_MINUTES:02}:{minute % HOUR_MINUTES:02}"
