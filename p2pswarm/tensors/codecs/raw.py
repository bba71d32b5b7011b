"""The tensor's own bytes: the sender sends from the tensor, the receiver receives into one.

Nothing is copied on either side, so the sender must not write to the tensor
until the transfer is over.
"""

import torch
from torch import Tensor

from p2pswarm.tensors.codecs.base import (
    EVERY,
    LOSSLESS,
    TORCH,
    Codec,
    Room,
    bytes_of,
    expect_bytes,
)
from p2pswarm.tensors.codecs.device import host_memory, on_host
from p2pswarm.tensors.meta import Layout


class Raw(Codec):
    """Every dtype, exact."""

    name = "raw"
    code = 1
    uses = LOSSLESS
    dtypes = EVERY
    heavy = False

    def check(self, layout: Layout, encoded_bytes: int) -> None:
        """The size in memory, no other."""
        expect_bytes(self.name, encoded_bytes, layout.raw_bytes)

    def memory_bytes(self, layout: Layout, encoded_bytes: int) -> int:
        """The tensor alone."""
        assert encoded_bytes == layout.raw_bytes
        return layout.raw_bytes

    def encode(self, tensor: Tensor) -> memoryview:
        """The tensor's own memory if it is contiguous and on the CPU."""
        return bytes_of(on_host(tensor))

    def room(self, layout: Layout, encoded_bytes: int, device: torch.device) -> Room:
        """The tensor itself, or its copy in pinned memory."""
        assert encoded_bytes == layout.raw_bytes
        tensor = host_memory(layout.shape, TORCH[layout.dtype], device)
        return Room(bytes_of(tensor), lambda: tensor.to(device))
