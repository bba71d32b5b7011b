"""The files of a published model's weights: on a disk or of the hub, whole or in parts.

Shapes:  as the files have them.
Source:  https://huggingface.co/docs/safetensors, "Format".
"""

# ruff: noqa: D102  `WeightFiles` documents the methods of both implementations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from p2pswarm.base.errors import Unusable
from p2pswarm.base.files import read_small, refuse_pointer
from p2pswarm.data.hub import HubSilent, Pinned, file_bytes, kept_file, ranged, small_file

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
EVERY_TYPE = TYPES | {
    "F8_E4M3": torch.float8_e4m3fn,
    "U8": torch.uint8,
}
"""Those, and what quantised tensors are made of (`compact_files.py`)."""
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
    """The length of the header, without its own length, of a file whose first bytes these are."""
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
    if dtype in EVERY_TYPE and stop - start != EVERY_TYPE[dtype].itemsize * math.prod(shape):
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


ONE_FILE, INDEX = "model.safetensors", "model.safetensors.index.json"
PICKLED = "pytorch_model.bin", "pytorch_model.bin.index.json"
"""What models were published as before; reading it may run what is in it."""
FILE_NAME = re.compile(r"(?!\.\.?$)[^/\\\x00-\x1f\ud800-\udfff]{1,255}")
INDEX_BYTES_MAX = 64 << 20  # a name and a file for each tensor: the largest models have 10 MB


class WeightFiles(Protocol):
    """The safetensors files of one model.

    They are one safetensors file, or parts with an index. Files on this machine are mapped, so
    what is not read costs nothing. Of a file of the hub the header is read once, and then the
    tensors that are asked for: those whose bytes follow each other come with one request.

    The safetensors library reads a header only with all bytes of the file behind it, so `HubFiles`
    reads it by itself: eight bytes with its length, little-endian; the header, JSON; the tensors.
    """

    @property
    def where(self) -> str:
        """Return where they are, for people."""
        ...

    def places(self) -> dict[str, str]:
        """The file of each tensor, by the tensor's name."""
        ...

    def shapes(self, file: str, names: Iterable[str]) -> dict[str, tuple[int, ...]]:
        """The shapes of some tensors of a file."""
        ...

    def tensors(self, file: str, names: Iterable[str]) -> Iterator[tuple[str, Tensor]]:
        """Some tensors of a file, one at a time."""
        ...


class FolderFiles:
    """Implements `WeightFiles` on a folder."""

    def __init__(self, folder: Path, types: Mapping[str, torch.dtype] = TYPES) -> None:
        self._folder, self._types = folder, types

    @property
    def where(self) -> str:
        return str(self._folder)

    def places(self) -> dict[str, str]:
        index, path = self._folder / INDEX, self._folder / ONE_FILE
        if index.is_file():
            return places_in(index)
        refuse_pointer(path)
        try:
            with safe_open(path, framework="pt") as file:
                return dict.fromkeys(file.keys(), ONE_FILE)
        except SafetensorError as error:
            raise Unusable(f"{path} is not whole: copy it again ({error})") from error
        except OSError as error:
            remedy = f"put {ONE_FILE} there, or {INDEX} and the parts that it names"
            if any((self._folder / each).is_file() for each in PICKLED):
                remedy = f"{PICKLED[0]} is not read: load it and save_pretrained it anew"
            raise Unusable(f"there are no weights in {self._folder}: {remedy} ({error})") from error

    def shapes(self, file: str, names: Iterable[str]) -> dict[str, tuple[int, ...]]:
        with self._opened(file) as opened:
            found = {name: opened.get_slice(name) for name in names}
            for name, each in found.items():
                if (dtype := str(each.get_dtype())) not in self._types:
                    raise Unusable(
                        f"{self._folder / file}: {name} is of {dtype}, which cannot be trained on: "
                        f"save the model anew in one of {', '.join(TYPES)}"
                    )
            return {name: tuple(each.get_shape()) for name, each in found.items()}

    def tensors(self, file: str, names: Iterable[str]) -> Iterator[tuple[str, Tensor]]:
        with self._opened(file) as opened:
            for name in names:
                yield name, opened.get_tensor(name)

    @contextmanager
    def _opened(self, file: str) -> Iterator[Any]:
        path = self._folder / file
        refuse_pointer(path)
        try:
            with safe_open(path, framework="pt") as opened:
                yield opened
        except (OSError, SafetensorError) as error:
            raise Unusable(f"{path} cannot be read: {error}: put the model's file there") from error


