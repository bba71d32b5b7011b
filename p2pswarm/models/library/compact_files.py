"""Published weights that are quantised already, read as the dense tensors that they stand for.

Such a tensor lies in several: codes, scales, and what says how they go together. Here they come as
one, under the name that the parameter has in a plain file. So nothing else has to know of them.

    bitsandbytes, 4 bits   X with X.absmax, X.quant_map, X.quant_state.*, and X.nested_* perhaps
    MXFP4 of gpt_oss       X_blocks and X_scales
    fp8 by blocks          X with X_scale_inv

Shapes:  as the dense tensors; E experts, G groups of 32 values, each with a scale. All are checked
         by the files' headers before a part is read.
Errors:  Unusable for parts that do not go together.
Source:  `QuantState.from_dict` of bitsandbytes 0.50; `convert_moe_packed_tensors` and
         `Fp8Dequantize` of transformers 5.24; OCP Microscaling Formats 1.0.
"""

# ruff: noqa: D102  `WeightFiles` documents the methods

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor

from p2pswarm.base.errors import Unusable, one_line
from p2pswarm.models.formats.expert_matrices import MATRIX
from p2pswarm.models.library.weight_files import WeightFiles

STATE = ".quant_state.bitsandbytes__"
BLOCKS, SCALES, SCALE_INV = "_blocks", "_scales", "_scale_inv"
STATE_BYTES_MAX = 10_000  # a table of ten settings
MXFP4_GROUP_BYTES, MXFP4_DIMENSIONS = 16, 3
QUANT_MAP, NESTED_MAP = 16, 256  # values of a table of bitsandbytes
FP4 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
"""The values of e2m1."""
BIAS = 127  # of an exponent, e8m0


class _CompactTensor(Protocol):
    """A way in which several tensors are one."""

    @property
    def parts(self) -> tuple[str, ...]:
        """Return their names, the codes first."""
        ...

    def shape(self, files: "CompactFiles") -> tuple[int, ...]:
        """The shape of the dense tensor; ValueError for parts of other sizes."""
        ...

    def dense(self, parts: Mapping[str, Tensor]) -> Tensor:
        """The dense tensor."""
        ...


class CompactFiles:
    """Implements `WeightFiles` on files that hold some tensors in parts."""

    def __init__(self, files: WeightFiles, parts_of: WeightFiles) -> None:
        """`parts_of`: the same files, with tensors of all types."""
        self._files, self._parts_of = files, parts_of
        self._places = files.places()
        self._kinds = dict(_kinds(self._places))
        parts = {part for kind in self._kinds.values() for part in kind.parts}
        plain = {name: file for name, file in self._places.items() if name not in parts}
        own = {name: self._places[kind.parts[0]] for name, kind in self._kinds.items()}
        self._dense = plain | own

    @property
    def where(self) -> str:
        return self._files.where

    @property
    def any(self) -> bool:
        """Return whether any tensor is in parts."""
        return bool(self._kinds)

    def places(self) -> dict[str, str]:
        return dict(self._dense)

    def shapes(self, file: str, names: Iterable[str]) -> dict[str, tuple[int, ...]]:
        asked = list(names)
        plain = [name for name in asked if name not in self._kinds]
        found = self._files.shapes(file, plain) if plain else {}
        return found | {
            name: self._shape_of(name, self._kinds[name]) for name in asked if name in self._kinds
        }

    def tensors(self, file: str, names: Iterable[str]) -> Iterator[tuple[str, Tensor]]:
        asked = list(names)
        if plain := [name for name in asked if name not in self._kinds]:
            yield from self._files.tensors(file, plain)
        for name in asked:
            if (kind := self._kinds.get(name)) is not None:
                yield name, self._dense_of(name, kind)

    def read(self, names: Iterable[str]) -> dict[str, Tensor]:
        """Parts as they are."""
        found: dict[str, Tensor] = {}
        for file, there in self._by_file(names):
            found.update(self._parts_of.tensors(file, there))
        return found

    def raw_shapes(self, names: Iterable[str]) -> dict[str, tuple[int, ...]]:
        """The shapes of parts."""
        found: dict[str, tuple[int, ...]] = {}
        for file, there in self._by_file(names):
            found.update(self._parts_of.shapes(file, there))
        return found

    def _by_file(self, names: Iterable[str]) -> Iterable[tuple[str, list[str]]]:
        by_file: dict[str, list[str]] = defaultdict(list)
        for name in names:
            by_file[self._places[name]].append(name)
        return by_file.items()

    def _shape_of(self, name: str, kind: _CompactTensor) -> tuple[int, ...]:
        with self._together(name):
            return kind.shape(self)

    def _dense_of(self, name: str, kind: _CompactTensor) -> Tensor:
        with self._together(name):
            shape, made = kind.shape(self), kind.dense(self.read(kind.parts))
            return made.view(shape)

    @contextmanager
    def _together(self, name: str) -> Iterator[None]:
        """Raise Unusable for parts that are no tensor."""
        try:
            yield
        except (ValueError, RuntimeError, LookupError, TypeError, OverflowError) as error:
            raise Unusable(
                f"{self.where}: the parts of {name} do not go together: {one_line(error)}: copy "
                "the files again"
            ) from error


def _kinds(places: Mapping[str, str]) -> Iterator[tuple[str, _CompactTensor]]:
    for name in places:
        before, mark, kind = name.partition(STATE)
        if mark and before in places:
            yield before, _Bnb(before, name, kind, places)
        elif name.endswith(BLOCKS) and (whole := name.removesuffix(BLOCKS)) + SCALES in places:
            yield whole, _Mxfp4(whole)
        elif name.endswith(SCALE_INV) and name.removesuffix(SCALE_INV) in places:
            yield name.removesuffix(SCALE_INV), _Fp8(name.removesuffix(SCALE_INV))


