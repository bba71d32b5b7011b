"""Memory for tensors that come and go: used again, because new pages are expensive.

The kernel clears each page at its first touch: 27 ms for 64 MiB, as long as their
decryption takes. So memory that no tensor refers to any more is kept for the next
tensor of about its size. Nobody gives memory back by hand: a slab is free when
the last tensor, view or memoryview on it is gone.

Tensors on a GPU pass through pinned host memory, once each way. torch keeps its own
store of that.

Units:   bytes; slabs are powers of two, of which only what is used is ever touched.
Errors:  none.
"""

import weakref
from collections import deque

import torch

from p2pswarm.tensors.codecs.base import CPU, Device, Tensor

SLAB_BYTES_MIN = 1 << 18  # malloc serves less from pages it has
SLAB_BYTES_MAX = 1 << 28  # a peer's whole budget
KEEP_BYTES = 1 << 27  # idle slabs of one size: two tensors of 64 MiB, one coming and one in use


class Memory:
    """A maker of uninitialised tensors; threads may share it."""

    def __init__(self, device: Device = CPU, keep_bytes: int = KEEP_BYTES) -> None:
        """`device`: where received tensors are wanted; `keep_bytes`: idle, of each size."""
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
        """A tensor where received ones are wanted."""
        return self.on(self.device, shape, dtype)

    def on(self, device: Device, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """A tensor on any device."""
        if device.type == "cpu":
            return self._reused(shape, dtype)
        return torch.empty(shape, dtype=dtype, device=device)

    def on_host(self, tensor: Tensor) -> Tensor:
        """The tensor, contiguous, on the CPU: itself if it is so already."""
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
        lease = slab.numpy()  # dies with the last tensor that is made of it
        weakref.finalize(lease, idle.append, slab).atexit = False
        return torch.from_numpy(lease)[:need_bytes].view(dtype).reshape(shape)


def _pinned(shape: tuple[int, ...], dtype: torch.dtype, device: Device) -> Tensor:
    """CPU memory that a GPU copies from and to at full speed."""
    return torch.empty(shape, dtype=dtype, pin_memory=device.type == "cuda")


FRESH = Memory(keep_bytes=0)
