"""DeviceStreams: codecs work beside what is computed, on streams of their own."""

from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TypeVar

import torch
from torch import Tensor

from p2pswarm.tensors.codecs.host_memory import LockedMemory

STREAMS_IDLE_MAX = 32  # as many as threads that asyncio has for such work, and torch streams

T = TypeVar("T")


class SideStream:
    """One stream of a device. Here it is the only one: each call is over when it returns."""

    def current(self) -> AbstractContextManager[object]:
        """While in the block, this thread launches and allocates on the stream."""
        return nullcontext()

    def wait(self) -> None:
        """Return when all that was launched on it is done."""


class StreamDevice:
    """A CPU, or a device of which we use one stream; `CudaDevice` has more."""

    def __init__(self, *, apart: bool = False) -> None:
        """`apart`: its memory is apart from the host's."""
        self.apart = apart
        self._stream = SideStream()

    def new_stream(self) -> SideStream:
        """A stream that is not ordered with any other, if there are several."""
        return self._stream

    def holds(self, tensor: Tensor) -> bool:
        """Return whether a tensor lies in the memory of a device, and not of the host."""
        return tensor.device.type != "cpu"

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
        """An uninitialised tensor on a device, in memory of this thread's current stream."""
        return torch.empty(shape, dtype=dtype, device=device)

    def used_by_computing(self, tensor: Tensor) -> None:
        """Keep its memory, once freed, from others until computing's stream is past that point."""


class DeviceStreams:
    """Where codecs work for one device; several threads may use it at once.

    A GPU does what is on one stream in order, so a codec on the stream of computing would wait for
    all that was launched there. Here each call of a codec has a stream that no other call uses
    meanwhile, and waits for it at its end, in its own thread. Everything is as it would be on one
    stream if four laws hold; docs/device_streams.md argues them:

    1. What a codec reads is complete: a compute call waits at its end, and so does a codec.
    2. Who calls a codec holds what it reads until the call is over.
    3. What a codec writes on the device was allocated aside, in the same call.
    4. What a codec made for computing is marked as used by computing's stream, so that its memory
       is not given to another call while a kernel that reads it is still to run.

    Everything that differs between devices is a `StreamDevice`; for a CPU nothing is done at all.
    """

    def __init__(self, device: StreamDevice, locked: LockedMemory | None = None) -> None:
        """`locked`: host memory to copy through; None if pageable memory is as good."""
        self.device = device
        self.locked = locked
        # The one that was used last is the next to be used: torch keeps memory for each stream.
        # A deque's append and pop are atomic between threads: no lock is needed.
        self._idle: deque[SideStream] = deque(maxlen=STREAMS_IDLE_MAX)

    def aside(self, work: Callable[[], T]) -> T:
        """Do work of codecs, not behind what is computed; all of it is done when this returns."""
        try:
            stream = self._idle.pop()
        except IndexError:
            stream = self.device.new_stream()
        try:
            with stream.current():
                try:
                    return work()
                finally:  # an error, too, leaves nothing that still reads
                    stream.wait()
        finally:
            self._idle.append(stream)

    def decoded(self, finish: Callable[[], Tensor]) -> Tensor:
        """Return what `finish` decodes, for a compute call."""

        def marked() -> Tensor:
            tensor = finish()
            if self.device.holds(tensor):
                self.device.used_by_computing(tensor)
            return tensor

        return self.aside(marked)


PLAIN = DeviceStreams(StreamDevice())
APART = DeviceStreams(StreamDevice(apart=True))
