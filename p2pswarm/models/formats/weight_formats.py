"""How a frozen tensor lies in memory: in the model's dtype, in bfloat16, in 8 or in 4.5 bits.

Every operation rounds exactly once, so all processors make the same bytes of the same numbers.

    int8    a row is whole numbers from -127 to 127, times one float32
    nf4     64 values are places in a table of 16, times one float32: the bytes of bitsandbytes

Shapes:  N values of a tensor, R of a row; blocks of 64 values; bytes are uint8.
Source:  Dettmers et al., "QLoRA" (arXiv 2305.14314), for NF4 and its table.
"""
# ruff: noqa: N806  shapes are written at the end of names

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

# ruff: noqa: D102  `WeightFormat` documents the methods

DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32, "float64": torch.float64}
"""Of weights as they are kept; models are made in the last two."""
ALIGN_BYTES = 64  # a cache line: every part of a tensor's bytes begins at a multiple
BLOCK = 64  # values that have one scale
CHUNK_BLOCKS = 1 << 13  # blocks at a time: 2 MiB of float32
INT8_MOST = 127.0
NF4 = (
    -1.0,
    -0.6961928009986877,
    -0.5250730514526367,
    -0.39491748809814453,
    -0.28444138169288635,
    -0.18477343022823334,
    -0.09105003625154495,
    0.0,
    0.07958029955625534,
    0.16093020141124725,
    0.24611230194568634,
    0.33791524171829224,
    0.44070982933044434,
    0.5626170039176941,
    0.7229568362236023,
    1.0,
)
"""The quantiles of a normal distribution that the paper has, as float32."""


