"""Lines of events: what the log, the stream and `progress = "json"` have in common.

A line is one object of JSON: `v`, the version of this format; `at`, the wall clock; `run`, `by` and
`n`, which number the events of each process; then the event's name and its fields. `text` is its
sentence, for people. Numbers that are not finite are texts: "NaN", "Infinity", "-Infinity".

A reader passes over fields that it does not know, so a newer program may add some. It takes the
defaults of those that lack.

Units:   `at` in seconds since 1970, UTC.
Source:  RFC 8259 for JSON.
"""

import dataclasses
import functools
import json
import math
import operator
import types
import typing
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from p2pswarm.progress.events import KINDS, Begun, Event, Peers, name_of

VERSION = 2  # rises when the meaning of a field changes; 1 had no version, run or number
LINE_CHARS_MAX = 4 << 20  # 4,096 servers with all their figures
INT_MAX = 2**63 - 1
AT_MAX = 1e11  # the year 5138
ID_CHARS_MAX = 64
SHOWN_CHARS = 80  # of a line that is none, so that the message stays one line
PROCESSES_MAX = 4_096  # nodes whose numbers are followed; a run has no more members
FINITE_NOT = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
NOT_AN_EVENT = AttributeError, KeyError, TypeError, ValueError, OverflowError, RecursionError
OWN = ("v", "at", "run", "by", "n", "event", "text")
"""Names that a field of an event cannot have, but for a text that is a field."""


class UnknownEvent(ValueError):
    """A line of a newer program: its version, or the kind of its event, is not known here."""


@dataclass(frozen=True)
class EventLine:
    """An event, and when, in which run, and in which process it was told."""

    at: float
    """The wall clock of who tells it, in seconds since 1970."""
    run: str
    """The first digits of the run's id; empty while none is known."""
    by: str
    """The short peer id of who tells it."""
    n: int
    """Which event of its process it is, from 1 on; `peers`, and what is repeated at the head of a
    file, have the number of the event before."""
    event: Event

    @functools.cached_property
    def line(self) -> str:
        """The JSON, without a line end; made once, however many read it."""
        return to_line(self)


class EventNumbers:
    """Numbers the events of one process."""

    def __init__(self, run: str, by: str, wall: Callable[[], float]) -> None:
        """`wall`: the wall clock, in seconds since 1970."""
        self.run = run
        self._by = by
        self._wall = wall
        self._last = 0

    def stamp(self, event: Event) -> EventLine:
        """The next event of this process; figures of servers do not count, as logs have few."""
        self._last += not isinstance(event, Peers) or not self._last
        return EventLine(round(self._wall(), 3), self.run, self._by, self._last, event)


def to_line(told: EventLine) -> str:
    """One line of JSON, without its end."""
    event = told.event
    head = {"v": VERSION, "at": told.at, "run": told.run, "by": told.by, "n": told.n}
    fields = {"event": name_of(type(event)), **_plain(event), "text": event.text}
    return json.dumps(head | fields, separators=(",", ":"))


def from_line(line: str) -> EventLine:
    """Read a line that `to_line` wrote.

    Raises UnknownEvent for one of a newer program, ValueError for any other text.
    """
    if len(line) > LINE_CHARS_MAX:
        raise ValueError(f"a line of {len(line):,} characters is not an event of a run")
    try:
        fields: Any = json.loads(line, parse_constant=_no_constant)
        kind = _kind(fields)
        at, n = _read(float, fields["at"]), _read(int, fields["n"])
        run, by = _read(str, fields["run"]), _read(str, fields["by"])
        event: Event = _read(kind, fields)
        fits = 0.0 <= at <= AT_MAX and n >= 1 and max(len(by), len(run)) <= ID_CHARS_MAX
    except UnknownEvent:
        raise
    except NOT_AN_EVENT as error:
        raise ValueError(f"not an event of a run: {line[:SHOWN_CHARS]!r}") from error
    if not fits:
        raise ValueError(f"not an event of a run: {line[:SHOWN_CHARS]!r}")
    return EventLine(at, run, by, n, event)


def _kind(fields: Any) -> type[Event]:
    """The kind of a line's event; UnknownEvent if a newer release has it."""
    version, name = fields["v"], fields["event"]
    if type(version) is not int or version < VERSION:
        raise ValueError("another version")
    if version > VERSION:
        raise UnknownEvent(
            f"an event of version {str(version)[:SHOWN_CHARS]}, this program reads {VERSION}: "
            "install the newest release"
        )
    if type(name) is str and name.isidentifier() and name not in KINDS:
        raise UnknownEvent(f"an event {name[:SHOWN_CHARS]!r}, which a newer release has")
    return KINDS[name]


