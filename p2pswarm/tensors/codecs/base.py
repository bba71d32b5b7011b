"""What every codec needs: uses, dtypes, and a tensor's memory as bytes.

Bytes and tensors share memory if they can: a contiguous CPU tensor is sent from its
own memory, and a received one is written to its final memory.

Units:   bytes; values are little-endian on the wire, as on every machine that torch supports.
Errors:  ValueError for a tensor that cannot be encoded; BadMessage for a peer's wrong bytes.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Flag, auto

import torch

from p2pswarm.base.errors import BadMessage
from p2pswarm.tensors.codecs.meta import Dtype

Device = torch.device
CPU = Device("cpu")
Tensor = torch.Tensor
TORCH = {
    Dtype.FLOAT32: torch.float32,
    Dtype.FLOAT64: torch.float64,
    Dtype.FLOAT16: torch.float16,
    Dtype.BFLOAT16: torch.bfloat16,
    Dtype.INT64: torch.int64,
    Dtype.INT32: torch.int32,
    Dtype.UINT8: torch.uint8,
}
DTYPES = {kind: dtype for dtype, kind in TORCH.items()}
WIDE = frozenset({Dtype.FLOAT32, Dtype.FLOAT64})
FLOATS = WIDE | {Dtype.FLOAT16, Dtype.BFLOAT16}
EVERY = frozenset(Dtype)


class Unencodable(ValueError):
    """The tensor has values that the codec cannot encode, as NaN in int8 or 1e6 in fp16."""


class TensorUse(Flag):
    """What a tensor is for; a codec that suits one use may ruin another."""

    ACTIVATION = auto()
    """Sent forward from stage to stage."""
    GRADIENT = auto()
    """Sent backward from stage to stage."""
    AVERAGING = auto()
    """Gradient sums between the members of a stage."""
    STATE = auto()
    """Weights and optimizer state, which must be bit for bit the same on all replicas."""


LOSSLESS = TensorUse.ACTIVATION | TensorUse.GRADIENT | TensorUse.AVERAGING | TensorUse.STATE
LOSSY = TensorUse.ACTIVATION | TensorUse.GRADIENT | TensorUse.AVERAGING


@dataclass(frozen=True, slots=True)
class Decoder:
    """The memory for the encoded bytes of one tensor that is to come."""

    buffer: memoryview
    """The memory to fill, in any order."""
    finish: Callable[[], Tensor]
    """Decodes the tensor once the buffer is full; raises BadMessage for wrong bytes."""


def expect_bytes(codec: str, told: int, right: int) -> None:
    """Raise BadMessage unless the announced size is the one that the codec makes."""
    if told != right:
        raise BadMessage(f"{told} bytes announced, {codec} makes {right} of it")


def bytes_of(tensor: Tensor) -> memoryview:
    """A contiguous CPU tensor's memory as bytes, without a copy."""
    flat = tensor.detach().as_strided((tensor.numel(),), (1,))  # 0 or 1 values have any stride
    return flat.view(torch.uint8).numpy().data


def is_line(x: Tensor) -> bool:
    """Return whether compiled loops may read and write a tensor's own memory."""
    floats = x.dtype == torch.float32 and x.is_contiguous()
    return floats and not x.data_ptr() % x.element_size()