@dataclass(frozen=True, slots=True)
class TensorCut:
    """A part of a tensor: some spans along one of its dimensions, one after the other."""

    dim: int
    spans: tuple[tuple[int, int], ...]
    """From where to where."""

    def shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """The shape of the part."""
        found = list(shape)
        found[self.dim] = sum(stop - start for start, stop in self.spans)
        return tuple(found)

    def fits(self, shape: Sequence[int], grain: int) -> bool:
        """Return whether it takes no part of `grain` values of a row, and no row has such a one."""
        ends = (end for span in self.spans for end in span) if self._is_last(shape) else ()
        return not any(end % grain for end in (shape[-1], *ends))

    def of(self, x: Tensor, shape: Sequence[int], values: int = 1) -> Tensor:
        """The part of a tensor of `shape`, of which `values` of a row are one value here."""
        x = x.view(*shape[:-1], shape[-1] // values)
        unit = values if self._is_last(shape) else 1
        spans = [(start // unit, stop // unit) for start, stop in self.spans]
        return torch.cat([x.narrow(self.dim, a, b - a) for a, b in spans], self.dim)

    def _is_last(self, shape: Sequence[int]) -> bool:
        return self.dim % len(shape) == len(shape) - 1


class WeightFormat(Protocol):
    """A way to keep a tensor in bytes."""

    grain: int
    """So many values of a row are packed together."""

    def size_bytes(self, shape: Sequence[int]) -> int:
        """What a tensor of a shape takes."""
        ...

    def pack(self, values: Tensor, data: Tensor) -> None:
        """Write a tensor's bytes; `data` has their size."""
        ...

    def unpack(
        self, data: Tensor, shape: Sequence[int], dtype: torch.dtype, out: Tensor | None = None
    ) -> Tensor:
        """The tensor in a dtype: in `out`, which is flat, else in new memory or that of `data`."""
        ...

    def unpack_first(
        self,
        data: Tensor,
        shape: Sequence[int],
        dtype: torch.dtype,
        index: int,
        out: Tensor | None = None,
    ) -> Tensor:
        """Element `index` of the tensor's first dimension, in a dtype."""
        ...

    def narrow(self, data: Tensor, shape: Sequence[int], cut: TensorCut, part: Tensor) -> None:
        """Write the bytes of a part, which has the shape `cut.shape(shape)`.

        Its numbers are the same. The cut has to fit the grain.
        """
        ...


def _wide(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which a code is multiplied by its scale, before it is rounded once."""
    return dtype if dtype == torch.float64 else torch.float32


def _memory(count: int, dtype: torch.dtype, device: torch.device, out: Tensor | None) -> Tensor:
    if out is None:
        return torch.empty(count, dtype=dtype, device=device)
    return out[:count]


def dense_values(shape: Sequence[int]) -> int:
    """The length that `out` of `unpack` has at least."""
    return -(-math.prod(shape) // BLOCK) * BLOCK


def aligned(size_bytes: int) -> int:
    """The next multiple of a cache line."""
    return -(-size_bytes // ALIGN_BYTES) * ALIGN_BYTES


class PlainFormat:
    """Implements `WeightFormat` by a dtype."""

    grain = 1

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype

    def size_bytes(self, shape: Sequence[int]) -> int:
        return math.prod(shape) * self.dtype.itemsize

    def pack(self, values: Tensor, data: Tensor) -> None:
        self.view(data, values.shape).copy_(values)

    def view(self, data: Tensor, shape: Sequence[int]) -> Tensor:
        """The tensor itself."""
        return data[: self.size_bytes(shape)].view(self.dtype).view(tuple(shape))

    def unpack(
        self, data: Tensor, shape: Sequence[int], dtype: torch.dtype, out: Tensor | None = None
    ) -> Tensor:
        return self._unpacked(self.view(data, shape), dtype, out)

    def unpack_first(
        self,
        data: Tensor,
        shape: Sequence[int],
        dtype: torch.dtype,
        index: int,
        out: Tensor | None = None,
    ) -> Tensor:
        return self._unpacked(self.view(data, shape)[index], dtype, out)

    def narrow(self, data: Tensor, shape: Sequence[int], cut: TensorCut, part: Tensor) -> None:
        self.pack(cut.of(self.view(data, shape), shape), part)

    def _unpacked(self, there: Tensor, dtype: torch.dtype, out: Tensor | None) -> Tensor:
        if out is None or dtype == self.dtype:
            return there.to(dtype)
        return out[: there.numel()].view(there.shape).copy_(there)


class Int8Format:
    """Implements `WeightFormat` by whole numbers and a scale for each row."""

    grain = 1

    def size_bytes(self, shape: Sequence[int]) -> int:
        return aligned(math.prod(shape)) + math.prod(shape[:-1]) * 4

    def pack(self, values: Tensor, data: Tensor) -> None:
        codes, scales = self._parts(data, values.shape)
        rows = values.reshape(-1, values.shape[-1])
        at_once = max(1, CHUNK_BLOCKS * BLOCK // values.shape[-1])
        for start in range(0, len(rows), at_once):
            part = rows[start : start + at_once].to(torch.float32)
            scale = part.abs().amax(1) / INT8_MOST
            scales[start : start + at_once] = scale
            divisor = torch.where(scale == 0, 1.0, scale)  # a row of zeros stays one
            whole = (part / divisor[:, None]).round().clamp(-INT8_MOST, INT8_MOST)
            codes[start : start + at_once] = whole.to(torch.int8)

    def unpack(
        self, data: Tensor, shape: Sequence[int], dtype: torch.dtype, out: Tensor | None = None
    ) -> Tensor:
        codes, scales = self._parts(data, shape)
        return self._unpacked(codes, scales, dtype, out).view(tuple(shape))

    def unpack_first(
        self,
        data: Tensor,
        shape: Sequence[int],
        dtype: torch.dtype,
        index: int,
        out: Tensor | None = None,
    ) -> Tensor:
        codes, scales = self._parts(data, shape)
        rows = len(codes) // shape[0]
        own = slice(index * rows, (index + 1) * rows)
        return self._unpacked(codes[own], scales[own], dtype, out).view(tuple(shape[1:]))

    def narrow(self, data: Tensor, shape: Sequence[int], cut: TensorCut, part: Tensor) -> None:
        codes, scales = self._parts(data, shape)
        own_codes, own_scales = self._parts(part, cut.shape(shape))
        own_codes.copy_(cut.of(codes, shape).view(own_codes.shape))
        if cut.dim % len(shape) < len(shape) - 1:
            scales = cut.of(scales, (*shape[:-1], 1))
        own_scales.copy_(scales.reshape(-1))

    def _unpacked(
        self, codes: Tensor, scales: Tensor, dtype: torch.dtype, out: Tensor | None
    ) -> Tensor:
        found = _memory(codes.numel(), dtype, codes.device, out).view(codes.shape)
        at_once = max(1, CHUNK_BLOCKS * BLOCK // codes.shape[-1])
        for start in range(0, len(codes), at_once):
            part = codes[start : start + at_once].to(_wide(dtype))
            scale = scales[start : start + at_once, None]
            torch.mul(part, scale, out=found[start : start + at_once])
        return found

    def _parts(self, data: Tensor, shape: Sequence[int]) -> tuple[Tensor, Tensor]:
        count, rows = math.prod(shape), math.prod(shape[:-1])
        behind = aligned(count)
        codes = data[:count].view(torch.int8).view(rows, shape[-1])
        return codes, data[behind : behind + rows * 4].view(torch.float32)


class Nf4Format:
    """Implements `WeightFormat` by 4 bits a value and a scale for 64 of them."""

    grain = BLOCK

    def __init__(self) -> None:
        self._tables: dict[tuple[torch.device, torch.dtype], Tensor] = {}

    def size_bytes(self, shape: Sequence[int]) -> int:
        count = math.prod(shape)
        return aligned(-(-count // 2)) + -(-count // BLOCK) * 4

    def pack(self, values: Tensor, data: Tensor) -> None:
        codes, scales = self._parts(data, values.shape)
        table = torch.tensor(NF4, dtype=torch.float32, device=values.device)
        middles = (table[1:] + table[:-1]) / 2
        flat_N = values.reshape(-1)
        step = CHUNK_BLOCKS * BLOCK
        for start in range(0, len(flat_N), step):
            part_N = flat_N[start : start + step].to(torch.float32)
            short = -len(part_N) % BLOCK
            blocks = torch.nn.functional.pad(part_N, (0, short)).view(-1, BLOCK)
            scale = blocks.abs().amax(1)
            first = start // BLOCK
            scales[first : first + len(scale)] = scale
            share = blocks / torch.where(scale == 0, 1.0, scale)[:, None]
            places = torch.bucketize(share.view(-1), middles).to(torch.uint8)
            pairs = (places[0::2] << 4) | places[1::2]
            room = codes[start // 2 : start // 2 + len(pairs)]
            room.copy_(pairs[: len(room)])

    def unpack(
        self, data: Tensor, shape: Sequence[int], dtype: torch.dtype, out: Tensor | None = None
    ) -> Tensor:
        codes, scales = self._parts(data, shape)
        count = math.prod(shape)
        return self._unpacked(codes, scales, count, dtype, out).view(tuple(shape))

    def unpack_first(
        self,
        data: Tensor,
        shape: Sequence[int],
        dtype: torch.dtype,
        index: int,
        out: Tensor | None = None,
    ) -> Tensor:
        count = math.prod(shape[1:])
        if count % BLOCK:  # a scale is of two elements
            return self.unpack(data, shape, dtype)[index]
        codes, scales = self._parts(data, shape)
        start, stop = index * count, (index + 1) * count
        own = codes[start // 2 : stop // 2], scales[start // BLOCK : stop // BLOCK]
        return self._unpacked(*own, count, dtype, out).view(tuple(shape[1:]))

    def narrow(self, data: Tensor, shape: Sequence[int], cut: TensorCut, part: Tensor) -> None:
        codes, scales = self._parts(data, shape)
        own_codes, own_scales = self._parts(part, cut.shape(shape))
        own_codes.copy_(cut.of(codes, shape, 2).view(-1))
        own_scales.copy_(cut.of(scales, shape, BLOCK).view(-1))

    def _unpacked(
        self, codes: Tensor, scales: Tensor, count: int, dtype: torch.dtype, out: Tensor | None
    ) -> Tensor:
        found_N = _memory(len(scales) * BLOCK, dtype, codes.device, out)
        pairs = self._table(codes.device, _wide(dtype))
        step = CHUNK_BLOCKS * BLOCK
        for start in range(0, count, step):
            part = codes[start // 2 : (start + step) // 2].to(torch.int32)
            values = torch.view_as_real(pairs.index_select(0, part)).view(-1)
            if short := -len(values) % BLOCK:
                values = torch.nn.functional.pad(values, (0, short))
            first = start // BLOCK
            scale = scales[first : first + len(values) // BLOCK, None]
            room = found_N[start : start + len(values)].view(-1, BLOCK)
            torch.mul(values.view(-1, BLOCK), scale, out=room)
        return found_N[:count]

    def _table(self, device: torch.device, dtype: torch.dtype) -> Tensor:
        """The two values of each byte, as one number: a look-up of one is the faster."""
        found = self._tables.get((device, dtype))
        if found is None:
            table = torch.tensor(NF4, dtype=torch.float32).to(dtype)
            both = torch.arange(256)
            found = torch.complex(table[both >> 4], table[both & 15]).to(device)
            self._tables[device, dtype] = found
        return found

    def _parts(self, data: Tensor, shape: Sequence[int]) -> tuple[Tensor, Tensor]:
        count = math.prod(shape)
        behind = aligned(-(-count // 2))
        scales = data[behind : behind + -(-count // BLOCK) * 4].view(torch.float32)
        return data[: -(-count // 2)], scales


INT8, NF4_4BIT, BF16 = Int8Format(), Nf4Format(), PlainFormat(torch.bfloat16)


def format_named(name: str, model_dtype: str) -> WeightFormat:
    """The format of a name: full is the model's dtype."""
    plain = PlainFormat(DTYPES[model_dtype])
    found: dict[str, WeightFormat] = {"full": plain, "bf16": BF16, "int8": INT8, "nf4": NF4_4BIT}
    return found[name]
