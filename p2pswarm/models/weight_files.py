"""Where the tensors of a published model lie: in one safetensors file, or in parts with an index.

`FolderFiles` are those on this machine; they are mapped, so that what is not read costs nothing.

Shapes:  as the files have them.
Errors:  Unusable, one line that says which file to put where.
"""

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from safetensors import SafetensorError, safe_open
from torch import Tensor

from p2pswarm.base.errors import Unusable
from p2pswarm.base.infile import read_small
from p2pswarm.models.safetensors_header import TYPES

ONE_FILE, INDEX = "model.safetensors", "model.safetensors.index.json"
PICKLED = "pytorch_model.bin", "pytorch_model.bin.index.json"
"""What models were published as before; reading it may run what is in it."""
INDEX_BYTES_MAX = 64 << 20  # a name and a file for each tensor: the largest models have 10 MB


class WeightFiles(Protocol):
    """The safetensors files of one model."""

    @property
    def where(self) -> str:
        """Where they are, for people."""
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

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @property
    def where(self) -> str:
        """The folder."""
        return str(self._folder)

    def places(self) -> dict[str, str]:
        """See `WeightFiles`."""
        index, path = self._folder / INDEX, self._folder / ONE_FILE
        if index.is_file():
            return places_in(index)
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
        """See `WeightFiles`."""
        with self._opened(file) as opened:
            found = {name: opened.get_slice(name) for name in names}
            for name, each in found.items():
                if (dtype := str(each.get_dtype())) not in TYPES:
                    raise Unusable(
                        f"{self._folder / file}: {name} is of {dtype}, which cannot be trained on: "
                        f"save the model anew in one of {', '.join(TYPES)}"
                    )
            return {name: tuple(each.get_shape()) for name, each in found.items()}

    def tensors(self, file: str, names: Iterable[str]) -> Iterator[tuple[str, Tensor]]:
        """See `WeightFiles`."""
        with self._opened(file) as opened:
            for name in names:
                yield name, opened.get_tensor(name)

    @contextmanager
    def _opened(self, file: str) -> Iterator[Any]:
        path = self._folder / file
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
        if not isinstance(file, str) or Path(file).name != file or file == "..":
            raise Unusable(f"{index}: the file of {name} is {file!r}, which is no file beside it")
    return places
