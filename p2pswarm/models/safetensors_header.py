"""The header of a safetensors file: which tensors it has, and which of its bytes are theirs.

The library reads a header only with all bytes of the file behind it. This is for a file of which
one wants few. The format: eight bytes with the header's length, little-endian; the header, JSON;
the numbers of the tensors.

Units:   bytes; spans count from the beginning of the file.
Errors:  ValueError for a header that is none.
Source:  https://huggingface.co/docs/safetensors, "Format".
"""

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

LENGTH_BYTES = 8
HEADER_BYTES_MAX = 100_000_000  # the library's own limit
METADATA = "__metadata__"
TYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
}
"""Those that can be trained on, by the format's names."""
DIMENSIONS_MAX = 16  # far more than any weight has


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One tensor of a file."""

    dtype: str
    """As the format calls it."""
    shape: tuple[int, ...]
    start: int
    stop: int


def header_bytes(first: bytes, file_bytes: int) -> int:
    """How long the header is, without its own length, of a file whose first bytes these are."""
    length = int.from_bytes(first, "little")
    if len(first) != LENGTH_BYTES or length > min(HEADER_BYTES_MAX, file_bytes - LENGTH_BYTES):
        raise ValueError(f"a header of {length} bytes in a file of {file_bytes}")
    return length


def stored_tensors(header: bytes, file_bytes: int) -> dict[str, StoredTensor]:
    """The tensors by name."""
    try:
        found = json.loads(header)
    except RecursionError as error:
        raise ValueError("a header that is nested too deep") from error
    if not isinstance(found, dict):
        raise ValueError("a header that is no table")  # noqa: TRY004 - the file's, not ours
    found.pop(METADATA, None)
    begin = LENGTH_BYTES + len(header)
    return {name: _stored(name, entry, begin, file_bytes) for name, entry in found.items()}


def _stored(name: str, entry: Any, begin: int, file_bytes: int) -> StoredTensor:
    match entry:
        case {"dtype": str(dtype), "shape": list(shape), "data_offsets": [start, stop]}:
            whole = [start, stop, *shape]
            if any(type(each) is not int or each < 0 for each in whole):
                raise ValueError(f"{name} has sizes that are no whole numbers")
        case _:
            raise ValueError(f"{name} has no dtype, shape and data_offsets")
    if not start <= stop <= file_bytes - begin or len(shape) > DIMENSIONS_MAX:
        raise ValueError(f"{name} does not lie in the file")
    if dtype in TYPES and stop - start != TYPES[dtype].itemsize * math.prod(shape):
        raise ValueError(f"{name} has {stop - start} bytes, and another shape")
    return StoredTensor(dtype, tuple(shape), begin + start, begin + stop)


def joined(tensors: Iterable[tuple[str, StoredTensor]]) -> list[list[tuple[str, StoredTensor]]]:
    """Those whose bytes follow each other, together: each group is one request."""
    groups: list[list[tuple[str, StoredTensor]]] = []
    for name, tensor in sorted(tensors, key=lambda one: (one[1].start, one[1].stop)):
        if groups and groups[-1][-1][1].stop == tensor.start:
            groups[-1].append((name, tensor))
        else:
            groups.append([(name, tensor)])
    return groups
