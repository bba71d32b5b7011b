"""Messages on the wire: what is told arrives, and what is not a message is one error."""

import contextlib
import math
import random
from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated, Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pswarm.errors import BadMessage
from p2pswarm.wire.message import (
    BYTES_MAX,
    INT_MAX,
    ITEMS_MAX,
    MESSAGE_BYTES_MAX,
    STR_CHARS_MAX,
    AnyFloat,
    Message,
    Range,
    Size,
    decode,
    encode,
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


@given(everythings)
def test_message_survives_the_wire(m: Everything):
    assert decode(encode(m)) == m


def test_memoryview_is_read_like_bytes():
    assert decode(memoryview(encode(everything()))) == everything()


def test_message_is_an_array_of_its_code_and_fields_and_nothing_else():
    assert encode(Ordered(1, 2)) == packed(65004, 1, 2)
    assert encode(everything())[:4] == b"\x9e\xcd\xfd\xe9"


@pytest.mark.parametrize("m", [Nothing(), One(3)])
def test_message_of_no_or_one_field_survives_the_wire(m: Message):
    assert decode(encode(m)) == m


def test_int_enum_travels_as_its_number():
    class Colour(IntEnum):
        RED = 3

    assert decode(encode(One(Colour.RED))) == One(3)


def test_int_may_stand_for_a_float_when_we_write():
    decoded = decode(encode(Loose(3)))

    assert decoded == Loose(3.0)
    assert isinstance(decoded, Loose)
    assert type(decoded.value) is float


WRONG = {
    "count": [-1, INT_MAX + 1, True, 1.0, "1", None],
    "share": [math.nan, math.inf, -math.inf, "x", None, True],
    "yes": [0, 1, None, "yes"],
    "name": ["x" * (STR_CHARS_MAX + 1), b"bytes", None, 3],
    "raw": [bytes(BYTES_MAX + 1), "text", None],
    "key": [b"thr", b"fives", None],
    "few": [(1, 2, 3, 4), (True,), (-1,), (None,), 5, "abc", None],
    "keys": [(b"123",), (1,), None],
    "at": [None, 5, Nothing()],
    "path": [(1,), (None,), 5],
    "maybe": [-6, 6, "x"],
    "perhaps": ["", "fives", 4],
    "any_share": ["nan", None],
}


@pytest.mark.parametrize(
    ("field", "value"), [(field, value) for field, values in WRONG.items() for value in values]
)
def test_field_outside_its_type_or_limits_is_our_own_mistake_to_send(field: str, value: Any):
    with pytest.raises(ValueError, match=f"\\.{field}|over"):
        encode(everything(**{field: value}))


ROW = list(msgpack.unpackb(encode(everything())))
FIELDS = list(WRONG)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        (field, value)
        for field, values in WRONG.items()
        for value in values
        if not isinstance(value, Message)
    ]
    + [("share", 1), ("at", [1.0]), ("at", [1.0, None, None]), ("at", [1, None])]
    + [("at", {}), ("few", {}), ("name", msgpack.ExtType(5, b"")), ("count", 2**64 - 1)],
)
def test_field_outside_its_type_or_limits_is_refused_on_arrival(field: str, value: Any):
    row = list(ROW)
    row[1 + FIELDS.index(field)] = value

    with pytest.raises(BadMessage):
        decode(packed(*row))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        b"\xc0",
        b"\x05",
        packed(),
        packed(None),
        packed("65002"),
        packed(True),
        packed(65002.0),
        packed([65002]),
        packed(64999),
        packed(-1),
        packed(2**64 - 1),
        packed(65002, 1),
        packed(65003),
        packed(65003, 1, 2),
        packed(65002) + b"\0",
        packed(65002)[:-1],
        msgpack.packb({65002: 1}),
        msgpack.packb({}),
        packed(65005, b"\xff\xfe"),
        b"\x92\xcd\xfd\xed\xa2\xff\xfe",
        b"\x92\xcd\xfd\xeb\xdd\xff\xff\xff\xff",
        b"\x92\xcd\xfd\xec\xdb\xff\xff\xff\xff",
        b"\x92\xcd\xfd\xec\xc6\xff\xff\xff\xff",
        b"\x92\xcd\xfd\xec\xc9\xff\xff\xff\xff\x05",
        b"\x92\xcd\xfd\xeb\xd6\xff\0\0\0\0",
        b"\x92\xcd\xfd\xeb\xc7\x00\xff",
    ],
)
def test_what_is_no_message_is_refused(data: bytes):
    with pytest.raises(BadMessage):
        decode(data)


