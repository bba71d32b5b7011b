"""What every codec needs: uses, dtypes, and torch memory seen as bytes.

Bytes and tensors share memory wherever they can: a contiguous CPU tensor is sent
from where it lies, and a received one is filled where it will stay.

Units:   bytes; little-endian on the wire, as every machine torch runs on.
Errors:  ValueError when we are asked for what cannot be encoded; BadMessage for a peer's bytes.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Flag, auto

import torch

from p2pswarm.errors import BadMessage
from p2pswarm.tensors.meta import Dtype

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
    """The tensor holds values that the codec has no bytes for: NaN in int8, 1e6 in fp16."""


class Use(Flag):
    """What a tensor is for; a codec that is fine for one may ruin another."""

    ACTIVATION = auto()
    """Forward, from stage to stage."""
    GRADIENT = auto()
    """Backward, from stage to stage."""
    AVERAGING = auto()
    """Gradient sums among the members of a stage."""
    STATE = auto()
    """Weights and optimizer state, which replicas hold bit for bit."""


LOSSLESS = Use.ACTIVATION | Use.GRADIENT | Use.AVERAGING | Use.STATE
LOSSY = Use.ACTIVATION | Use.GRADIENT | Use.AVERAGING


@dataclass(frozen=True, slots=True)
class Decoder:
    """Memory for the encoded bytes of one tensor that is on its way in."""

    buffer: memoryview
    """To be filled, in any order."""
    finish: Callable[[], Tensor]
    """Makes the tensor once the buffer is full; BadMessage if the bytes are not of the codec."""


def expect_bytes(codec: str, told: int, right: int) -> None:
    """Hold a peer to a codec whose output size follows from the tensor's."""
    if told != right:
        raise BadMessage(f"{told} bytes announced, {codec} makes {right} of it")


def bytes_of(tensor: Tensor) -> memoryview:
    """A contiguous CPU tensor's memory as bytes, without a copy."""
    flat = tensor.detach().as_strided((tensor.numel(),), (1,))  # 0 or 1 values have any stride
    return flat.view(torch.uint8).numpy().data
