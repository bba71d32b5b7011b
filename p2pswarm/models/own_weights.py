"""First weights from a user's own files: a model's, or an adapter's, as `run.start` names them.

A file, or a folder of files, of safetensors has all that trains, by the names that the model gives
its tensors: as a run writes at its end. A folder with an adapter_config.json is an adapter; the
model under it is the pretrained one.

Errors:  Unusable, one line with the remedy, for files that are not of this model.
"""

import contextlib
import dataclasses
import difflib
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from p2pswarm.base.errors import Unusable, one_line
from p2pswarm.models.adapters.adapter_folder import (
    CONFIG_FILE,
    WEIGHTS_FILE,
    adapter_settings,
    base_of,
    read_adapter,
)
from p2pswarm.models.adapters.adapter_targets import nearest
from p2pswarm.models.library.weight_files import TYPES
from p2pswarm.settings.adapter_config import AdapterConfig
from p2pswarm.settings.config import HF, PRETRAINED, RANDOM, STARTS, ModelConfig, RunConfig

HASHED_BYTES = 1 << 20  # at a time
COMPARED = ("rank", "alpha", "rslora", "targets", "rank_pattern", "alpha_pattern", "train")
"""What two adapters have equal if the tensors of one are of use for the other."""


def settled_start(run: RunConfig) -> RunConfig:
    """The run with `start` as a manifest has it, and with the adapter that a folder brings."""
    if run.start in STARTS:
        return run
    place = _place_of(run)
    try:
        if not _is_adapter(place):
            if run.has_base:
                raise Unusable(
                    f"run.start: {place} has whole weights, and run.adapter and run.frozen are for "
                    'frozen ones: set start to "pretrained", and serve.pretrained to them'
                )
            return dataclasses.replace(run, start=RANDOM)
        start = PRETRAINED if run.model.family.startswith(HF.rstrip(":")) else RANDOM
        adapter = run.adapter or adapter_settings(place)
        return dataclasses.replace(run, start=start, adapter=adapter)
    except ValueError as error:
        raise Unusable(f"run.start: {place}: {error}") from error


def adapter_to_compare(run: RunConfig, asked: RunConfig) -> RunConfig | None:
    """The run with the adapter of the folder that `asked` starts from, as that folder names it.

    `run`: the same, resolved. None for other starts. Unusable for an adapter of another base.
    """
    place = _place_of(asked)
    if not _is_adapter(place):
        return None
    _require_base(place, asked.model, run.model)
    return dataclasses.replace(run, adapter=adapter_settings(place))


def require_alike(place: str, there: AdapterConfig | None, here: AdapterConfig | None) -> None:
    """Raise Unusable unless both adapters, which are settled, have the same tensors and scales."""
    for name in COMPARED:
        theirs, ours = getattr(there, name), getattr(here, name)
        if theirs != ours:
            shown = [list(x) if isinstance(x, tuple) else x for x in (ours, theirs)]
            raise Unusable(
                f"run.adapter.{name} is {shown[0]}, and that of {place} is {shown[1]}: set it so, "
                "or leave run.adapter out, and it is taken from there"
            )


