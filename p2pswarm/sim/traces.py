"""The number of rented machines over a day, and the times when it changed."""

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from random import Random
from typing import Any

from p2pswarm.base.errors import Unusable
from p2pswarm.base.files import read_small

HOUR_S = 3600.0
SHIPPED = "spot_traces.json"
TRACE_BYTES_MAX = 4 << 20  # a month of changes each minute; anything larger is another file
MACHINES_MAX = 10_000
TIME_MAX_S = 1e10  # three hundred years
NOTICE_S = 0.0  # a file of one's own promises none
PAIR, TRIPLE = 2, 3  # the lengths of a count and of an event


@dataclass(frozen=True, slots=True)
class Trace:
    """The number of machines that one zone of a cloud had, and the times when it changed.

    `spot_traces.json` ships facts of real clouds; a file of one's own has the same in one of two
    forms, as events `[[seconds, "+" or "-", machines], ...]` or as counts `[[seconds, machines],
    ...]`.
    """

    counts: tuple[tuple[float, int], ...]
    """Seconds, machines from then on."""
    seconds: float
    notice_s: float
    """The notice that a machine gets before its end."""

    @property
    def most(self) -> int:
        """The machines that it had at its best."""
        return max(count for _, count in self.counts)

    def for_hours(self, hours: float) -> Iterator[tuple[float, int]]:
        """Its counts until so many hours have passed, again and again."""
        begun_s = 0.0
        while begun_s < hours * HOUR_S:
            for at_s, count in self.counts:
                if begun_s + at_s < hours * HOUR_S:
                    yield begun_s + at_s, count
            begun_s += self.seconds


@dataclass(frozen=True, slots=True)
class MachineStay:
    """One machine's time in a fleet."""

    machine: int
    """The number of the machine in its fleet: 0 .. the most that there are at once, minus 1."""
    begin_s: float
    end_s: float
    """When it is taken; infinite if it stays to the end."""


def stays(trace: Trace, machines: int, hours: float, rng: Random) -> list[MachineStay]:
    """The stays of a fleet's machines; chance decides which one is taken, and which one comes.

    The trace is scaled so that all machines are there at its best.
    """
    scale = machines / trace.most
    away, there, found = list(range(machines)), dict[int, float](), []
    for at_s, count in trace.for_hours(hours):
        wanted = min(machines, round(count * scale))
        while len(there) < wanted:
            there[away.pop(rng.randrange(len(away)))] = at_s
        while len(there) > wanted:
            taken = rng.choice(sorted(there))
            found.append(MachineStay(taken, there.pop(taken), at_s))
            away.append(taken)
    found += [MachineStay(machine, begin_s, math.inf) for machine, begin_s in there.items()]
    return sorted(found, key=lambda stay: (stay.begin_s, stay.machine))


@dataclass(frozen=True, slots=True)
class Shortage:
    """The time with too few machines for a run to train at all."""

    first_s: float
    seconds: float
    """In all."""


def shortage(there: Sequence[MachineStay], needed: int, seconds: float) -> Shortage | None:
    """The time with fewer than `needed` machines within `seconds`; None if there always are."""
    changes = [(stay.begin_s, 1) for stay in there] + [(stay.end_s, -1) for stay in there]
    count, since_s, first_s, total_s = 0, 0.0, math.inf, 0.0
    for at_s, change in [*sorted(one for one in changes if one[0] < seconds), (seconds, 0)]:
        if count < needed and at_s > since_s:
            first_s = min(first_s, since_s)
            total_s += at_s - since_s
        count, since_s = count + change, at_s
    return Shortage(first_s, total_s) if total_s else None


def shipped_traces() -> tuple[str, ...]:
    """The names of the traces that ship."""
    return tuple(sorted(_shipped()))


