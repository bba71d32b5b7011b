"""A device with streams that is a model: it says when the laws of `device_streams.py` are broken.

What torch does is done at once, by the CPU, and noted as a kernel on the stream that is current.
A kernel is over only when its stream is waited for, or when the test says so: so it may be as late
as any GPU could make it. Memory is given out as torch's allocator for CUDA does it: a freed block
goes to the next who asks on the stream where it was allocated, at once; but if other streams were
noted (`record_stream`), only after what was launched there until it was freed.

The laws: nothing is read on one stream before what another wrote is over, and nothing is written
on one stream before what another reads or writes there is over. On one stream all is in order.
"""

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from p2pswarm.tensors.codecs.device_streams import SideStream, StreamDevice

BLOCK_BYTES_MIN = 512


@dataclass(eq=False)
class ModelStream:
    """How many kernels were launched, and how many of them are over."""

    name: str
    launched: int = 0
    over: int = 0

    def finish(self, kernels: int | None = None) -> None:
        """Some kernels are over, or all."""
        left = self.launched - self.over
        self.over += left if kernels is None else min(kernels, left)


@dataclass(frozen=True)
class TensorUse:
    """A kernel that reads or writes a block."""

    stream: ModelStream
    number: int
    what: str

    def races(self, stream: ModelStream) -> bool:
        """Whether it may still run when a kernel of `stream` begins."""
        return self.stream is not stream and self.number > self.stream.over


@dataclass(eq=False)
class Block:
    """Memory of the device."""

    memory: np.ndarray
    stream: ModelStream
    written: TensorUse | None = None
    read: list[TensorUse] = field(default_factory=list)
    told: set[ModelStream] = field(default_factory=set)
    held_by: list[tuple[ModelStream, int]] = field(default_factory=list)

    def idle(self) -> bool:
        """Whether the allocator may give it out again."""
        return all(stream.over >= number for stream, number in self.held_by)


class RecordedStream(SideStream):
    def __init__(self, device: "RecordingDevice", stream: ModelStream) -> None:
        self._device = device
        self.stream = stream

    def current(self):
        return self._device.launching_on(self.stream)

    def wait(self) -> None:
        self.stream.finish()


class RecordingDevice(StreamDevice):
    def __init__(self, between: Callable[[], None] = lambda: None) -> None:
        """`between`: called before each kernel of a side stream: what other threads do there."""
        super().__init__(apart=True)
        self.computing = ModelStream("computing")
        self.between = between
        self.breaches: list[str] = []
        self._current = self.computing
        self._streams = 0
        self._live: dict[int, Block] = {}
        self._free: list[Block] = []

    def new_stream(self) -> RecordedStream:
        self._streams += 1
        return RecordedStream(self, ModelStream(f"side {self._streams}"))

    def holds(self, tensor: Tensor) -> bool:
        return self._block(tensor) is not None

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
        need_bytes = max(torch.Size(shape).numel() * dtype.itemsize, 1)
        size_bytes = max(BLOCK_BYTES_MIN, 1 << (need_bytes - 1).bit_length())
        block = self._reused(size_bytes) or Block(np.empty(size_bytes, np.uint8), self._current)
        self._live[block.memory.ctypes.data] = block
        lease = block.memory[:]
        weakref.finalize(lease, self._freed, block)
        used_bytes = torch.Size(shape).numel() * dtype.itemsize
        return torch.from_numpy(lease)[:used_bytes].view(dtype).reshape(shape)

    def used_by_computing(self, tensor: Tensor) -> None:
        block = self._block(tensor)
        assert block is not None
        block.told.add(self.computing)

    @contextmanager
    def launching_on(self, stream: ModelStream) -> Iterator[None]:
        """What torch does in the block is launched on `stream`."""
        before, self._current = self._current, stream
        try:
            with _Recording(self, stream):
                yield
        finally:
            self._current = before

    def launch(self, reads: list[Tensor], writes: list[Tensor], what: str) -> None:
        """Note a kernel, and what it may meet in memory."""
        stream = self._current
        stream.launched += 1
        use = TensorUse(stream, stream.launched, what)
        for block in filter(None, map(self._block, reads)):
            self._judge(block, use, [block.written])
            block.read.append(use)
        for block in filter(None, map(self._block, writes)):
            self._judge(block, use, [block.written, *block.read])
            block.written, block.read = use, []

    def _judge(self, block: Block, use: TensorUse, before: list[TensorUse | None]) -> None:
        self.breaches += [
            f"{use.what} on {use.stream.name} beside {each.what} on {each.stream.name}"
            for each in before
            if each is not None and each.races(use.stream)
        ]

    def _block(self, tensor: Tensor) -> Block | None:
        return self._live.get(tensor.untyped_storage().data_ptr())

    def _reused(self, size_bytes: int) -> Block | None:
        for block in reversed(self._free):
            fits = block.memory.nbytes == size_bytes and block.stream is self._current
            if fits and block.idle():
                self._free.remove(block)
                block.held_by = []
                return block
        return None

    def _freed(self, block: Block) -> None:
        del self._live[block.memory.ctypes.data]
        block.held_by = [(stream, stream.launched) for stream in block.told]
        block.told = set()
        self._free.append(block)


class _Recording(TorchDispatchMode):
    """Notes what each operation of torch reads and writes."""

    def __init__(self, device: RecordingDevice, stream: ModelStream) -> None:
        super().__init__()
        self._device = device
        self._stream = stream

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if self._stream is not self._device.computing:
            self._device.between()
        schema = func._schema
        if not any(each.alias_info and not each.alias_info.is_write for each in schema.returns):
            named = dict(zip((each.name for each in schema.arguments), args, strict=False)) | kwargs
            reads, writes = [], []
            for each in schema.arguments:
                written = each.alias_info is not None and each.alias_info.is_write
                (writes if written else reads).extend(_tensors(named.get(each.name)))
            self._device.launch(reads, writes, str(func))
        return func(*args, **kwargs)


def _tensors(value) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    return [x for x in value if isinstance(x, Tensor)] if isinstance(value, list | tuple) else []
