"""Whole multiples of powers of two, exactly: what sums of gradients on a grid are.

The greatest power of two of which all values of a block are multiples is found from the values
alone, so neither end needs to know a grid. A tensor that has none, as one with NaN or a negative
zero, goes as its own bytes in planes.

Wire: a byte, the number of planes, then one zstd frame as `exact.py` makes it: of each block a
byte, its power of two plus 126; the planes of the multiples, lowest byte first. A multiple is
written without its sign, twice its size, less one if it is negative: so small ones of both signs
have zeros above. With 0 for planes, a frame of the values' own planes.

Shapes:  B blocks of `BLOCK` values, N values.
"""
# ruff: noqa: N803, N806  shapes are written at the end of names

from collections.abc import Iterator
from types import ModuleType

import numpy as np
import torch
from torch import Tensor

from p2pswarm.base.errors import BadMessage
from p2pswarm.tensors.codecs.base import TORCH, WIDE, Decoder, TensorUse, bytes_of, is_line
from p2pswarm.tensors.codecs.codec import Codec, CodecKind
from p2pswarm.tensors.codecs.exact import (
    SCRATCH_BYTES,
    Bytes,
    PlanesZstd,
    most_bytes,
    packed_planes,
    unpack_planes,
)
from p2pswarm.tensors.codecs.meta import TensorLayout
from p2pswarm.tensors.codecs.tensor_pool import TensorPool

BLOCK = 256
CHUNK_BLOCKS = 1024  # at a time: 1 MiB of float32 stays in the caches, and calls are few
PLANES_MAX = 4
WORK_BITS = 30  # of a block's greatest value as a whole number of 32 bits
SHIFT_MIN, SHIFT_MAX = -98, 126  # so that every power of two here is a normal float32
POWER_MAX = 126
POWER_BIAS = 126
FRACTION_BITS, EXPONENT_BIAS = 23, 127  # of a float32


class IntGrid(Codec):
    """The codec of sums within a stage whose values are whole multiples, for `int-grid`."""

    name = "int-grid"
    code = 15
    kind = CodecKind.EXACT
    uses = TensorUse.AVERAGING
    dtypes = WIDE
    heavy = True

    def __init__(self) -> None:
        self.kernels: ModuleType | None = None
        """`kernels/grid_kernels.py`, for float32, once it was tried out."""

    def check(self, layout: TensorLayout, encoded_bytes: int) -> None:
        """Raise BadMessage for more bytes than zstd's bound for all planes."""
        most = 1 + most_bytes(layout.raw_bytes + _blocks(layout.values))
        if not 1 < encoded_bytes <= most:
            raise BadMessage(f"{encoded_bytes} bytes of {self.name} for {layout.raw_bytes}")

    def memory_bytes(self, layout: TensorLayout, encoded_bytes: int) -> int:
        """The encoded bytes, the tensor, whole numbers as large, and zstd's scratch memory."""
        return encoded_bytes + 2 * layout.raw_bytes + min(layout.raw_bytes, SCRATCH_BYTES)

    def encode(self, tensor: Tensor, pool: TensorPool) -> memoryview:
        """Encode on the CPU, where zstd runs."""
        values_N = pool.on_host(tensor).view(-1)
        whole = _WholeNumbers(values_N.numel(), pool, 1)
        kernels = self.kernels if is_line(values_N) else None
        planes = whole.count(values_N) if kernels is None else whole.count_by(kernels, values_N)
        if planes:
            packed = packed_planes(whole.columns(), whole.size_bytes, pool)
        else:
            packed = PlanesZstd().encode(values_N, pool)
        frame = bytes_of(pool.host((1 + len(packed),), torch.uint8))
        frame[0], frame[1:] = planes, packed
        return frame

    def decoder(self, layout: TensorLayout, encoded_bytes: int, pool: TensorPool) -> Decoder:
        """Memory for the frame, which `finish` unpacks."""
        buffer = bytes_of(pool.host((encoded_bytes,), torch.uint8))
        own = PlanesZstd().decoder(layout, encoded_bytes - 1, pool)

        def finish() -> Tensor:
            planes = buffer[0]
            if planes > PLANES_MAX:
                raise BadMessage(f"{planes} planes of whole numbers")
            if not planes:
                own.buffer[:] = buffer[1:]
                return own.finish()
            whole = _WholeNumbers(layout.values, pool, planes)
            unpack_planes(buffer[1:], whole.columns(), whole.size_bytes)
            tensor = pool.way(layout.shape, TORCH[layout.dtype])
            whole.restore(tensor.view(-1), self.kernels if is_line(tensor) else None)
            return pool.on_device(tensor)

        return Decoder(buffer, finish)


