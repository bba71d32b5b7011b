"""The limits of messages: those of fields and of the whole, and classes that cannot be messages."""

import math
from dataclasses import dataclass
from typing import Annotated, Any

import pytest
from net.wire.harness import (
    Blob,
    Many,
    Nothing,
    Pair,
    Point,
    Share,
    Text,
    everything,
    packed,
)

from p2pswarm.base.errors import BadMessage
from p2pswarm.net.wire.message import (
    BYTES_MAX,
    INT_MAX,
    ITEMS_MAX,
    MESSAGE_BYTES_MAX,
    STR_CHARS_MAX,
    Message,
    Range,
    Size,
    decode,
    encode,
    message,
)


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
    big = everything(raw=bytes(BYTES_MAX))
    assert len(encode(big)) < MESSAGE_BYTES_MAX

    with pytest.raises(ValueError, match="over"):
        encode(everything(raw=bytes(BYTES_MAX), keys=(b"1234",) * 1000))
    with pytest.raises(BadMessage, match="over"):
        decode(packed(65006, bytes(MESSAGE_BYTES_MAX)))
    with pytest.raises(BadMessage, match="starts with a code"):
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
