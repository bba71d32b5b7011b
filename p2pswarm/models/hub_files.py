"""The weights of a model of the hub, of which only the bytes that are wanted are downloaded.

Of each file the header is read once, and then the tensors that are asked for: those whose bytes
follow each other come with one request. One tensor is in memory at a time.

Shapes:  as the files have them.
Errors:  Unusable, one line that says what to put where instead.
"""

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from p2pswarm.base.errors import Unusable
from p2pswarm.data.hub import HubSilent, Pinned, file_bytes, kept_file, ranged, small_file
from p2pswarm.models.safetensors_header import (
    LENGTH_BYTES,
    TYPES,
    StoredTensor,
    header_bytes,
    joined,
    stored_tensors,
)
from p2pswarm.models.weight_files import (
    INDEX,
    INDEX_BYTES_MAX,
    ONE_FILE,
    FolderFiles,
    places_in,
)

INSTEAD = (
    f"put its {ONE_FILE}, or {INDEX} and the parts that it names, into a folder, and set "
    "serve.pretrained to it (a trainer: run.model to hf:FOLDER)"
)


class HubFiles:
    """Implements `WeightFiles` on a model of the hub at one commit."""

    def __init__(self, model: Pinned) -> None:
        self._model = model
        self._places: dict[str, str] = {}
        self._headers: dict[str, dict[str, StoredTensor]] = {}

    @property
    def where(self) -> str:
        """The model."""
        return str(self._model)

    def places(self) -> dict[str, str]:
        """See `WeightFiles`; asked for once."""
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
        """See `WeightFiles`."""
        if (kept := kept_file(self._model, file)) is not None:
            return FolderFiles(kept.parent).shapes(file, names)
        return {name: self._stored(file, name).shape for name in names}

    def tensors(self, file: str, names: Iterable[str]) -> Iterator[tuple[str, Tensor]]:
        """See `WeightFiles`; they come in the order of the file."""
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
                yield name, torch.frombuffer(numbers, dtype=TYPES[stored.dtype]).view(stored.shape)

    def _stored(self, file: str, name: str) -> StoredTensor:
        found = self._header(file).get(name)
        if found is None:
            raise Unusable(f"{self._model}: {file} lacks {name}, which {INDEX} says is there")
        if found.dtype not in TYPES or found.start == found.stop:
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