@pytest.mark.parametrize("depth", [17, 500, 600, 5000])
def test_deep_nesting_is_refused(depth: int):
    with pytest.raises(BadMessage, match=r"message: \w"):
        decode(b"\x92\xcd\xfd\xf0" + b"\x91" * depth + b"\x01")


def test_message_may_refuse_a_combination_of_its_fields():
    with pytest.raises(BadMessage, match="first comes first"):
        decode(packed(65004, 2, 1))


def test_error_text_does_not_repeat_what_the_peer_sent_at_length():
    with pytest.raises(BadMessage) as caught:
        decode(packed(65001, *[2**64 - 1] * 13))
    assert len(str(caught.value)) < 200

    with pytest.raises(BadMessage) as caught:
        decode(packed(65003, "evil" * 1000))
    assert "evil" not in str(caught.value)


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_ends_of_a_range_belong_to_it(value: float):
    assert decode(encode(Share(value))) == Share(value)


@pytest.mark.parametrize("value", [-0.001, 1.001, math.nan])
def test_float_outside_its_range_is_refused(value: float):
    with pytest.raises(BadMessage):
        decode(packed(65007, value))


def test_limits_that_nobody_named_hold():
    assert decode(encode(Text("x" * STR_CHARS_MAX)))
    assert decode(encode(Blob(bytes(BYTES_MAX))))
    assert decode(encode(Many((0,) * ITEMS_MAX)))
    with pytest.raises(BadMessage):
        decode(packed(65008, (0,) * (ITEMS_MAX + 1)))
    with pytest.raises(BadMessage):
        decode(packed(65006, bytes(BYTES_MAX + 1)))


def test_whole_message_is_bounded_whatever_its_fields():
    big = Everything(**{f: getattr(everything(), f) for f in FIELDS} | {"raw": bytes(BYTES_MAX)})
    assert len(encode(big)) < MESSAGE_BYTES_MAX

    with pytest.raises(ValueError, match="over"):
        encode(everything(raw=bytes(BYTES_MAX), keys=(b"1234",) * 1000))
    with pytest.raises(BadMessage, match="over"):
        decode(bytes(MESSAGE_BYTES_MAX + 1))


def test_message_may_fill_its_bound_to_the_last_byte():
    overhead = len(encode(Pair(bytes(40_000), bytes(25_000)))) - 65_000
    longest = Pair(bytes(40_000), bytes(MESSAGE_BYTES_MAX - 40_000 - overhead))

    assert len(encode(longest)) == MESSAGE_BYTES_MAX
    assert decode(encode(longest)) == longest
    with pytest.raises(ValueError, match="over"):
        encode(Pair(longest.first + b"x", longest.second))


def test_class_without_a_code_cannot_be_sent_alone():
    with pytest.raises(TypeError, match="Point"):
        encode(Point(1.0, None))


@pytest.mark.parametrize("code", [0, -1, 65536])
def test_code_outside_its_range_is_refused(code: int):
    with pytest.raises(ValueError, match=str(code)):
        message(code)(Point)


def test_code_serves_one_class_only():
    with pytest.raises(ValueError, match="65001 is taken"):
        message(65001)(Point)