def trace_of(name: str) -> Trace:
    """The trace that ships under this name, or that a file holds."""
    found = _shipped().get(name)
    if found is not None:
        changes, there, counts = found["changes"], 0, []
        for at_s, change in changes:
            there += change
            counts.append((float(at_s), there))
        return Trace(tuple(counts), found["seconds"], found["notice_s"])
    path = Path(name)
    if not path.exists():
        names = ", ".join(shipped_traces())
        raise Unusable(f"no trace {name!r:.60}: name one of {names}, or a file of your own")
    return read_trace(path)


def read_trace(path: Path) -> Trace:
    """The trace of a file; Unusable says what is wrong with it."""
    text = read_small(path, TRACE_BYTES_MAX, "it is no trace")
    try:
        given = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Unusable(f"{path} is no JSON: {error}; give events or counts") from error
    if not isinstance(given, dict) or ("events" in given) == ("counts" in given):
        raise Unusable(
            f'{path} has to be {{"events": [...]}} or {{"counts": [...]}}, and one alone'
        )
    try:
        if "counts" in given:
            rows = _rows(given["counts"], PAIR)
            counts = [(_number(at_s), _whole(count)) for at_s, count in rows]
        else:
            counts = _summed(given["events"])
        last_s = counts[-1][0]
        gap_s = max(1.0, last_s - counts[-2][0]) if counts[1:] else 1.0
        seconds = _number(given.get("seconds", last_s + gap_s))
    except (ValueError, TypeError, IndexError) as error:
        raise Unusable(f"{path}: {error}") from error
    return _checked(path, counts, seconds)


def _checked(path: Path, counts: list[tuple[float, int]], seconds: float) -> Trace:
    times = [at_s for at_s, _ in counts]
    if times != sorted(times):
        raise Unusable(f"{path}: the times go back: sort them")
    low, high = min(count for _, count in counts), max(count for _, count in counts)
    if low < 0:
        raise Unusable(f"{path}: {low} machines are there at some time: more go than came")
    if not 0 < high <= MACHINES_MAX:
        raise Unusable(f"{path}: {high} machines at the most; give 1 to {MACHINES_MAX}")
    if seconds < 1:
        raise Unusable(f"{path}: a trace of {seconds:g} s: give one of a second at least")
    if seconds <= times[-1]:
        raise Unusable(f"{path}: seconds {seconds:g} is not after the last change at {times[-1]:g}")
    changes = tuple(dict(counts).items())  # the last of equal times counts
    if len(changes) > seconds:  # it is played again and again
        raise Unusable(
            f"{path}: {len(changes)} changes in {seconds:g} s: give a second to each, or longer "
            "`seconds`"
        )
    return Trace(changes, seconds, NOTICE_S)


def _summed(rows: Any) -> list[tuple[float, int]]:
    """Events as counts; a third value that is a machine's name stands for one machine."""
    there, found = 0, []
    for at_s, sign, machines in _rows(rows, TRIPLE):
        if sign not in ("+", "-"):
            raise ValueError(f"{sign!r:.20} at {at_s} is neither '+' nor '-'")
        many = 1 if isinstance(machines, str) else _whole(machines)
        there += many if sign == "+" else -many
        found.append((_number(at_s), there))
    return found


def _rows(rows: Any, length: int) -> Sequence[Any]:
    if not isinstance(rows, list) or not rows:
        raise ValueError("no machine ever comes: give at least one row")
    if wrong := [row for row in rows if not isinstance(row, list) or len(row) != length]:
        raise ValueError(f"{wrong[0]!r:.40} is no row of {length} values")
    return rows


def _number(value: Any) -> float:
    known = isinstance(value, int | float) and not isinstance(value, bool)
    if not known or not 0 <= value <= TIME_MAX_S:
        raise ValueError(f"{value!r:.20} is no time in seconds from 0")
    return float(value)


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) > MACHINES_MAX:
        raise ValueError(f"{value!r:.20} is no number of machines")
    return value


@lru_cache
def _shipped() -> dict[str, Any]:
    text = (files(__package__) / SHIPPED).read_text(encoding="utf-8")
    traces: dict[str, Any] = json.loads(text)["traces"]
    return traces
