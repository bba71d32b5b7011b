"""TensorPool: uninitialised tensors whose memory is used again, because new pages are expensive.

The kernel clears each page at its first use: 27 ms for 64 MiB, as long as their
decryption takes. So memory that no tensor refers to any more is kept for the next
tensor of about the same size. No call gives memory back: a slab is free when the last
tensor, view or memoryview of it is gone.

Tensors on a GPU pass through pinned host memory, once each way. torch caches that
memory itself.

Units:   bytes; the sizes of slabs are powers of two, and unused pages are never touched.
Errors:  none.
"""

import weakref
from collections import deque

import torch

from p2pswarm.tensors.codecs.base import CPU, Device, Tensor

SLAB_BYTES_MIN = 1 << 18  # malloc serves smaller sizes from pages that it has
SLAB_BYTES_MAX = 1 << 28  # the default budget of a peer
KEEP_BYTES = 1 << 27  # idle slabs of one size: two tensors of 64 MiB


class TensorPool:
    """Makes uninitialised tensors; several threads may use it at once."""

    def __init__(self, device: Device = CPU, keep_bytes: int = KEEP_BYTES) -> None:
        """`device`: for received tensors; `keep_bytes`: the most idle bytes of each slab size."""
        self.device = device
        self._idle: dict[int, deque[Tensor]] = {}
        size_bytes = SLAB_BYTES_MIN
        while size_bytes <= SLAB_BYTES_MAX:
            # A deque's append and pop are atomic between threads: no lock is needed.
            self._idle[size_bytes] = deque(maxlen=keep_bytes // size_bytes)
            size_bytes *= 2

    def host(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """A CPU tensor to copy from or to `device`."""
        if self.device.type == "cpu":
            return self._reused(shape, dtype)
        return _pinned(shape, dtype, self.device)

    def home(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """A tensor on the device for received tensors."""
        return self.on(self.device, shape, dtype)

    def on(self, device: Device, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """A tensor on any device."""
        if device.type == "cpu":
            return self._reused(shape, dtype)
        return torch.empty(shape, dtype=dtype, device=device)

    def on_host(self, tensor: Tensor) -> Tensor:
        """The tensor, contiguous and on the CPU; no copy is made if it is so already."""
        tensor = tensor.detach().contiguous()
        if tensor.device.type == "cpu":
            return tensor
        host = _pinned(tuple(tensor.shape), tensor.dtype, tensor.device)
        return host.copy_(tensor)  # blocks until the bytes are here

    def _reused(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        need_bytes = torch.Size(shape).numel() * dtype.itemsize
        slab_bytes = 1 << (need_bytes - 1).bit_length()
        idle = self._idle.get(slab_bytes)
        if idle is None:
            return torch.empty(shape, dtype=dtype)
        try:
            slab = idle.pop()
        except IndexError:
            slab = torch.empty(slab_bytes, dtype=torch.uint8)
        lease = slab.numpy()  # freed with the last tensor that is made of it
        weakref.finalize(lease, idle.append, slab).atexit = False
        return torch.from_numpy(lease)[:need_bytes].view(dtype).reshape(shape)


def _pinned(shape: tuple[int, ...], dtype: torch.dtype, device: Device) -> Tensor:
    """A CPU tensor that a GPU copies from and to at full speed."""
    return torch.empty(shape, dtype=dtype, pin_memory=device.type == "cuda")


FRESH = TensorPool(keep_bytes=0)
