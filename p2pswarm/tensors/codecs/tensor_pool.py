"""TensorPool: uninitialised tensors whose memory is used again, because new pages are expensive.

Units:   bytes; the sizes of slabs are powers of two, and unused pages are never touched.
"""

import functools
from functools import partial

import torch

from p2pswarm.tensors.codecs.base import CPU, Device, Tensor
from p2pswarm.tensors.codecs.cuda_device import streams_of
from p2pswarm.tensors.codecs.device_streams import DeviceStreams
from p2pswarm.tensors.codecs.host_memory import Slabs

KEEP_BYTES = 1 << 27  # idle slabs of one size: two tensors of 64 MiB


class TensorPool:
    """Makes uninitialised tensors; several threads may use it at once.

    The kernel clears each page at its first use: 27 ms for 64 MiB, as long as their decryption
    takes. So memory that no tensor refers to any more is kept for the next tensor of about the
    same size. No call gives memory back: it is free when the last tensor, view or memoryview of it
    is gone.

    Tensors on a GPU pass through page-locked host memory, once each way. What they take on the GPU
    is allocated where a codec works (`device_streams.py`), and torch keeps it.
    """

    def __init__(
        self,
        device: Device = CPU,
        keep_bytes: int = KEEP_BYTES,
        streams: DeviceStreams | None = None,
    ) -> None:
        """`device`: for received tensors; `keep_bytes`: the most idle bytes of each slab size.

        `streams`: where codecs work, if not as the device says.
        """
        self.device = device
        self.streams = streams or streams_of(device)
        self._slabs = Slabs(partial(torch.empty, dtype=torch.uint8), keep_bytes)

    @property
    def apart(self) -> bool:
        """Return whether tensors on `device` have to be copied to the host and back."""
        return self.streams.device.apart

    def host(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """A CPU tensor; pageable if it is not to copy from or to `device`."""
        return _of(self._slabs.lease(_bytes(shape, dtype)), shape, dtype)

    def way(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """A CPU tensor to copy from or to `device`, page-locked if it can be."""
        locked = self.streams.locked
        lease = None if locked is None else locked.lease(_bytes(shape, dtype))
        return self.host(shape, dtype) if lease is None else _of(lease, shape, dtype)

    def home(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """A tensor on the device for received tensors."""
        if self.apart:
            return self.streams.device.empty(shape, dtype, self.device)
        return self.host(shape, dtype)

    def beside(self, tensor: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """A tensor where another one is."""
        if self.streams.device.holds(tensor):
            return self.streams.device.empty(shape, dtype, tensor.device)
        return self.host(shape, dtype)

    def on_host(self, tensor: Tensor) -> Tensor:
        """The tensor, contiguous and on the CPU; no copy is made if it is so already."""
        tensor = tensor.detach().contiguous()
        if not self.streams.device.holds(tensor):
            return tensor
        host = self.way(tuple(tensor.shape), tensor.dtype)
        return host.copy_(tensor)  # blocks until the bytes are here

    def on_device(self, tensor: Tensor) -> Tensor:
        """A CPU tensor on the device for received tensors; no copy is made if that is the CPU."""
        if not self.apart:
            return tensor
        return self.home(tuple(tensor.shape), tensor.dtype).copy_(tensor)  # blocks as well


def _bytes(shape: tuple[int, ...], dtype: torch.dtype) -> int:
    return torch.Size(shape).numel() * dtype.itemsize


def _of(lease: Tensor | None, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    if lease is None:
        return torch.empty(shape, dtype=dtype)
    return lease.view(dtype).reshape(shape)


FRESH = TensorPool(keep_bytes=0)


def on_host(tensor: Tensor) -> Tensor:
    """Return the tensor contiguous and on the host; a GPU's bytes pass through page-locked memory.

    Of a CPU's tensor no copy is made. Page-locked memory is scarce: who keeps the result clones it.
    """
    return passing(tensor.device).on_host(tensor)


@functools.cache
def passing(device: Device) -> TensorPool:
    """Return a pool of a device that keeps nothing: what is page-locked is the device's."""
    return TensorPool(device, keep_bytes=0)