def places_in(index: Path) -> dict[str, str]:
    """The file of each tensor, as the index of a model in parts says."""
    try:
        found = json.loads(read_small(index, INDEX_BYTES_MAX, "it is no index of weights"))
        places = dict(found["weight_map"])
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        raise Unusable(f"{index} is no index of weights: {error}") from error
    for name, file in places.items():
        if not isinstance(file, str) or not FILE_NAME.fullmatch(file):
            raise Unusable(f"{index}: the file of {name} is {file!r}, which is no file beside it")
    return places


INSTEAD = (
    f"put its {ONE_FILE}, or {INDEX} and the parts that it names, into a folder, and set "
    "serve.pretrained to it (a trainer: run.model to hf:FOLDER)"
)


class HubFiles:
    """Implements `WeightFiles` on a model of the hub at one commit; one tensor is in memory."""

    def __init__(self, model: Pinned, types: Mapping[str, torch.dtype] = TYPES) -> None:
        self._model, self._types = model, types
        self._places: dict[str, str] = {}
        self._headers: dict[str, dict[str, StoredTensor]] = {}

    @property
    def where(self) -> str:
        return str(self._model)

    def places(self) -> dict[str, str]:
        if not self._places:
            kept = kept_file(self._model, ONE_FILE)
            try:
                index = small_file(self._model, INDEX, INDEX_BYTES_MAX, INSTEAD)
            except HubSilent:
                if kept is None:
                    raise
                index = None
            if index is not None:
                self._places = places_in(index)
            elif kept is not None:
                self._places = FolderFiles(kept.parent).places()
            else:
                self._places = dict.fromkeys(self._header(ONE_FILE), ONE_FILE)
        return self._places

    def shapes(self, file: str, names: Iterable[str]) -> dict[str, tuple[int, ...]]:
        if (kept := kept_file(self._model, file)) is not None:
            return FolderFiles(kept.parent, self._types).shapes(file, names)
        return {name: self._stored(file, name).shape for name in names}

    def tensors(self, file: str, names: Iterable[str]) -> Iterator[tuple[str, Tensor]]:
        if (kept := kept_file(self._model, file)) is not None:
            yield from FolderFiles(kept.parent).tensors(file, names)
            return
        for group in joined((name, self._stored(file, name)) for name in names):
            whole = group[0][1].start, group[-1][1].stop
            chunks = ranged(self._model, file, whole, INSTEAD)
            rest = memoryview(b"")
            for name, stored in group:
                numbers = bytearray(stored.stop - stored.start)
                filled = 0
                while filled < len(numbers):
                    rest = rest or memoryview(next(chunks))
                    part = rest[: len(numbers) - filled]
                    numbers[filled : filled + len(part)] = part
                    filled, rest = filled + len(part), rest[len(part) :]
                dtype = self._types[stored.dtype]
                yield name, torch.frombuffer(numbers, dtype=dtype).view(stored.shape)

    def _stored(self, file: str, name: str) -> StoredTensor:
        found = self._header(file).get(name)
        if found is None:
            raise Unusable(f"{self._model}: {file} lacks {name}, which {INDEX} says is there")
        if found.dtype not in self._types or found.start == found.stop:
            raise Unusable(
                f"{self._model}: {name} holds {found.dtype}, and such weights do not train"
            )
        return found

    def _header(self, file: str) -> dict[str, StoredTensor]:
        if file not in self._headers:
            model = self._model
            size = file_bytes(model, file, INSTEAD)
            try:
                first = b"".join(ranged(model, file, (0, min(LENGTH_BYTES, size)), INSTEAD))
                stop = LENGTH_BYTES + header_bytes(first, size)
                header = b"".join(ranged(model, file, (LENGTH_BYTES, stop), INSTEAD))
                self._headers[file] = stored_tensors(header, size)
            except ValueError as error:
                raise Unusable(f"{model}: {file} is no safetensors file: {error}") from error
        return self._headers[file]
