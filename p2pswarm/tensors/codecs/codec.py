"""Codec: the interface of one way to encode a tensor as bytes, and the uses that it suits.

Errors:  Unencodable, a ValueError, for values that do not fit; BadMessage for a peer's wrong
         bytes.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from p2pswarm.tensors.codecs.base import Decoder, Tensor, TensorUse
from p2pswarm.tensors.codecs.meta import Dtype, TensorLayout
from p2pswarm.tensors.codecs.tensor_pool import TensorPool


class Codec(ABC):
    """One way to write a tensor as bytes."""

    name: str
    code: int
    """The codec's number on the wire, 1..255; it never changes."""
    uses: TensorUse
    dtypes: frozenset[Dtype]
    heavy: bool
    """True if encoding and decoding are worth a thread; raw only points at memory."""

    @abstractmethod
    def check(self, layout: TensorLayout, encoded_bytes: int) -> None:
        """Raise BadMessage unless this codec could make `encoded_bytes` of such a tensor."""

    def memory_bytes(self, layout: TensorLayout, encoded_bytes: int) -> int:
        """The most memory that a receiver needs at once; most codecs need both."""
        return encoded_bytes + layout.raw_bytes

    @abstractmethod
    def encode(self, tensor: Tensor, pool: TensorPool) -> memoryview:
        """Encode a tensor of one of `dtypes`; Unencodable if it holds values that do not fit."""

    @abstractmethod
    def decoder(self, layout: TensorLayout, encoded_bytes: int, pool: TensorPool) -> Decoder:
        """Allocate memory to receive into; the tensor will be on the pool's device."""


class StatefulCodec(Codec):
    """A codec that carries something from one tensor to the next on the same edge.

    Encoding is a pure function: it takes what is carried and returns what to carry next.
    `edge.py` stores it and decides what counts.
    """

    @abstractmethod
    def encode_after(
        self, tensor: Tensor, carried: Sequence[Tensor], pool: TensorPool
    ) -> tuple[memoryview, Tensor]:
        """The bytes of a tensor and what to carry to the next; `carried` is from tensors before."""
