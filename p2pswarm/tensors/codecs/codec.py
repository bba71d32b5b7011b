"""What a codec is: one way to write a tensor as bytes, and to say for what it is fit.

Units:   bytes.
Errors:  Unencodable, a ValueError, for values that cannot be told; BadMessage for a peer's bytes.
"""

from abc import ABC, abstractmethod

from p2pswarm.tensors.codecs.base import Decoder, Tensor, Use
from p2pswarm.tensors.codecs.memory import Memory
from p2pswarm.tensors.meta import Dtype, TensorLayout


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
    def check(self, layout: TensorLayout, encoded_bytes: int) -> None:
        """Raise BadMessage unless this codec could make so many bytes of such a tensor."""

    @abstractmethod
    def memory_bytes(self, layout: TensorLayout, encoded_bytes: int) -> int:
        """The most that a receiver holds for it at once."""

    @abstractmethod
    def encode(self, tensor: Tensor, memory: Memory) -> memoryview:
        """The bytes of a tensor of one of `dtypes`; Unencodable if values cannot be told."""

    @abstractmethod
    def decoder(self, layout: TensorLayout, encoded_bytes: int, memory: Memory) -> Decoder:
        """Memory to receive into; the tensor will be on the memory's device."""
