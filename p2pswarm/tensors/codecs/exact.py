"""Exact codecs: a tensor's own bytes, and its bytes in planes by zstd."""

from collections.abc import Iterable, Iterator

import numpy as np
import torch
import zstandard
from torch import Tensor

from p2pswarm.base.errors import BadMessage
from p2pswarm.tensors.codecs.base import (
    EVERY,
    FLOATS,
    LOSSLESS,
    TORCH,
    Decoder,
    bytes_of,
    expect_bytes,
)
from p2pswarm.tensors.codecs.codec import Codec, CodecKind
from p2pswarm.tensors.codecs.meta import VALUE_BYTES, TensorLayout
from p2pswarm.tensors.codecs.tensor_pool import TensorPool


class Raw(Codec):
    """The codec raw: a tensor's own bytes, of every dtype.

    Neither side copies a contiguous CPU tensor, so the sender must not write to it until the
    transfer is over.
    """

    name = "raw"
    code = 1
    kind = CodecKind.EXACT
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


# Level 1 with nearly no search, because a match in planes of floats costs more than it saves.
# Gaussian bfloat16: ratio 1.50 at 1.2 GB/s; the plain level 1 has 1.46 at 0.4 GB/s.
HOW = zstandard.ZstdCompressionParameters.from_level(
    1, strategy=zstandard.STRATEGY_FAST, window_log=17, hash_log=6, min_match=7, target_length=0
)
WINDOW_BYTES_MAX = 8 << 20  # 16 times what level 1 uses: zstd's own advice for decoders
SCRATCH_BYTES = 1 << 20  # unpacked at a time, so that it stays in the cache
FRAME_BYTES = 512  # more than zstd's header and the bound for tiny inputs
NEXT_BLOCK = zstandard.COMPRESSOBJ_FLUSH_BLOCK


Bytes = np.ndarray[tuple[int, ...], np.dtype[np.uint8]]


class PlanesZstd(Codec):
    """The codec planes-zstd: bytes grouped by their place in the value, then zstd.

    The exponents of neighbouring values are alike, and their mantissas are not. In planes of their
    own the exponents compress well: the ratio for Gaussian bfloat16 is 1.50 instead of 1.29.

    Wire: one zstd frame that declares its size; plane 0 (the lowest byte of each value), then plane
    1, and so on. Our encoder begins a zstd block with each plane, so that each has an entropy table
    of its own. A peer's frame is unpacked into memory that was charged for its announcement, never
    into memory of a size that the frame names.
    """

    name = "planes-zstd"
    code = 5
    kind = CodecKind.EXACT
    uses = LOSSLESS
    dtypes = EVERY
    heavy = True

    def check(self, layout: TensorLayout, encoded_bytes: int) -> None:
        """Raise BadMessage for more bytes than zstd's own bound, `ZSTD_compressBound`."""
        if not 0 < encoded_bytes <= most_bytes(layout.raw_bytes):
            raise BadMessage(f"{encoded_bytes} bytes of zstd for {layout.raw_bytes} of tensor")

    def memory_bytes(self, layout: TensorLayout, encoded_bytes: int) -> int:
        """The encoded bytes, the tensor, and zstd's scratch memory."""
        return encoded_bytes + layout.raw_bytes + min(layout.raw_bytes, SCRATCH_BYTES)

    def encode(self, tensor: Tensor, pool: TensorPool) -> memoryview:
        """Encode on the CPU, where zstd runs."""
        values = _values(pool.on_host(tensor), tensor.element_size())
        return packed_planes(_planes(values), values.size, pool)

    def decoder(self, layout: TensorLayout, encoded_bytes: int, pool: TensorPool) -> Decoder:
        """Memory for the frame, which `finish` unpacks."""
        buffer = bytes_of(pool.host((encoded_bytes,), torch.uint8))

        def finish() -> Tensor:
            tensor = pool.way(layout.shape, TORCH[layout.dtype])
            planes = _planes(_values(tensor, VALUE_BYTES[layout.dtype]))
            unpack_planes(buffer, planes, layout.raw_bytes)
            return pool.on_device(tensor)

        return Decoder(buffer, finish)


def packed_planes(planes: Iterable[Bytes], size_bytes: int, pool: TensorPool) -> memoryview:
    """One zstd frame of all planes, which have `size_bytes` together, in blocks of their own."""
    packer = zstandard.ZstdCompressor(compression_params=HOW).compressobj(size=size_bytes)
    scratch = np.empty(min(size_bytes, SCRATCH_BYTES), np.uint8)
    frame = bytes_of(pool.host((most_bytes(size_bytes),), torch.uint8))
    end = 0
    for column in _pieces(planes):
        piece = column
        if not column.flags.c_contiguous:
            piece = scratch[: len(column)]
            piece[:] = column
        for packed in packer.compress(piece.data), packer.flush(NEXT_BLOCK):
            frame[end : end + len(packed)] = packed
            end += len(packed)
    packed = packer.flush()
    frame[end : end + len(packed)] = packed
    return frame[: end + len(packed)]


def unpack_planes(frame: memoryview, planes: Iterable[Bytes], size_bytes: int) -> None:
    """Fill planes, which have `size_bytes` together, from a peer's frame; raises BadMessage."""
    _refuse_bomb(frame, size_bytes)
    unpacker = zstandard.ZstdDecompressor(max_window_size=WINDOW_BYTES_MAX)
    scratch = np.empty(min(size_bytes, SCRATCH_BYTES), np.uint8)
    with unpacker.stream_reader(frame) as reader:
        for column in _pieces(planes):
            piece = column if column.flags.c_contiguous else scratch[: len(column)]
            try:
                got = reader.readinto(piece.data)
            except zstandard.ZstdError as error:
                raise BadMessage("a broken zstd frame") from error
            if got != len(column):
                raise BadMessage("a zstd frame that ends early")
            if piece is not column:
                column[:] = piece


def most_bytes(raw_bytes: int) -> int:
    """The size that no frame of so many bytes exceeds."""
    return raw_bytes + raw_bytes // 256 + FRAME_BYTES


def _values(tensor: Tensor, value_bytes: int) -> Bytes:
    """A CPU tensor's memory, shape (values, bytes of a value)."""
    return np.frombuffer(bytes_of(tensor), np.uint8).reshape(-1, value_bytes)


def _planes(values: Bytes) -> Iterator[Bytes]:
    return (values[:, place] for place in range(values.shape[1]))


def _pieces(planes: Iterable[Bytes]) -> Iterator[Bytes]:
    """The planes one after the other, in pieces of at most SCRATCH_BYTES."""
    for plane in planes:
        for begin in range(0, len(plane), SCRATCH_BYTES):
            yield plane[begin : begin + SCRATCH_BYTES]


def _refuse_bomb(frame: memoryview, raw_bytes: int) -> None:
    """Raise BadMessage if the frame's header names another size than the announcement."""
    try:
        head = zstandard.get_frame_parameters(frame)
    except zstandard.ZstdError as error:
        raise BadMessage("not a zstd frame") from error
    if head.content_size != raw_bytes:
        raise BadMessage(f"a zstd frame of {head.content_size} bytes, {raw_bytes} were announced")
    if head.window_size > WINDOW_BYTES_MAX:
        raise BadMessage(f"a zstd window of {head.window_size} bytes")
