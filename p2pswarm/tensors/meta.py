"""What is said of a tensor before its bytes move, and the checks that come before any allocation.

The announcement alone fixes how much memory the receiver needs, so a peer that
lies about a tensor is found out, or refused, before a byte is set aside for it.

Units:   bytes; a value is one element of the tensor.
Shapes:  rank 0..8, any dimension may be 0.
Errors:  BadMessage for what no honest peer announces, TooLarge past `TENSOR_BYTES_MAX`.
"""

from dataclasses import dataclass
from enum import IntEnum
from math import prod
from typing import Annotated

from p2pswarm.errors import BadMessage, TooLarge
from p2pswarm.wire.message import Message, Size, message

RANK_MAX = 8  # attention needs 4; twice that for other models
TENSOR_BYTES_MAX = 1 << 40  # a product of dimensions below it fits every integer on the way
INLINE_BYTES_MAX = 16 * 1024  # a quarter of a mux frame: such a tensor rides in the message itself
TENSORS_MAX = 256  # in one announcement; a block has about 16 parameters


class Dtype(IntEnum):
    """The kinds of value that cross the wire, little-endian each; the codes never change."""

    FLOAT32 = 1
    FLOAT64 = 2
    FLOAT16 = 3
    BFLOAT16 = 4
    INT64 = 5
    INT32 = 6
    UINT8 = 7


VALUE_BYTES = {
    Dtype.FLOAT32: 4,
    Dtype.FLOAT64: 8,
    Dtype.FLOAT16: 2,
    Dtype.BFLOAT16: 2,
    Dtype.INT64: 8,
    Dtype.INT32: 4,
    Dtype.UINT8: 1,
}


@message(40)
@dataclass(frozen=True, slots=True)
class TensorMeta(Message):
    """The announcement of one tensor."""

    dtype: int
    """A `Dtype`."""
    shape: Annotated[tuple[int, ...], Size(RANK_MAX)]
    codec: int
    """The code of a codec of the registry."""
    encoded_bytes: int
    """What the codec made of it: the bytes that move."""
    inline: Annotated[bytes, Size(INLINE_BYTES_MAX)] = b""
    """All of the encoded bytes, or none: then they come as a transfer of their own."""


@message(41)
@dataclass(frozen=True, slots=True)
class Grant(Message):
    """Memory is set aside: where to send each of the announced tensors, in their order."""

    transfers: Annotated[tuple[int, ...], Size(TENSORS_MAX)]
    """The number of the transfer; 0 for a tensor whose bytes came inline."""


@dataclass(frozen=True, slots=True)
class TensorLayout:
    """A shape and dtype that were found possible."""

    dtype: Dtype
    shape: tuple[int, ...]

    @property
    def values(self) -> int:
        """How many elements."""
        return prod(self.shape)

    @property
    def raw_bytes(self) -> int:
        """The size in memory."""
        return self.values * VALUE_BYTES[self.dtype]


def layout(meta: TensorMeta) -> TensorLayout:
    """What `meta` announces, checked, before any memory is touched."""
    try:
        dtype = Dtype(meta.dtype)
    except ValueError as error:
        raise BadMessage(f"{meta.dtype} is no dtype") from error
    if len(meta.shape) > RANK_MAX:
        raise BadMessage(f"a tensor of rank {len(meta.shape)}; {RANK_MAX} is the most")
    if any(size < 0 for size in meta.shape) or meta.encoded_bytes < 0:
        raise BadMessage(f"a negative size: {meta.shape}, {meta.encoded_bytes} bytes")
    if meta.inline and len(meta.inline) != meta.encoded_bytes:
        raise BadMessage(f"{len(meta.inline)} inline bytes of {meta.encoded_bytes}")
    spanned = prod(max(size, 1) for size in meta.shape) * VALUE_BYTES[dtype]
    if spanned > TENSOR_BYTES_MAX:  # zeros aside, for strides grow with the other dimensions
        raise TooLarge(f"a tensor of shape {meta.shape} is over {TENSOR_BYTES_MAX} bytes")
    return TensorLayout(dtype, meta.shape)


def travels_alone(meta: TensorMeta) -> bool:
    """Whether the encoded bytes come as a transfer rather than inline."""
    return meta.encoded_bytes > len(meta.inline)
