"""The announcement of a tensor: what is possible, and what is turned away before any memory."""

import contextlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pswarm.base.errors import BadMessage, Refused, TooLarge
from p2pswarm.net.wire.message import decode, encode
from p2pswarm.tensors.codecs.meta import (
    INLINE_BYTES_MAX,
    TENSOR_BYTES_MAX,
    Dtype,
    Grant,
    TensorMeta,
    layout,
    travels_alone,
)
from p2pswarm.tensors.codecs.registry import BY_CODE, admit

RAW = 1


def meta(dtype=Dtype.FLOAT32, shape=(2, 3), codec=RAW, encoded_bytes=24, inline=b""):
    return TensorMeta(int(dtype), shape, codec, encoded_bytes, inline)


def test_announcement_survives_the_wire():
    told = meta(inline=b"x" * 24)

    assert decode(encode(told)) == told
    assert decode(encode(Grant((0, 7)))) == Grant((0, 7))


def test_layout_counts_values_and_bytes():
    plan = layout(meta(Dtype.BFLOAT16, (4, 0, 3), encoded_bytes=0))

    assert (plan.values, plan.raw_bytes) == (0, 0)
    assert layout(meta(Dtype.FLOAT64, (4, 2, 3))).raw_bytes == 192
    assert layout(meta(shape=())).values == 1


@pytest.mark.parametrize(
    "wrong",
    [
        meta(dtype=0),
        meta(dtype=99),
        meta(dtype=2**63 - 1),
        meta(codec=0),
        meta(codec=77),
        meta(shape=(1,) * 9, encoded_bytes=4),
        meta(shape=(-2, -3)),
        meta(encoded_bytes=-24),
        meta(encoded_bytes=23),
        meta(encoded_bytes=2**62),
        meta(inline=b"x" * 23),
        meta(Dtype.INT64, (3,), codec=4, encoded_bytes=7),
    ],
    ids=lambda m: f"{m.dtype}-{m.shape}-{m.codec}-{m.encoded_bytes}",
)
def test_impossible_announcement_is_a_broken_protocol(wrong):
    with pytest.raises(BadMessage):
        admit(wrong)


@pytest.mark.parametrize(
    "shape", [(2**62,), (2**32, 2**32), (2**21,) * 3, (2**40, 0, 2**40), (TENSOR_BYTES_MAX,)]
)
def test_shape_whose_product_overflows_is_too_large(shape):
    with pytest.raises(TooLarge):
        admit(meta(shape=shape))


def test_only_bytes_that_are_not_inline_travel_alone():
    assert travels_alone(meta())
    assert not travels_alone(meta(inline=b"x" * 24))
    assert not travels_alone(meta(shape=(0,), encoded_bytes=0))


def test_no_announcement_makes_us_work_in_vain():
    """Whatever is admitted is paid for in full: what arrives and what it becomes."""
    for codec in BY_CODE.values():
        dtype = min(codec.dtypes)
        for encoded_bytes in range(5000):
            try:
                admission = admit(meta(dtype, (1000,), codec.code, encoded_bytes))
            except BadMessage:
                continue
            assert admission.memory_bytes >= max(encoded_bytes, 1000 * 4)


SIZES = st.integers(0, 40) | st.integers(0, 2**63 - 1)


@given(
    dtype=st.integers(0, 9) | SIZES,
    shape=st.lists(SIZES, max_size=10).map(tuple),
    codec=st.integers(0, 7) | SIZES,
    encoded_bytes=SIZES,
    inline=st.binary(max_size=64),
)
def test_any_announcement_is_admitted_or_refused_by_name(**fields):
    try:
        admission = admit(TensorMeta(**fields))
    except (BadMessage, TooLarge):
        return

    assert admission.layout.raw_bytes <= TENSOR_BYTES_MAX
    assert admission.memory_bytes >= admission.layout.raw_bytes


@given(st.binary(max_size=200))
def test_any_bytes_in_its_place_are_a_bad_message(garbage):
    with contextlib.suppress(BadMessage, Refused):
        admit(decode(b"\x96\x28" + garbage))


@given(st.data())
def test_flipped_bytes_of_an_announcement_never_do_worse(data):
    wire = bytearray(encode(meta(inline=struct.pack("<6f", *range(6)))))
    at = data.draw(st.integers(0, len(wire) - 1))
    wire[at] = data.draw(st.integers(0, 255))

    with contextlib.suppress(BadMessage, TooLarge):
        told = decode(bytes(wire))
        if isinstance(told, TensorMeta):
            admit(told)


def test_inline_bytes_past_the_limit_do_not_decode():
    n = INLINE_BYTES_MAX + 1
    head = b"\x96\x28\x07\x91" + b"\xcd" + struct.pack(">H", n) + b"\x01\xcd" + struct.pack(">H", n)
    wire = head + b"\xc5" + struct.pack(">H", n) + bytes(n)

    with pytest.raises(BadMessage):
        decode(wire)
