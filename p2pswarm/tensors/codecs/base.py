"""What a codec is, and how torch memory is seen as bytes.

Bytes and tensors share memory wherever they can: a contiguous CPU tensor is sent
from where it lies, and a received one is filled where it will stay.

Units:   bytes; little-endian on the wire, as every machine torch runs on.
Errors:  ValueError when we are asked for what cannot be encoded; BadMessage for a peer's bytes.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from enum import Flag, auto

import torch

from p2pswarm.errors import BadMessage
from p2pswarm.tensors.meta import Dtype, Layout

Device = torch.device
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
class Room:
    """Memory for the encoded bytes of one tensor that is on its way in."""

    buffer: memoryview
    """To be filled, in any order."""
    finish: Callable[[], Tensor]
    """Makes the tensor once the buffer is full; BadMessage if the bytes are not of the codec."""


class Codec(ABC):
    """One way to write a tensor as bytes."""

    name: str
    code: int
    """On the wire, for ever; 1..255."""
    uses: Use
    dtypes: frozenset[Dtype]
    heavy: bool
    """Whether encoding and decoding are worth a thread; raw only points at memory."""

    @abstractmethod
    def check(self, layout: Layout, encoded_bytes: int) -> None:
        """Raise BadMessage unless this codec could make so many bytes of such a tensor."""

    @abstractmethod
    def memory_bytes(self, layout: Layout, encoded_bytes: int) -> int:
        """The most that a receiver holds for it at once."""

    @abstractmethod
    def encode(self, tensor: Tensor) -> memoryview:
        """The bytes of a tensor of one of `dtypes`; ValueError if it holds what cannot be told."""

    @abstractmethod
    def room(self, layout: Layout, encoded_bytes: int, device: torch.device) -> Room:
        """Memory to receive into; the tensor will be on `device`."""


def expect_bytes(codec: str, told: int, right: int) -> None:
    """Hold a peer to a codec whose output size follows from the tensor's."""
    if told != right:
        raise BadMessage(f"{told} bytes announced, {codec} makes {right} of it")


def bytes_of(tensor: Tensor) -> memoryview:
    """A contiguous CPU tensor's memory as bytes, without a copy."""
    flat = tensor.detach().as_strided((tensor.numel(),), (1,))  # 0 or 1 values have any stride
    return flat.view(torch.uint8).numpy().data