@pytest.mark.parametrize(
    "hint",
    [
        list[int],
        dict[str, int],
        Any,
        object,
        tuple[int, int],
        tuple[int],
        int | str,
        int | str | None,
        None,
        complex,
    ],
)
def test_type_that_cannot_travel_is_refused_when_it_is_defined(hint: Any):
    @dataclass(frozen=True, slots=True)
    class Strange(Message):
        value: hint

    with pytest.raises(TypeError, match=r"Strange\.value"):
        message(65100)(Strange)


def test_class_that_is_no_dataclass_is_refused():
    class Plain(Message):
        pass

    class Inherits(Nothing):
        pass

    for cls in (Plain, Inherits, int):
        with pytest.raises(TypeError, match=cls.__name__):
            message(65101)(cls)


@pytest.mark.parametrize(
    "hint",
    [
        Annotated[str, Size(BYTES_MAX + 1)],
        Annotated[tuple[int, ...], Size(ITEMS_MAX + 1)],
        Annotated[int, Range(0, INT_MAX + 1)],
        Annotated[int, Range(-INT_MAX - 2, 0)],
    ],
)
def test_limit_that_the_wire_has_no_room_for_is_refused(hint: Any):
    @dataclass(frozen=True, slots=True)
    class Roomy(Message):
        value: hint

    with pytest.raises(ValueError, match=r"Roomy\.value"):
        message(65102)(Roomy)


def test_nesting_deeper_than_any_need_is_refused_when_it_is_defined():
    cls: Any = Nothing
    for depth in range(15):
        cls = _wrapping(cls)
        message(65200 + depth)(cls)

    with pytest.raises(ValueError, match="17 deep"):
        message(65299)(_wrapping(cls))


def _wrapping(inner: Any) -> Any:
    @dataclass(frozen=True, slots=True)
    class Wrapped(Message):
        value: inner

    return Wrapped


@pytest.mark.parametrize(("first", "second"), [(-1, None), (5, 4), (-1, 4)])
def test_impossible_size_is_refused(first: int, second: int | None):
    with pytest.raises(ValueError, match="size"):
        Size(first, second)


def test_empty_range_is_refused():
    with pytest.raises(ValueError, match="empty"):
        Range(2, 1)


def survives(data: bytes) -> None:
    """Whatever `data` is: a message that can be sent again, or BadMessage."""
    with contextlib.suppress(BadMessage):
        encode(decode(data))


@given(st.binary(max_size=200))
def test_random_bytes_are_a_message_or_one_error(data: bytes):
    survives(data)


wild = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=10)
    | st.binary(max_size=10),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=20,
)


@given(st.sampled_from([65001, 65002, 65003, 65004, 65007, 65008]), st.lists(wild, max_size=14))
def test_random_fields_are_a_message_or_one_error(code: int, fields: list[Any]):
    survives(packed(code, *fields))


@given(everythings, st.integers(0, 13), wild)
def test_message_with_one_wild_field_is_a_message_or_one_error(m: Everything, at: int, field: Any):
    row = list(msgpack.unpackb(encode(m)))
    row[at] = field

    survives(packed(*row))


@pytest.mark.parametrize("seed", range(20))
def test_mutated_messages_are_messages_or_one_error(seed: int):
    """Bits flipped, bytes inserted, removed and doubled, 500 times a seed."""
    rng = random.Random(seed)
    origin = encode(everything())
    for _ in range(500):
        data = bytearray(origin)
        for _ in range(rng.randint(1, 4)):
            at = rng.randrange(len(data) + 1)
            kind = rng.randrange(4)
            if kind == 0:
                data[at:at] = rng.randbytes(rng.randint(1, 3))
            elif kind == 1:
                del data[at : at + rng.randint(1, 3)]
            elif kind == 2:
                data[at:at] = data[at : at + rng.randint(1, 20)]
            elif at < len(data):
                data[at] ^= 1 << rng.randrange(8)
        survives(bytes(data))
