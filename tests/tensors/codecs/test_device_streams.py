"""Codecs beside computing: the laws, on a model of a device that is as late as any could be."""

import functools
from collections.abc import Iterator

import pytest
import torch
from core import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from tensors.recording_device import ModelStream, RecordedStream, RecordingDevice
from torch import Tensor

from p2pswarm.tensors.codecs.base import CPU
from p2pswarm.tensors.codecs.cuda_device import streams_of, wait_for
from p2pswarm.tensors.codecs.device_streams import DeviceStreams
from p2pswarm.tensors.codecs.host_memory import LockedMemory
from p2pswarm.tensors.codecs.registry import (
    EncodedTensor,
    TensorToEncode,
    decoder,
    encode,
    encode_bundle,
)
from p2pswarm.tensors.codecs.tensor_pool import TensorPool

VALUES = 700
CODECS = ("raw", "bf16", "int8", "int8-ef", "planes-zstd")
SENT = torch.randn(VALUES, generator=torch.Generator().manual_seed(1))


def locked(size_bytes: int) -> Tensor:
    return torch.empty(size_bytes, dtype=torch.uint8)


def pool_on(device: RecordingDevice) -> TensorPool:
    return TensorPool(CPU, streams=DeviceStreams(device, LockedMemory(locked, 1 << 20)))


def encoded_of(tensor: Tensor, codec: str, pool: TensorPool, carried=()) -> EncodedTensor:
    """As `TensorTransfer` encodes."""
    todo = [TensorToEncode(tensor, codec, carried)]
    return pool.streams.aside(functools.partial(encode_bundle, todo, pool))[0]


def decoded_of(sent: EncodedTensor, pool: TensorPool) -> Tensor:
    """As `IncomingTensors` decodes."""
    place = decoder(sent.meta, pool)
    if not sent.meta.inline:
        place.buffer[:] = sent.data
    return pool.streams.decoded(place.finish)


def plainly(sent: EncodedTensor) -> Tensor:
    place = decoder(sent.meta)
    if not sent.meta.inline:
        place.buffer[:] = sent.data
    return place.finish()


def same_bytes(one: EncodedTensor, other: EncodedTensor) -> bool:
    return bytes(one.data) == bytes(other.data)


class Computing:
    """A compute thread: what it launches is over when a call ends, or when the test says so."""

    def __init__(self, device: RecordingDevice) -> None:
        self.device = device
        self.arrived: list[Tensor] = []
        self.kept: list[Tensor] = []
        self.made: list[Tensor] = []
        self.steps: Iterator[None] = iter(())

    def step(self) -> None:
        """One step of a call; of the next call, if one is over."""
        for _ in self.steps:
            return
        if self.kept and self.arrived:
            self.steps = self._backward(self.kept.pop(0), self.arrived.pop(0))
        elif self.arrived:
            self.steps = self._forward(self.arrived.pop(0))

    def _forward(self, x: Tensor) -> Iterator[None]:
        y = self._launch(x)
        yield
        self._launch(y)  # lives for a moment: its memory is free before its kernel is over
        yield
        self.kept.append(x)
        yield from self._end(y)

    def _backward(self, x: Tensor, gradient: Tensor) -> Iterator[None]:
        returned = self._launch(x, gradient)
        yield
        del x  # a graph lets go of what it has used
        yield
        self._launch(gradient)
        del gradient
        yield
        yield from self._end(returned)

    def _launch(self, *read: Tensor) -> Tensor:
        with self.device.launching_on(self.device.computing):
            y = self.device.empty((VALUES,), torch.float32, CPU)
            y.copy_(read[0])
            for x in read[1:]:
                y.add_(x)
        return y

    def _end(self, made: Tensor) -> Iterator[None]:
        self.device.computing.finish()
        self.made.append(made)
        yield


@settings(max_examples=examples(150))
@given(st.data())
def test_nothing_races_however_encoding_computing_decoding_and_freeing_interleave(data):
    device = RecordingDevice()
    pool, computing = pool_on(device), Computing(device)
    carried: list[tuple[Tensor, ...]] = [()]

    def encoding() -> None:
        if computing.made:
            codec = data.draw(st.sampled_from(CODECS))
            owed = carried.pop() if codec == "int8-ef" and carried else ()
            copy = computing.made[0].clone()
            expected = encode_bundle([TensorToEncode(copy, codec, owed)])[0]
            got = encoded_of(
                computing.made[0], codec, pool, owed
            )  # its owner may drop it meanwhile
            assert same_bytes(got, expected)
            if got.left is not None:
                carried.append((got.left,))

    def decoding() -> None:
        sent = encode(SENT, data.draw(st.sampled_from(CODECS)), inline_bytes=0)
        got = decoded_of(sent, pool)
        assert torch.equal(got, plainly(sent))
        computing.arrived.append(got)

    def freeing() -> None:
        for tensors in computing.kept, computing.arrived, computing.made:
            if tensors and data.draw(st.booleans()):
                tensors.pop()

    def others() -> None:
        """What other threads do between two kernels of a codec."""
        for _ in range(data.draw(st.sampled_from([0, 0, 0, 1, 3]))):
            device.between = lambda: None  # no deeper than two codecs at a time
            data.draw(st.sampled_from(any_time))()
        device.between = others

    def late() -> None:
        device.computing.finish(data.draw(st.integers(0, 3)))

    any_time = (computing.step, computing.step, freeing, late, encoding, decoding)
    device.between = others
    for action in data.draw(st.lists(st.sampled_from(any_time), max_size=25)):
        action()

    assert device.breaches == []


