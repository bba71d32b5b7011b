"""Published weights that are quantised already, read as the dense tensors that they stand for.

Such a tensor lies in several: codes, scales, and what says how they go together. Here they come as
one, under the name that the parameter has in a plain file. So nothing else has to know of them.

    bitsandbytes, 4 bits   X with X.absmax, X.quant_map, X.quant_state.*, and X.nested_* perhaps
    MXFP4 of gpt_oss       X_blocks and X_scales
    fp8 by blocks          X with X_scale_inv

Shapes:  as the dense tensors; E experts, G groups of 32 values, each with a scale.
Errors:  Unusable for parts that do not go together.
Source:  `QuantState.from_dict` of bitsandbytes 0.50; `convert_moe_packed_tensors` and
         `Fp8Dequantize` of transformers 5.24; OCP Microscaling Formats 1.0.
"""

# ruff: noqa: D102  `WeightFiles` documents the methods

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor

from p2pswarm.base.errors import Unusable
from p2pswarm.models.library.weight_files import WeightFiles

STATE = ".quant_state.bitsandbytes__"
BLOCKS, SCALES, SCALE_INV = "_blocks", "_scales", "_scale_inv"
STATE_BYTES_MAX = 10_000  # a table of ten settings
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
        """The shape of the dense tensor."""
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
            name: self._kinds[name].shape(self) for name in asked if name in self._kinds
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
        by_file: dict[str, list[str]] = defaultdict(list)
        for name in names:
            by_file[self._places[name]].append(name)
        found: dict[str, Tensor] = {}
        for file, there in by_file.items():
            found.update(self._parts_of.tensors(file, there))
        return found

    def raw_shapes(self, names: Iterable[str]) -> dict[str, tuple[int, ...]]:
        """The shapes of parts."""
        found: dict[str, tuple[int, ...]] = {}
        for name in names:
            found.update(self._parts_of.shapes(self._places[name], [name]))
        return found

    def _dense_of(self, name: str, kind: _CompactTensor) -> Tensor:
        try:
            return kind.dense(self.read(kind.parts))
        except (ValueError, RuntimeError, LookupError, TypeError, OverflowError) as error:
            reason = " ".join(str(error).split())
            raise Unusable(
                f"{self.where}: the parts of {name} do not go together: {reason}: copy the files "
                "again"
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
        about = self._about(files.read([self._state])[self._state])
        return tuple(about["shape"])

    def dense(self, parts: Mapping[str, Tensor]) -> Tensor:
        about, name = self._about(parts[self._state]), self._name
        shape, block = tuple(about["shape"]), int(about["blocksize"])
        codes = parts[name].reshape(-1).view(torch.uint8).to(torch.int32)
        values = parts[f"{name}.quant_map"].float()[torch.stack([codes >> 4, codes & 15], 1)]
        scales = parts[f"{name}.absmax"]
        if self._nested:
            outer = parts[f"{name}.nested_absmax"].float()
            inner = parts[f"{name}.nested_quant_map"].float()[scales.to(torch.int32)]
            each = outer.repeat_interleave(int(about["nested_blocksize"]))[: len(inner)]
            scales = inner * each + float(about["nested_offset"])
        count = math.prod(shape)
        flat_N = values.view(-1)[:count]  # noqa: N806
        return (flat_N * scales.float().repeat_interleave(block)[:count]).view(shape)

    def _about(self, state: Tensor) -> dict[str, Any]:
        if state.numel() > STATE_BYTES_MAX:
            raise ValueError(f"{self._state} has {state.numel():,} bytes")
        found: dict[str, Any] = json.loads(bytes(state.view(torch.uint8).tolist()))
        return found


class _Mxfp4:
    """Groups of 32 values of e2m1 with an exponent; experts lie in by out in the model."""

    def __init__(self, name: str) -> None:
        self.parts = f"{name}{BLOCKS}", f"{name}{SCALES}"

    def shape(self, files: CompactFiles) -> tuple[int, ...]:
        blocks = files.raw_shapes(self.parts[:1])[self.parts[0]]
        *front, groups, half = blocks
        return (*front[:-1], groups * half * 2, front[-1])

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
        return files.raw_shapes([self._name])[self._name]

    def dense(self, parts: Mapping[str, Tensor]) -> Tensor:
        values, scales = (parts[name].float() for name in self.parts)
        for dim in (-2, -1):
            size, count = values.shape[dim], scales.shape[dim]
            block = 1 << (-(-size // count) - 1).bit_length()  # the last block may be short
            scales = scales.repeat_interleave(block, dim).narrow(dim, 0, size)
        return values * scales