def _no_constant(text: str) -> float:
    raise ValueError(f"{text} is not JSON")


def _plain(value: Any) -> Any:
    """A value as JSON has it."""
    if isinstance(value, float):
        return value if math.isfinite(value) else json.dumps(value)
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    kind: Any = type(value)
    if (fields := _fields(kind)) is not None:
        given = zip(fields.names, fields.of(value), strict=True)
        return {name: _plain(each) for name, each in given}
    return value


@dataclass(frozen=True, slots=True)
class _FieldNames:
    """The fields of a dataclass."""

    names: tuple[str, ...]
    of: Callable[[Any], tuple[Any, ...]]


@functools.cache
def _fields(kind: type) -> _FieldNames | None:
    """The fields of a kind of dataclass; None for other values."""
    if not dataclasses.is_dataclass(kind):
        return None
    names = tuple(each.name for each in dataclasses.fields(kind))
    get = operator.attrgetter(*names)  # `asdict` takes ten times as long
    return _FieldNames(names, get if len(names) > 1 else lambda value: (get(value),))


def _read(kind: Any, value: Any) -> Any:
    """A value of the type `kind` from JSON, which has neither dataclasses nor tuples."""
    if typing.get_origin(kind) is tuple:
        if type(value) is not list:
            raise TypeError("no list")
        return tuple(_read(typing.get_args(kind)[0], each) for each in value)
    if isinstance(kind, types.UnionType):
        return None if value is None else _read(typing.get_args(kind)[0], value)
    if dataclasses.is_dataclass(kind):
        make: Any = kind
        known = _types(make)
        return make(
            **{name: _read(known[name], each) for name, each in value.items() if name in known}
        )
    if kind is float:
        return _number(value)
    if issubclass(kind, StrEnum):
        return kind(value)
    if type(value) is not kind or (kind is int and abs(value) > INT_MAX):
        raise TypeError(f"no {kind.__name__}")
    return value


def _number(value: Any) -> float:
    if type(value) is str:
        return FINITE_NOT[value]
    if type(value) not in (int, float):
        raise TypeError("no number")
    return float(value)


@functools.cache
def _types(kind: Any) -> dict[str, Any]:
    return typing.get_type_hints(kind)


class EventReader:
    """Reads the lines of one run's nodes; what is wrong with them is said once, in `remarks`.

    Lines that are no events, that are of a newer program or of another run are passed over. Numbers
    that lack are told, and nothing is passed over for that.
    """

    def __init__(self, run: str = "") -> None:
        """`run`: only its events are wanted; empty: of the first run that there is."""
        self._run = run
        self._last: dict[str, int] = {}
        """The newest number of each process, by its peer."""
        self._remarks: list[str] = []
        self._said: set[str] = set()

    def on_line(self, line: str, place: str, number: int) -> EventLine | None:
        """Read line `number` of the file `place`; None if it is to be passed over."""
        try:
            told = from_line(line)
        except UnknownEvent as error:
            self._say(f"{place}: line {number}: {error}; such events are passed over", str(error))
            return None
        except ValueError:
            self._say(
                f"{place}: line {number} is torn, or no event: such lines are passed over", place
            )
            return None
        if told.run and not self._run:
            self._run = told.run
        if told.run not in ("", self._run):
            self._say(
                f"{place}: line {number} is of run {told.run}, and not of {self._run}: "
                f"it is passed over; --run {told.run} shows that run",
                told.run,
            )
            return None
        self._follow(told, place, number)
        return told

    def drain(self) -> list[str]:
        """Return what is to be said by now."""
        remarks, self._remarks = self._remarks, []
        return remarks

    def _follow(self, told: EventLine, place: str, number: int) -> None:
        last = self._last.pop(told.by, None)
        self._last[told.by] = told.n
        if len(self._last) > PROCESSES_MAX:
            del self._last[next(iter(self._last))]
        if last is None or told.n in (last, last + 1):
            return
        if told.n > last:
            lacks = told.n - last - 1
            self._say(
                f"{place}: before line {number}, {lacks:,} events of {told.by} lack",
                f"gap {told.by}",
            )
        elif not (isinstance(told.event, Begun) and told.n == 1):  # else it was started again
            self._say(
                f"{place}: line {number} is an older event of {told.by} than the one before: "
                "name each file once",
                f"order {told.by}",
            )

    def _say(self, text: str, what: str) -> None:
        """Say something once for all that is alike."""
        if what not in self._said and len(self._said) < PROCESSES_MAX:
            self._said.add(what)
            self._remarks.append(text)
