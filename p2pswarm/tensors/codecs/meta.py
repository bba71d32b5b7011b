"""The announcement of a tensor, and the checks that come before any allocation.

The announcement alone determines how much memory the receiver needs. So a peer that
announces something impossible is refused before memory is allocated for it.

Units:   bytes; a value is one element of the tensor.
Shapes:  rank 0..8, any dimension may be 0.
Errors:  BadMessage for an impossible announcement, TooLarge above `TENSOR_BYTES_MAX`.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from math import prod
from typing import Annotated

from p2pswarm.base.errors import BadMessage, TooLarge
from p2pswarm.net.wire.message import Message, Size, message

RANK_MAX = 8  # attention needs 4; other models may need more
TENSOR_BYTES_MAX = 1 << 40  # below it no product of dimensions overflows an integer
INLINE_BYTES_MAX = 16 * 1024  # a quarter of a frame: so small a tensor is sent in the message
TENSORS_MAX = 256  # in one announcement; a block has about 16 parameters


class Dtype(IntEnum):
    """The types of values on the wire, all little-endian; the codes never change."""

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
    """The code of a codec in the registry."""
    encoded_bytes: int
    """The size of what the codec made of it, and what is sent."""
    inline: Annotated[bytes, Size(INLINE_BYTES_MAX)] = b""
    """All of the encoded bytes, or none if they come as a transfer."""


@message(41)
@dataclass(frozen=True, slots=True)
class Grant(Message):
    """The answer to an announcement: the transfers for its tensors, whose memory is there."""

    transfers: Annotated[tuple[int, ...], Size(TENSORS_MAX)]
    """The transfer of each tensor in order; 0 for a tensor whose bytes came inline."""


@dataclass(frozen=True, slots=True)
class TensorLayout:
    """A shape and dtype that were checked."""

    dtype: Dtype
    shape: tuple[int, ...]

    @property
    def values(self) -> int:
        """The number of elements."""
        return prod(self.shape)

    @property
    def raw_bytes(self) -> int:
        """The size in memory."""
        return self.values * VALUE_BYTES[self.dtype]


def bytes_of(metas: Iterable[TensorMeta]) -> int:
    """Return what all that is announced takes on a link."""
    return sum(meta.encoded_bytes for meta in metas)


def layout(meta: TensorMeta) -> TensorLayout:
    """The layout that `meta` announces, checked; raises BadMessage or TooLarge."""
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
    if spanned > TENSOR_BYTES_MAX:  # 0 counts as 1: strides grow with the other dimensions
        raise TooLarge(f"a tensor of shape {meta.shape} is over {TENSOR_BYTES_MAX} bytes")
    return TensorLayout(dtype, meta.shape)


def travels_alone(meta: TensorMeta) -> bool:
    """Return whether the encoded bytes come as a transfer rather than inline."""
    return meta.encoded_bytes > len(meta.inline)