class _Bnb:
    """4 bits a value, by a table of 16; scales of blocks may be quantised themselves."""

    def __init__(self, name: str, state: str, kind: str, places: Mapping[str, str]) -> None:
        nested = (f"{name}.nested_absmax", f"{name}.nested_quant_map")
        self._name, self._state, self._kind = name, state, kind
        self._nested = all(each in places for each in nested)
        more = nested if self._nested else ()
        self.parts = (name, state, f"{name}.absmax", f"{name}.quant_map", *more)

    def shape(self, files: CompactFiles) -> tuple[int, ...]:
        sizes = {part: math.prod(shape) for part, shape in files.raw_shapes(self.parts).items()}
        if sizes[self._state] > STATE_BYTES_MAX:
            raise ValueError(f"{self._state} has {sizes[self._state]:,} bytes")
        about, name = self._about(files.read([self._state])[self._state]), self._name
        shape = tuple(map(_count, about["shape"]))
        count = math.prod(shape)
        blocks = -(-count // max(1, _count(about["blocksize"])))
        due = {
            name: -(-count // 2),
            f"{name}.absmax": blocks,
            f"{name}.quant_map": QUANT_MAP,
        }
        if self._nested:
            outer = -(-blocks // max(1, _count(about["nested_blocksize"])))
            due |= {f"{name}.nested_absmax": outer, f"{name}.nested_quant_map": NESTED_MAP}
        for part, size in due.items():
            if sizes[part] != size:
                raise ValueError(f"{part} has {sizes[part]:,} values, {size:,} are due")
        return shape

    def dense(self, parts: Mapping[str, Tensor]) -> Tensor:
        about, name = self._about(parts[self._state]), self._name
        count = math.prod(about["shape"])
        codes = parts[name].reshape(-1).view(torch.uint8).to(torch.int32)
        values = parts[f"{name}.quant_map"].float()[torch.stack([codes >> 4, codes & 15], 1)]
        scales = parts[f"{name}.absmax"].reshape(-1)
        if self._nested:
            outer = parts[f"{name}.nested_absmax"].float().reshape(-1)
            codes_of_scales = scales.view(torch.uint8).to(torch.int32)
            inner = parts[f"{name}.nested_quant_map"].float().reshape(-1)[codes_of_scales]
            each = _repeated(outer, about["nested_blocksize"], len(inner))
            scales = inner * each + float(about["nested_offset"])
        return values.view(-1)[:count] * _repeated(scales.float(), about["blocksize"], count)

    def _about(self, state: Tensor) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(bytes(state.view(torch.uint8).tolist()))
        return found


class _Mxfp4:
    """Groups of 32 values of e2m1 with an exponent; experts lie in by out in the model."""

    def __init__(self, name: str) -> None:
        self.parts = f"{name}{BLOCKS}", f"{name}{SCALES}"

    def shape(self, files: CompactFiles) -> tuple[int, ...]:
        blocks, scales = (files.raw_shapes(self.parts)[part] for part in self.parts)
        if len(blocks) < MXFP4_DIMENSIONS or blocks[-1] != MXFP4_GROUP_BYTES:
            raise ValueError(f"{self.parts[0]} is {blocks}, (..., rows, groups, 16) is due")
        if scales != blocks[:-1]:
            raise ValueError(f"{self.parts[1]} is {scales}, {blocks[:-1]} is due")
        *front, rows, groups, _ = blocks
        return (*front, groups * MXFP4_GROUP_BYTES * 2, rows)

    def dense(self, parts: Mapping[str, Tensor]) -> Tensor:
        blocks, scales = (parts[name] for name in self.parts)
        codes = blocks.to(torch.int32)
        table = torch.tensor(FP4, dtype=torch.bfloat16)
        values = table[torch.stack([codes & 15, codes >> 4], -1)].flatten(-2)
        exponents = scales.to(torch.int32) - BIAS
        return torch.ldexp(values, exponents.unsqueeze(-1)).flatten(-2).mT.contiguous()


class _Fp8:
    """e4m3 with a scale for each block, as large as the scales say."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.parts = name, f"{name}{SCALE_INV}"

    def shape(self, files: CompactFiles) -> tuple[int, ...]:
        values, scales = (files.raw_shapes(self.parts)[part] for part in self.parts)
        blocks = [_block(size, count) for size, count in zip(values[-2:], scales[-2:], strict=True)]
        due = *values[:-2], *(-(-s // b) for s, b in zip(values[-2:], blocks, strict=True))
        if len(values) < MATRIX or scales != due:
            raise ValueError(f"{self.parts[1]} is {scales} for {values}")
        return values

    def dense(self, parts: Mapping[str, Tensor]) -> Tensor:
        values, scales = (parts[name].float() for name in self.parts)
        for dim in (-2, -1):
            size = values.shape[dim]
            block = _block(size, scales.shape[dim])
            scales = scales.repeat_interleave(block, dim).narrow(dim, 0, size)
        return values * scales


def _count(given: object) -> int:
    """A whole number of a file's settings; ValueError for anything else."""
    if type(given) is not int or given < 0:
        raise ValueError(f"{given!r} is no size")
    return given


def _repeated(scales: Tensor, block: int, count: int) -> Tensor:
    """The scale of each of `count` values, `block` of which have one; it may be far more."""
    return scales.repeat_interleave(min(block, count))[:count]


def _block(size: int, count: int) -> int:
    """The values of a block of which there are `count`; the last one may be short."""
    if not count:
        raise ValueError("there are no scales")
    return 1 << max(0, -(-size // count) - 1).bit_length()
