"""Kinds that may be longer than a frame: their limit, and how their first bytes name them."""

import contextlib
from dataclasses import dataclass
from typing import Annotated

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st
from net.wire.harness import Blob, Everything, Nothing, Pair, everything, packed

from p2pswarm.base.errors import BadMessage
from p2pswarm.net.wire.message import (
    BYTES_MAX,
    LONG_BYTES_MAX,
    MESSAGE_BYTES_MAX,
    Message,
    Size,
    UnknownCode,
    class_at,
    decode,
    encode,
    longest,
    message,
)


@message(65020, bytes_max=LONG_BYTES_MAX)
@dataclass(frozen=True, slots=True)
class Long(Message):
    data: Annotated[bytes, Size(LONG_BYTES_MAX)]
    more: bytes = b""


ROOM = LONG_BYTES_MAX - len(encode(Long(bytes(70_000)))) + 70_000


@pytest.mark.parametrize("nbytes", [0, MESSAGE_BYTES_MAX, ROOM])
def test_a_long_message_survives_the_wire_to_its_last_byte(nbytes: int):
    assert decode(encode(Long(bytes(nbytes)))) == Long(bytes(nbytes))


def test_a_longer_one_is_our_own_mistake_and_refused_on_arrival():
    with pytest.raises(ValueError, match=f"over {LONG_BYTES_MAX}"):
        encode(Long(bytes(ROOM + 1)))
    with pytest.raises(BadMessage, match=f"over {LONG_BYTES_MAX}"):
        decode(packed(65020, bytes(ROOM + 1), b""))


def test_fields_that_name_no_size_keep_the_usual_one():
    with pytest.raises(ValueError, match=r"Long\.more"):
        encode(Long(b"", bytes(BYTES_MAX + 1)))


def test_other_kinds_stay_as_short_as_they_are():
    assert longest(Pair) == MESSAGE_BYTES_MAX
    with pytest.raises(BadMessage, match=f"over {MESSAGE_BYTES_MAX}"):
        decode(packed(65535, bytes(40_000), bytes(40_000)))


def test_no_kind_may_be_longer_than_what_a_stream_has_room_for():
    with pytest.raises(ValueError, match=str(LONG_BYTES_MAX)):
        message(65021, bytes_max=LONG_BYTES_MAX + 1)


@pytest.mark.parametrize(
    ("m", "kind"),
    [(Long(bytes(9)), Long), (everything(), Everything), (Nothing(), Nothing), (Blob(b""), Blob)],
)
def test_the_first_bytes_name_the_kind(m: Message, kind: type[Message]):
    assert class_at(encode(m)[:6]) is kind
    assert class_at(memoryview(encode(m))) is kind


@pytest.mark.parametrize("code", [62, 200, 255, 256, 65022])
def test_codes_of_every_width_are_read(code: int):
    """None of them is anybody's."""
    for row in ([code, 1], [code] + [0] * 20):  # an array of up to 15 items, and a longer one
        with pytest.raises(UnknownCode, match=f"unknown code {code}$"):
            class_at(msgpack.packb(row)[:6])


@pytest.mark.parametrize(
    "start",
    [b"", b"\x92", b"\xdc\0", b"\xdc\0\x15", b"\x92\xcd\xfd", b"\x05\x01", b"\x92\xa1", b"\0"],
)
def test_bytes_that_begin_no_message_are_refused(start: bytes):
    with pytest.raises(BadMessage, match="starts with a code"):
        class_at(start)


@given(st.binary(max_size=8))
def test_no_bytes_raise_anything_else(start: bytes):
    with contextlib.suppress(BadMessage):
        assert issubclass(class_at(start), Message)
