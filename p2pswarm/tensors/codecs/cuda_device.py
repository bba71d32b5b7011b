"""CudaDevice: torch's CUDA streams and its page-locked memory, each call in one line.

Source:  torch.cuda.Stream, Tensor.record_stream, "CUDA semantics" in torch's documentation.
"""

import functools
from contextlib import AbstractContextManager

import torch
from torch import Tensor

from p2pswarm.tensors.codecs.device_streams import (
    APART,
    PLAIN,
    DeviceStreams,
    SideStream,
    StreamDevice,
)
from p2pswarm.tensors.codecs.host_memory import LockedMemory


class CudaStream(SideStream):
    """A stream of torch, which does not wait for the default stream."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def current(self) -> AbstractContextManager[object]:
        """See `SideStream`; the thread's device stays set, as going back to another GPU uses it."""
        torch.cuda.set_device(self._device)
        return torch.cuda.stream(self._stream)

    def wait(self) -> None:
        """See `SideStream`."""
        self._stream.synchronize()


class CudaDevice(StreamDevice):
    """A GPU of CUDA. Compute threads never leave torch's default stream.

    Nothing is decided here, and no test on a CPU reaches it: tests/gpu does.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__(apart=True)
        self._device = device

    def new_stream(self) -> SideStream:
        """See `StreamDevice`."""
        return CudaStream(self._device)

    def used_by_computing(self, tensor: Tensor) -> None:
        """See `StreamDevice`."""
        tensor.record_stream(torch.cuda.default_stream(tensor.device))


@functools.cache
def _cuda_streams(device: torch.device) -> DeviceStreams:
    """One for each device of the process: what is locked is never given back."""
    lock = functools.partial(torch.empty, dtype=torch.uint8, pin_memory=True)
    return DeviceStreams(CudaDevice(device), LockedMemory(lock))


def streams_of(device: torch.device) -> DeviceStreams:
    """Return where codecs work for tensors on `device`."""
    if device.type == "cuda":
        index = torch.cuda.current_device() if device.index is None else device.index
        return _cuda_streams(torch.device("cuda", index))
    return PLAIN if device.type == "cpu" else APART


def wait_for(device: torch.device) -> None:
    """Return when the device has done what this thread launched; a CPU always has."""
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()
    elif device.type != "cpu":  # Metal's stream cannot be waited for by itself
        torch.accelerator.synchronize(device)
