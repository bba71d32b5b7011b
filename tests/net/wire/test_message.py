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
from net.wire.harness import (
    Everything,
    Grown,
    Loose,
    Nothing,
    One,
    Ordered,
    Several,
    everything,
    everythings,
    packed,
)

from p2pswarm.base.errors import BadMessage
from p2pswarm.net.wire.message import (
    BYTES_MAX,
    INT_MAX,
    STR_CHARS_MAX,
    Message,
    Trailing,
    decode,
    encode,
    message,
)


@given(everythings)
def test_message_survives_the_wire(m: Everything):
    assert decode(encode(m)) == m


def test_memoryview_is_read_like_bytes():
    assert decode(memoryview(encode(everything()))) == everything()


def test_message_is_an_array_of_its_code_and_fields_and_nothing_else():
    assert encode(Ordered(1, 2)) == packed(65004, 1, 2)
    assert encode(everything())[:4] == b"\x9e\xcd\xfd\xe9"


@pytest.mark.parametrize(
    ("grown", "row"),
    [
        (Grown(3), (3,)),
        (Grown(3, b"ab"), (3, b"ab")),
        (Grown(3, b"", 2), (3, b"", 2)),
        (Grown(3, b"ab", 2), (3, b"ab", 2)),
        (Grown(3, b"", 1, (One(5),)), (3, b"", 1, ((5,),))),
    ],
)
def test_trailing_defaults_are_left_out_and_come_back(grown: Grown, row: tuple):
    data = encode(Several((grown, Grown(4))))

    assert data == packed(65010, (row, (4,)))
    assert decode(data) == Several((grown, Grown(4)))


@pytest.mark.parametrize(
    "row", [(), (3, b""), (3, b"ab", 1), (3, b"abc"), (3, b"ab", 2, ()), (3,) * 5]
)
def test_a_trailing_default_that_is_written_is_refused_as_are_too_few_and_too_many(row: tuple):
    with pytest.raises(BadMessage):
        decode(packed(65010, (row,)))


def test_a_trailing_field_is_among_the_last_and_has_a_default():
    @dataclass(frozen=True, slots=True)
    class Early(Message):
        first: Annotated[int, Trailing()] = 1
        second: int = 2

    @dataclass(frozen=True, slots=True)
    class Bare(Message):
        first: Annotated[int, Trailing()]

    for cls in (Early, Bare):
        with pytest.raises(TypeError, match="a trailing field is among the last"):
            message(65011)(cls)


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
