"""Cast, a codec that rounds values to a 16-bit float and widens them on arrival.

Errors:  Unencodable for such a value; BadMessage for a peer's wrong size.
"""

import torch
from torch import Tensor

from p2pswarm.tensors.codecs.base import (
    LOSSY,
    TORCH,
    WIDE,
    Decoder,
    Unencodable,
    bytes_of,
    expect_bytes,
)
from p2pswarm.tensors.codecs.codec import Codec, CodecKind
from p2pswarm.tensors.codecs.meta import VALUE_BYTES, Dtype, TensorLayout
from p2pswarm.tensors.codecs.tensor_pool import TensorPool


class Cast(Codec):
    """float32 or float64, sent as the dtype `carried` and widened again.

    fp16 keeps 11 bits of a value up to 65504; bf16 keeps 8 bits of any float32. NaN and infinities
    stay as they are. A finite value that the narrow type cannot hold is refused, because it would
    arrive as an infinity.
    """

    kind = CodecKind.PLAIN
    uses = LOSSY
    dtypes = WIDE
    heavy = True

    def __init__(self, name: str, code: int, carried: Dtype) -> None:
        self.name = name
        self.code = code
        self._carried = TORCH[carried]
        self._value_bytes = VALUE_BYTES[carried]
        self.greatest = torch.finfo(self._carried).max

    def check(self, layout: TensorLayout, encoded_bytes: int) -> None:
        """Raise BadMessage unless there is one 16-bit value for each value."""
        expect_bytes(self.name, encoded_bytes, layout.values * self._value_bytes)

    def encode(self, tensor: Tensor, pool: TensorPool) -> memoryview:
        """Round to nearest, ties to even."""
        if tensor.numel():
            self._refuse_overflow(tensor)
        carried = pool.beside(tensor, tuple(tensor.shape), self._carried)
        return bytes_of(pool.on_host(carried.copy_(tensor.detach())))

    def decoder(self, layout: TensorLayout, encoded_bytes: int, pool: TensorPool) -> Decoder:
        """Memory for the narrow values, which `finish` widens on the device."""
        assert encoded_bytes == layout.values * self._value_bytes
        carried = pool.way(layout.shape, self._carried)

        def finish() -> Tensor:
            values = pool.home(layout.shape, TORCH[layout.dtype])
            return values.copy_(pool.on_device(carried))

        return Decoder(bytes_of(carried), finish)

    def _refuse_overflow(self, tensor: Tensor) -> None:
        lowest, highest = torch.aminmax(tensor.detach())
        if lowest >= -self.greatest and highest <= self.greatest:
            return
        # There are NaN, infinities or an overflow: find out which, in a slower way.
        finite = tensor.detach()[tensor.isfinite()]
        if finite.numel() and finite.abs().amax() > self.greatest:
            raise Unencodable(
                f"{self.name} holds values up to {self.greatest:g}, not {finite.abs().amax():g}: "
                "send them raw"
            )