class _WholeNumbers:
    """A tensor as whole multiples, and for each block the power of two that it has of."""

    def __init__(self, length: int, pool: TensorPool, planes: int) -> None:
        """`planes`: the first ones; more come as they are needed."""
        self._length = length
        self._pool = pool
        self._power_B = pool.host((_blocks(length),), torch.uint8)
        self._planes_N = [pool.host((length,), torch.uint8) for _ in range(planes)]

    @property
    def size_bytes(self) -> int:
        """The size of the powers and of the planes."""
        return len(self._power_B) + len(self._planes_N) * self._length

    def columns(self) -> Iterator[Bytes]:
        """The powers, then the planes, the lowest one first."""
        for each in (self._power_B, *self._planes_N):
            yield np.frombuffer(bytes_of(each), np.uint8)

    def count(self, values_N: Tensor) -> int:
        """Read the multiples of a tensor; the number of planes that they fill, 0: it has none."""
        for blocks, places in self._chunks():
            read = _multiples(_as_blocks(values_N[places]))
            if read is None:
                return 0
            code_BC, power_B = read
            self._power_B[blocks].copy_(power_B)
            code_N = code_BC.view(-1)[: places.stop - places.start]
            for place in range(max(1, _bytes_of_bits(int(code_N.max())))):
                low_N = (code_N >> (8 * place)).bitwise_and_(255) if place else code_N & 255
                self._plane(place)[places].copy_(low_N)
        return len(self._planes_N)

    def count_by(self, kernels: ModuleType, values_N: Tensor) -> int:
        """As `count`, by compiled loops."""
        code_N = torch.empty(min(self._length, CHUNK_BLOCKS * BLOCK), dtype=torch.int32).numpy()
        value_N, power_B, low_N = (x.numpy() for x in (values_N, self._power_B, self._planes_N[0]))
        for blocks, places in self._chunks():
            found = kernels.read_multiples(value_N[places], power_B[blocks], low_N[places], code_N)
            if found == kernels.NO_MULTIPLES:
                return 0
            for place in range(1, _bytes_of_bits(found)):
                kernels.take_bytes(code_N, place, self._plane(place).numpy()[places])
        return len(self._planes_N)

    def _plane(self, place: int) -> Tensor:
        if place == len(self._planes_N):
            self._planes_N.append(self._pool.host((self._length,), torch.uint8).zero_())
        return self._planes_N[place]

    def restore(self, values_N: Tensor, kernels: ModuleType | None = None) -> None:
        """Write the values; by compiled loops, if any."""
        if len(self._power_B) and int(self._power_B.max()) > POWER_MAX + POWER_BIAS:
            raise BadMessage("a power of two that no sum has")
        if kernels is not None:
            planes = [plane_N.numpy() for plane_N in self._planes_N]
            four = planes + planes[:1] * (PLANES_MAX - len(planes))
            kernels.restore_multiples(self._power_B.numpy(), *four, len(planes), values_N.numpy())
            return
        for blocks, places in self._chunks():
            low_N, *higher_N = (plane_N[places] for plane_N in self._planes_N)
            code_N = low_N.to(torch.int32)
            for place, plane_N in enumerate(higher_N, 1):
                code_N.bitwise_or_(plane_N.to(torch.int32) << (8 * place))
            whole_N = (code_N >> 1).bitwise_xor_(code_N.bitwise_and_(1).neg_())
            step_B1 = _power(self._power_B[blocks].to(torch.int32) - POWER_BIAS).unsqueeze(1)
            found_BC = _as_blocks(whole_N.to(values_N.dtype)).mul_(step_B1.to(values_N.dtype))
            values_N[places].copy_(found_BC.view(-1)[: places.stop - places.start])

    def _chunks(self) -> Iterator[tuple[slice, slice]]:
        """The blocks and the places of what is worked on at a time."""
        for first in range(0, len(self._power_B), CHUNK_BLOCKS):
            blocks = slice(first, min(first + CHUNK_BLOCKS, len(self._power_B)))
            yield blocks, slice(first * BLOCK, min(blocks.stop * BLOCK, self._length))


def _multiples(x_BC: Tensor) -> tuple[Tensor, Tensor] | None:
    """The written multiples of blocks, and the codes of their powers; None if there are none."""
    top_B = x_BC.abs().amax(1)
    if not torch.isfinite(top_B).all():
        return None
    shift_B = (WORK_BITS - torch.frexp(top_B).exponent).clamp_(SHIFT_MIN, SHIFT_MAX)
    whole_BC = (x_BC * _power(shift_B).unsqueeze(1).to(x_BC.dtype)).to(torch.int32)
    # back again, because beside a value of 2**100 one of 2**-100 becomes a zero
    same_BC = whole_BC.to(x_BC.dtype).mul_(_power(-shift_B).unsqueeze(1).to(x_BC.dtype))
    bits = torch.int32 if x_BC.dtype == torch.float32 else torch.int64
    if not torch.equal(same_BC.view(bits), x_BC.view(bits)):
        return None
    # numpy's is five times as fast as halves of torch's
    any_B = torch.from_numpy(np.bitwise_or.reduce(whole_BC.numpy(), axis=1))
    zeros_B = torch.frexp((any_B & -any_B).to(torch.float32)).exponent.sub_(1).clamp_(min=0)
    power_B = (zeros_B - shift_B).clamp_(max=POWER_MAX)
    whole_BC.bitwise_right_shift_((power_B + shift_B).unsqueeze(1))
    sign_BC = whole_BC >> 31
    return whole_BC.bitwise_left_shift_(1).bitwise_xor_(sign_BC), power_B.add_(POWER_BIAS)


def _bytes_of_bits(code: int) -> int:
    return -(-code.bit_length() // 8)


def _power(exponents: Tensor) -> Tensor:
    """Powers of two as float32; exponents of whole numbers from -126 to 127."""
    return (exponents + EXPONENT_BIAS).bitwise_left_shift_(FRACTION_BITS).view(torch.float32)


def _as_blocks(x_N: Tensor) -> Tensor:
    """Rows of a block; the last one filled with zeros."""
    if x_N.numel() % BLOCK:
        filled = x_N.new_zeros(_blocks(x_N.numel()) * BLOCK)
        filled[: x_N.numel()].copy_(x_N)
        x_N = filled
    return x_N.view(-1, BLOCK)


def _blocks(length: int) -> int:
    return -(-length // BLOCK)
