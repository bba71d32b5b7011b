"""First weights from a folder of safetensors files, as a model of `transformers` is published.

The manifest has a digest of the tensors' names, and where they are (`model.safetensors`, or the
index of a model in parts). Whoever draws first weights takes them from a folder of its own with
that digest: a trainer from its model's, a server from `serve.pretrained`. Files are mapped, so a
stage reads the bytes of its own parameters, and of a model in parts needs those parts alone. That
the numbers are those of the trainer is proved by the digest of the stage's state
(`roles/first_states.py`).

Shapes:  as the parameters; floating numbers of another type are converted.
Errors:  Unusable, one line that says which file to put where.
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from p2pswarm.config import RunConfig
from p2pswarm.errors import Unusable
from p2pswarm.infile import read_small
from p2pswarm.models.base import WholeBlock
from p2pswarm.models.hf_cut import CONSTANTS

ONE_FILE, INDEX = "model.safetensors", "model.safetensors.index.json"
INDEX_BYTES_MAX = 64 << 20  # a name and a file for each tensor: the largest models have 10 MB
PRETRAINED = "pretrained"
_folders: dict[str, Path] = {}
"""By the digest that a manifest has."""


def offer(folder: Path) -> str:
    """Make a folder of this machine known to runs that start from it; returns its digest."""
    places = json.dumps(_places(folder), sort_keys=True).encode()
    digest = hashlib.sha256(b"p2pswarm-pretrained-1:" + places).hexdigest()
    _folders[digest] = folder
    return digest


def load_blocks(run: RunConfig, blocks: Sequence[nn.Module]) -> None:
    """Copy the blocks' parameters from the files of the run's model."""
    folder = _folders.get(run.model.weights)
    if folder is None:
        raise Unusable(
            f"run {run.name!r} starts from pretrained weights: put the files of {run.model.family} "
            f"({ONE_FILE}, or {INDEX} and the parts that it names) into a folder, and set "
            "serve.pretrained to it"
        )
    places = _places(folder)
    wanted = list(_wanted(folder, places, blocks))
    for name in sorted({places[name] for name, _ in wanted}):
        path = folder / name
        try:
            with safe_open(path, framework="pt") as file:
                for tensor_name, parameter in wanted:
                    if places[tensor_name] == name:
                        _copy(file.get_tensor(tensor_name), parameter, f"{path}: {tensor_name}")
        except (OSError, SafetensorError) as error:
            raise Unusable(f"{path} cannot be read: {error}: put the model's file there") from error


def check_names(run: RunConfig, blocks: Sequence[nn.Module]) -> None:
    """Raise Unusable unless the run's files have all parameters of `blocks`, in their shapes."""
    folder = _folders[run.model.weights]
    places = _places(folder)
    fixed = [name for name in places if name.rpartition(".")[2] in CONSTANTS]
    if fixed:
        raise Unusable(
            f"{folder}: {fixed[0]} is trained otherwise than by gradients, and newcomers would "
            'lack it: run.start = "random"'
        )
    for name, parameter in _wanted(folder, places, blocks):
        path = folder / places[name]
        try:
            with safe_open(path, framework="pt") as file:
                shape = tuple(file.get_slice(name).get_shape())
        except (OSError, SafetensorError) as error:
            raise Unusable(f"{path} cannot be read: {error}: put the model's file there") from error
        _require_shape(shape, parameter, f"{path}: {name}")


def _wanted(
    folder: Path, places: dict[str, str], blocks: Sequence[nn.Module]
) -> Iterator[tuple[str, nn.Parameter]]:
    """Every parameter with the name that it has in the files."""
    for block in blocks:
        if not isinstance(block, WholeBlock):
            raise Unusable('run.start = "pretrained" is for models of transformers: set "random"')
        for name, parameter in block.named_parameters():
            full, first = block.full_name(name), block.draw_name(name)
            names = (full, full.partition(".")[2], first, first.partition(".")[2])
            found = next((each for each in names if each in places), None)
            if found is None:
                raise Unusable(
                    f"{folder} has no tensor {full}: its files are of another model, or older than "
                    "this version of transformers, which can save them anew"
                )
            yield found, parameter


def _copy(tensor: Tensor, parameter: nn.Parameter, what: str) -> None:
    _require_shape(tuple(tensor.shape), parameter, what)
    if not tensor.is_floating_point():
        raise Unusable(f"{what} holds {tensor.dtype}, and such weights do not train")
    with torch.no_grad():
        parameter.copy_(tensor)


def _require_shape(shape: tuple[int, ...], parameter: nn.Parameter, what: str) -> None:
    due = tuple(parameter.shape)
    if shape != due:
        raise Unusable(f"{what} has the shape {shape}, by config.json it is {due}")


def _places(folder: Path) -> dict[str, str]:
    """The file of each tensor, by the tensor's name."""
    if (folder / INDEX).is_file():
        return _of_index(folder / INDEX)
    path = folder / ONE_FILE
    try:
        with safe_open(path, framework="pt") as file:
            return dict.fromkeys(file.keys(), ONE_FILE)
    except (OSError, SafetensorError) as error:
        raise Unusable(
            f"there are no weights in {folder} ({error}): put {ONE_FILE} there, or {INDEX} and the "
            "parts that it names"
        ) from error


def _of_index(path: Path) -> dict[str, str]:
    try:
        found = json.loads(read_small(path, INDEX_BYTES_MAX, "it is no index of weights"))
        places = dict(found["weight_map"])
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        raise Unusable(f"{path} is no index of weights: {error}") from error
    for name, file in places.items():
        if not isinstance(file, str) or Path(file).name != file:
            raise Unusable(f"{path}: the file of {name} is {file!r}, which is no file beside it")
    return places