class Forgetful(RecordingDevice):
    """Does not mark what computing uses."""

    def used_by_computing(self, tensor: Tensor) -> None:
        pass


class Impatient(RecordingDevice):
    """Does not wait at the end of a codec's call."""

    def new_stream(self) -> RecordedStream:
        stream = super().new_stream()
        stream.wait = lambda: None
        return stream


class Misplacing(RecordingDevice):
    """Allocates where computing does, whatever the stream is."""

    def empty(self, shape, dtype, device) -> Tensor:
        with self.launching_on(self.computing):
            return super().empty(shape, dtype, device)


def decode_while_the_last_is_still_read(device: RecordingDevice) -> None:
    """The memory of one that arrived is freed before the kernel that reads it is over."""
    pool, sent = pool_on(device), encode(SENT, "raw", inline_bytes=0)
    x = decoded_of(sent, pool)
    with device.launching_on(device.computing):
        x.sum()
    del x
    decoded_of(sent, pool)


def decode_beside_a_kernel_whose_memory_is_free(device: RecordingDevice) -> None:
    pool = pool_on(device)
    with device.launching_on(device.computing):
        device.empty((VALUES,), torch.float32, CPU).zero_()
    decoded_of(encode(SENT, "raw", inline_bytes=0), pool)


def compute_what_was_decoded(device: RecordingDevice) -> None:
    x = decoded_of(encode(SENT, "bf16", inline_bytes=0), pool_on(device))
    with device.launching_on(device.computing):
        x.sum()


def encode_what_was_computed(device: RecordingDevice, *, waits: bool = True) -> None:
    with device.launching_on(device.computing):
        y = device.empty((VALUES,), torch.float32, CPU).copy_(SENT)
    if waits:
        device.computing.finish()
    encoded_of(y, "int8", pool_on(device))


@pytest.mark.parametrize(
    ("careless", "scene"),
    [
        (Forgetful, decode_while_the_last_is_still_read),
        (Misplacing, decode_beside_a_kernel_whose_memory_is_free),
        (Impatient, compute_what_was_decoded),
    ],
)
def test_each_law_is_needed_and_the_model_sees_when_it_is_broken(careless, scene):
    careful, broken = RecordingDevice(), careless()

    scene(careful)
    scene(broken)

    assert careful.breaches == []
    assert broken.breaches


def test_a_compute_call_that_does_not_wait_at_its_end_would_be_seen():
    careful, broken = RecordingDevice(), RecordingDevice()

    encode_what_was_computed(careful)
    encode_what_was_computed(broken, waits=False)

    assert careful.breaches == []
    assert broken.breaches


def test_memory_that_computing_is_done_with_serves_the_next_tensor():
    device = RecordingDevice()
    pool, sent = pool_on(device), encode(SENT, "raw", inline_bytes=0)
    x = decoded_of(sent, pool)
    at = x.data_ptr()
    del x

    assert decoded_of(sent, pool).data_ptr() == at


def test_a_call_has_a_stream_that_no_other_uses_meanwhile_and_the_next_uses_it_again():
    device = RecordingDevice()
    streams, used = DeviceStreams(device), []

    def work(deeper: int) -> None:
        used.append(device._current)
        if deeper:
            streams.aside(lambda: work(deeper - 1))

    streams.aside(lambda: work(2))
    streams.aside(lambda: work(0))

    assert [each.name for each in used] == ["side 1", "side 2", "side 3", "side 1"]
    assert device._current is device.computing


def test_an_error_is_waited_for_as_well():
    device = RecordingDevice()
    streams = DeviceStreams(device)
    seen: list[ModelStream] = []

    def fails() -> None:
        seen.append(device._current)
        torch.ones(3).add_(1)
        raise ValueError("of the codec")

    with pytest.raises(ValueError, match="of the codec"):
        streams.aside(fails)

    assert seen[0].launched == seen[0].over > 0
    streams.aside(lambda: seen.append(device._current))
    assert seen[1] is seen[0]


def test_a_cpu_has_one_stream_and_nothing_to_wait_for():
    streams = streams_of(CPU)

    assert not streams.device.apart
    assert streams.locked is None
    assert torch.equal(streams.decoded(lambda: SENT), SENT)
    wait_for(CPU)


def test_a_device_whose_streams_are_not_used_is_copied_to_as_it_computes():
    meta = torch.device("meta")
    streams = streams_of(meta)
    there = streams.decoded(lambda: streams.device.empty((2, 3), torch.float32, meta))

    assert streams.device.apart
    assert streams.device.holds(there)
    assert (there.shape, there.device) == ((2, 3), meta)