class OwnWeights:
    """The tensors of a user's own files."""

    def __init__(self, place: str, shapes: Mapping[str, Sequence[int]]) -> None:
        """`shapes`: of all that trains, by the names in the whole model."""
        path = Path(place)
        self._adapter: dict[str, Tensor] = {}
        self._places: dict[str, Path] = {}
        if _is_adapter(path):
            self._files = [path / CONFIG_FILE, path / WEIGHTS_FILE]
            self._adapter = read_adapter(path, shapes)
            return
        self._files = sorted(path.glob("*.safetensors")) if path.is_dir() else [path]
        if not self._files:
            raise Unusable(f"run.start: {path} has no .safetensors file: name one that has")
        for file in self._files:
            self._look_into(file, shapes)
        lacking = next((name for name in shapes if name not in self._places), None)
        if lacking is not None:
            raise Unusable(
                f"run.start: {path} has no {lacking}, which the model trains: name all of its "
                f"weights{_as_published(self._places, shapes)}"
            )

    def digest(self) -> bytes:
        """The SHA-256 of the files' bytes."""
        whole = hashlib.sha256()
        for path in self._files:
            own = hashlib.sha256()
            with _readable(path), path.open("rb") as file:
                while part := file.read(HASHED_BYTES):
                    own.update(part)
            whole.update(own.digest())
        return whole.digest()

    def tensor(self, name: str, dtype: torch.dtype) -> Tensor:
        """A tensor in the model's dtype, in which it is finite."""
        if name in self._adapter:
            found = self._adapter[name]
        else:
            path = self._places[name]
            with _readable(path), safe_open(path, "pt", "cpu") as file:
                found = file.get_tensor(name)
        if found.dtype not in TYPES.values():
            raise Unusable(
                f"run.start: {name} is of {str(found.dtype).removeprefix('torch.')}, which cannot "
                f"be trained on: save the weights anew in one of {', '.join(TYPES)}"
            )
        found = found.to(dtype)
        if not bool(torch.isfinite(found).all()):
            raise Unusable(
                f"run.start: {name} has values that are no finite numbers in the model's "
                f"{str(dtype).removeprefix('torch.')}: name other weights"
            )
        return found

    def _look_into(self, path: Path, shapes: Mapping[str, Sequence[int]]) -> None:
        """Take the names and shapes of a file."""
        with _readable(path), safe_open(path, "pt", "cpu") as file:
            for name in file.keys():  # noqa: SIM118 - it is no dictionary
                if name in self._places:
                    raise Unusable(f"run.start: {name} is in {self._places[name]} and in {path}")
                if name not in shapes:
                    hint = nearest(name, shapes) or _as_published([name], shapes)
                    raise Unusable(f"run.start: {path}: {name} is no tensor of the model{hint}")
                shape, due = file.get_slice(name).get_shape(), list(shapes[name])
                if shape != due:
                    raise Unusable(f"run.start: {path}: {name} is {shape}, and {due} is due")
                self._places[name] = path


def _as_published(names: object, shapes: Mapping[str, Sequence[int]]) -> str:
    """A hint for files as models of the library are published, whose names may be others."""
    own = any(name.startswith("blocks.") for name in shapes)
    return "" if own or not names else '; published files are for start = "pretrained"'


def _place_of(run: RunConfig) -> Path:
    place = Path(run.start)
    if not place.exists():
        near = difflib.get_close_matches(place.name, STARTS, 1)
        guess = f' (did you mean "{near[0]}"?)' if near else ""
        raise Unusable(
            f'run.start: {place} is not there{guess}: it is "{RANDOM}", "{PRETRAINED}", or a file '
            "or folder of weights"
        )
    return place


def _is_adapter(place: Path) -> bool:
    return (place / CONFIG_FILE).is_file()


def _require_base(place: Path, asked: ModelConfig, model: ModelConfig) -> None:
    """Raise Unusable where an adapter's config names another base than the run's model."""
    base, (name, _, commit) = base_of(place), model.hub.partition("@")
    ours = name or (str(asked.folder) if asked.folder is not None else "")
    if not base.name or not ours:
        return
    same = base.name == ours or Path(base.name).name == Path(ours).name
    if not same or (base.commit and commit and not commit.startswith(base.commit)):
        there = f"{base.name}@{base.commit}" if base.commit else base.name
        here = f"{name}@{commit}" if commit else ours
        raise Unusable(
            f"run.start: {place} is an adapter of {there}, and run.model is {here}: name its base "
            f"as run.model; or if they are one model, say so in {CONFIG_FILE}"
        )


@contextlib.contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Say of which file an error is."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        raise Unusable(
            f"run.start: {path} cannot be read: {one_line(error)}: name safetensors"
        ) from error
