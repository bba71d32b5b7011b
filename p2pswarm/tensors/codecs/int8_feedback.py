"""Eight bits a value with error feedback: what rounding took from a gradient goes with the next.

The bytes are those of int8, so the receiver needs no state. The sender adds to each gradient what
it still owes its receiver, and keeps what the new rounding takes off. Over many microbatches the
receiver's sum is off by no more than what is owed at the end, which does not grow with their
number; the sum of plain int8 drifts.

Source:  Seide et al., "1-bit stochastic gradient descent" (2014), for error feedback; between
         pipeline stages from microbatch to microbatch: Optimus-CC, arXiv 2301.09830.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from p2pswarm.tensors.codecs.base import FLOATS, Decoder, Use, bytes_of
from p2pswarm.tensors.codecs.codec import StatefulCodec
from p2pswarm.tensors.codecs.int8 import Int8, quantised, restored
from p2pswarm.tensors.codecs.memory import Memory
from p2pswarm.tensors.meta import TensorLayout


class Int8ErrorFeedback(StatefulCodec):
    """Floats of any width, as gradients between stages."""

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
        """The same as of int8."""
        return self._int8.memory_bytes(layout, encoded_bytes)

    def encode_after(
        self, tensor: Tensor, carried: Sequence[Tensor], memory: Memory
    ) -> tuple[memoryview, Tensor]:
        """The bytes of the tensor and all that is carried; the error of rounding is left."""
        owed = tensor.detach().to(torch.promote_types(tensor.dtype, torch.float32), copy=True)
        for each in carried:
            owed.add_(each)
        encoded = quantised(owed, memory)
        told = torch.empty_like(tensor, memory_format=torch.contiguous_format)
        return bytes_of(memory.on_host(encoded)), owed.sub_(restored(encoded, told))

    def decoder(self, layout: TensorLayout, encoded_bytes: int, memory: Memory) -> Decoder:
        """Decode as int8 does."""
        return self._int8.decoder(layout, encoded_bytes, memory)
