"""Raw, the codec that sends a tensor's own bytes and receives them into a tensor.

Neither side copies a contiguous CPU tensor, so the sender must not write to it until
the transfer is over.

Errors:  BadMessage for a peer's wrong size.
"""

from torch import Tensor

from p2pswarm.tensors.codecs.base import (
    EVERY,
    FLOATS,
    LOSSLESS,
    TORCH,
    Decoder,
    bytes_of,
    expect_bytes,
)
from p2pswarm.tensors.codecs.codec import Codec
from p2pswarm.tensors.codecs.meta import TensorLayout
from p2pswarm.tensors.codecs.tensor_pool import TensorPool


class Raw(Codec):
    """The codec raw: every dtype, exact."""

    name = "raw"
    code = 1
    uses = LOSSLESS
    dtypes = EVERY
    heavy = False

    def check(self, layout: TensorLayout, encoded_bytes: int) -> None:
        """Raise BadMessage unless `encoded_bytes` is the tensor's size in memory."""
        expect_bytes(self.name, encoded_bytes, layout.raw_bytes)

    def memory_bytes(self, layout: TensorLayout, encoded_bytes: int) -> int:
        """The tensor alone."""
        assert encoded_bytes == layout.raw_bytes
        return layout.raw_bytes

    def encode(self, tensor: Tensor, pool: TensorPool) -> memoryview:
        """The tensor's own memory if it is contiguous and on the CPU, else a copy."""
        return bytes_of(pool.on_host(tensor))

    def decoder(self, layout: TensorLayout, encoded_bytes: int, pool: TensorPool) -> Decoder:
        """The memory of the tensor itself, or page-locked memory for a GPU.

        Whole numbers stay on the host: tokens are checked there, and sent on.
        """
        assert encoded_bytes == layout.raw_bytes
        if layout.dtype not in FLOATS:
            whole = pool.host(layout.shape, TORCH[layout.dtype])
            return Decoder(bytes_of(whole), lambda: whole)
        tensor = pool.way(layout.shape, TORCH[layout.dtype])
        return Decoder(bytes_of(tensor), lambda: pool.on_device(tensor))
