"""Messages of every kind of field, and a strategy that fills them."""

import math
from dataclasses import dataclass
from typing import Annotated, Any

import msgpack
from hypothesis import strategies as st

from p2pswarm.net.wire.message import (
    INT_MAX,
    STR_CHARS_MAX,
    AnyFloat,
    Message,
    Range,
    Size,
    Trailing,
    message,
)

# codes of the tests lie over 65000; the package's own lie below 1000


@dataclass(frozen=True, slots=True)
class Point(Message):
    x: float
    label: str | None


@message(65001)
@dataclass(frozen=True, slots=True)
class Everything(Message):
    count: int
    share: float
    yes: bool
    name: str
    raw: bytes
    key: Annotated[bytes, Size(4, 4)]
    few: Annotated[tuple[int, ...], Size(3)]
    keys: tuple[Annotated[bytes, Size(4, 4)], ...]
    at: Point
    path: tuple[Point, ...]
    maybe: Annotated[int, Range(-5, 5)] | None
    perhaps: Annotated[str | None, Size(1, 4)]
    any_share: Annotated[float, AnyFloat()]


@message(65002)
@dataclass(frozen=True, slots=True)
class Nothing(Message):
    pass


@message(65003)
@dataclass(frozen=True, slots=True)
class One(Message):
    value: int


@message(65004)
@dataclass(frozen=True, slots=True)
class Ordered(Message):
    first: int
    second: int

    def __post_init__(self) -> None:
        if self.first > self.second:
            raise ValueError("first comes first")


@message(65005)
@dataclass(frozen=True, slots=True)
class Text(Message):
    value: str


@message(65006)
@dataclass(frozen=True, slots=True)
class Blob(Message):
    value: bytes


@message(65007)
@dataclass(frozen=True, slots=True)
class Share(Message):
    value: Annotated[float, Range(0, 1)]


@message(65008)
@dataclass(frozen=True, slots=True)
class Many(Message):
    value: tuple[int, ...]


@message(65535)
@dataclass(frozen=True, slots=True)
class Pair(Message):
    first: bytes
    second: bytes


@dataclass(frozen=True, slots=True)
class Grown(Message):
    """It had one field first."""

    old: int
    newer: Annotated[bytes, Size(2), Trailing()] = b""
    newest: Annotated[int, Trailing()] = 1
    last: Annotated[tuple[int, ...], Size(2), Trailing()] = ()


@message(65010)
@dataclass(frozen=True, slots=True)
class Several(Message):
    grown: tuple[Grown, ...]


@message(65009)
@dataclass(frozen=True, slots=True)
class Loose(Message):
    value: float


def everything(**changes: Any) -> Everything:
    usual: dict[str, Any] = {
        "count": 7,
        "share": 0.5,
        "yes": True,
        "name": "näme",
        "raw": b"\0\xff",
        "key": b"four",
        "few": (1, 2),
        "keys": (b"1234", b"5678"),
        "at": Point(1.0, None),
        "path": (Point(2.0, "a"), Point(3.0, "b")),
        "maybe": -5,
        "perhaps": "a",
        "any_share": math.inf,
    }
    return Everything(**(usual | changes))


points = st.builds(
    Point,
    x=st.floats(allow_nan=False, allow_infinity=False),
    label=st.none() | st.text(max_size=20),
)
everythings = st.builds(
    Everything,
    count=st.integers(0, INT_MAX),
    share=st.floats(allow_nan=False, allow_infinity=False),
    yes=st.booleans(),
    name=st.text(max_size=STR_CHARS_MAX),
    raw=st.binary(max_size=100),
    key=st.binary(min_size=4, max_size=4),
    few=st.lists(st.integers(0, INT_MAX), max_size=3).map(tuple),
    keys=st.lists(st.binary(min_size=4, max_size=4), max_size=5).map(tuple),
    at=points,
    path=st.lists(points, max_size=3).map(tuple),
    maybe=st.none() | st.integers(-5, 5),
    perhaps=st.none() | st.text(min_size=1, max_size=4),
    any_share=st.floats(allow_nan=False),
)


def packed(*row: Any) -> bytes:
    return msgpack.packb(row)
