"""Codec: the interface of one way to encode a tensor as bytes, and the uses that it suits.

Errors:  Unencodable, a ValueError, for values that do not fit; BadMessage for a peer's wrong
         bytes.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from enum import Enum, auto

from p2pswarm.base.errors import BadMessage
from p2pswarm.tensors.codecs.base import Decoder, Tensor, TensorUse
from p2pswarm.tensors.codecs.meta import Dtype, TensorLayout
from p2pswarm.tensors.codecs.tensor_pool import TensorPool

FLOAT32_MAX = (2.0 - 2.0**-23) * 2.0**127


class CodecKind(Enum):
    """What the values that arrive depend on, besides the tensor (docs/codecs.md)."""

    EXACT = auto()
    """Nothing: every bit arrives, so any peer may choose it for any link."""
    PLAIN = auto()
    """Nothing: it rounds without chance."""
    KEYED = auto()
    """A key: it rounds by a chance that both ends, a replay and a plain loop draw alike."""
    LINKED = auto()
    """What crossed the same link before: no plain loop can compute the weights of such a run."""


class Codec(ABC):
    """One way to write a tensor as bytes."""

    name: str
    code: int
    """The codec's number on the wire, 1..255; it never changes."""
    kind: CodecKind
    uses: TensorUse
    dtypes: frozenset[Dtype]
    greatest: float = FLOAT32_MAX
    """The largest magnitude that a value may have which stands alone in its tensor."""
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


class KeyedCodec(Codec):
    """A codec that rounds by a chance drawn from a key (`edge_codecs.py`), which is not sent."""

    kind = CodecKind.KEYED

    def encode(self, tensor: Tensor, pool: TensorPool) -> memoryview:
        """See `encode_keyed`: there is no encoding without a key."""
        del tensor, pool
        raise ValueError("a codec that rounds by chance needs a key: encode with one")

    def decoder(self, layout: TensorLayout, encoded_bytes: int, pool: TensorPool) -> Decoder:
        """See `keyed_decoder`: there is no decoding without a key."""
        del layout, encoded_bytes, pool
        raise BadMessage("a codec that rounds by chance came where no key is known")

    @abstractmethod
    def encode_keyed(self, tensor: Tensor, key: bytes, pool: TensorPool) -> memoryview:
        """Encode a tensor: the same bytes for the same values and key, on every device."""

    @abstractmethod
    def keyed_decoder(
        self, layout: TensorLayout, encoded_bytes: int, key: bytes, pool: TensorPool
    ) -> Decoder:
        """Allocate memory to receive into; `finish` raises BadMessage for bytes of another key."""


class StatefulCodec(Codec):
    """A codec that carries something from one tensor to the next on the same edge.

    Encoding is a pure function: it takes what is carried and returns what to carry next.
    `edge_state.py` stores it and decides what counts.
    """

    kind = CodecKind.LINKED

    @abstractmethod
    def encode_after(
        self, tensor: Tensor, carried: Sequence[Tensor], pool: TensorPool
    ) -> tuple[memoryview, Tensor]:
        """The bytes of a tensor and what to carry to the next; `carried` is from tensors before."""
