"""Int8ErrorFeedback, a codec like int8 that adds a gradient's rounding error to the next one.

The bytes are those of int8, so the receiver needs no state. The sender adds the rounding errors
that it carries to each gradient, and carries the error of the new rounding. So the receiver's sum
over many microbatches differs from the exact sum only by the last error, which does not grow with
their number. The error of a sum with plain int8 grows.

Errors:  as int8.

Source:  Seide et al., "1-bit stochastic gradient descent" (2014), for error feedback; between
         pipeline stages from microbatch to microbatch: Optimus-CC, arXiv 2301.09830.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from p2pswarm.tensors.codecs.base import FLOATS, Decoder, Use, bytes_of
from p2pswarm.tensors.codecs.codec import StatefulCodec
from p2pswarm.tensors.codecs.int8 import Int8, quantised, restored
from p2pswarm.tensors.codecs.meta import TensorLayout
from p2pswarm.tensors.codecs.tensor_pool import TensorPool


class Int8ErrorFeedback(StatefulCodec):
    """The codec int8-ef: gradients between stages, of floats of any width."""

    name = "int8-ef"
    code = 6
    uses = Use.GRADIENT
    dtypes = FLOATS
    heavy = True

    def __init__(self) -> None:
        self._int8 = Int8()

    def check(self, layout: TensorLayout, encoded_bytes: int) -> None:
        """Check as int8 does."""
        self._int8.check(layout, encoded_bytes)

    def memory_bytes(self, layout: TensorLayout, encoded_bytes: int) -> int:
        """The same as for int8."""
        return self._int8.memory_bytes(layout, encoded_bytes)

    def encode_after(
        self, tensor: Tensor, carried: Sequence[Tensor], pool: TensorPool
    ) -> tuple[memoryview, Tensor]:
        """The bytes of the tensor plus all that is carried, and the error of rounding."""
        owed = tensor.detach().to(torch.promote_types(tensor.dtype, torch.float32), copy=True)
        for each in carried:
            owed.add_(each)
        encoded = quantised(owed, pool)
        received = torch.empty_like(tensor, memory_format=torch.contiguous_format)
        return bytes_of(pool.on_host(encoded)), owed.sub_(restored(encoded, received))

    def decoder(self, layout: TensorLayout, encoded_bytes: int, pool: TensorPool) -> Decoder:
        """Decode as int8 does."""
        return self._int8.decoder(layout, encoded_bytes, pool)
