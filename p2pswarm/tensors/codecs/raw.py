"""The tensor's own bytes: the sender sends from the tensor, the receiver receives into one.

Nothing is copied on either side, so the sender must not write to the tensor
until the transfer is over.
"""

from torch import Tensor

from p2pswarm.tensors.codecs.base import EVERY, LOSSLESS, TORCH, Decoder, bytes_of, expect_bytes
from p2pswarm.tensors.codecs.codec import Codec
from p2pswarm.tensors.codecs.memory import Memory
from p2pswarm.tensors.meta import TensorLayout


class Raw(Codec):
    """Every dtype, exact."""

    name = "raw"
    code = 1
    uses = LOSSLESS
    dtypes = EVERY
    heavy = False

    def check(self, layout: TensorLayout, encoded_bytes: int) -> None:
        """The size in memory, no other."""
        expect_bytes(self.name, encoded_bytes, layout.raw_bytes)

    def memory_bytes(self, layout: TensorLayout, encoded_bytes: int) -> int:
        """The tensor alone."""
        assert encoded_bytes == layout.raw_bytes
        return layout.raw_bytes

    def encode(self, tensor: Tensor, memory: Memory) -> memoryview:
        """The tensor's own memory if it is contiguous and on the CPU."""
        return bytes_of(memory.on_host(tensor))

    def decoder(self, layout: TensorLayout, encoded_bytes: int, memory: Memory) -> Decoder:
        """The tensor itself, or its copy in pinned memory."""
        assert encoded_bytes == layout.raw_bytes
        tensor = memory.host(layout.shape, TORCH[layout.dtype])
        return Decoder(bytes_of(tensor), lambda: tensor.to(memory.device))
