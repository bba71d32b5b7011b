"""First weights from safetensors files, as a model of `transformers` is published.

The manifest has a digest of the tensors' names, and where they are (`model.safetensors`, or the
index of a model in parts). Whoever draws first weights takes them from files of its own with that
digest: a trainer from its model's; a server from `serve.pretrained`, a folder or the hub. Files in
a folder are mapped, and those of the hub are read by ranges, so a stage reads the bytes of its own
parameters, and of a model in parts needs those parts alone. That the numbers are those of the
trainer is proved by the digest of the stage's state (`node/run/resume.py`).

A manifest is written by strangers. What it names of the hub is downloaded only if the owner of the
server has named it, too.

Shapes:  as the parameters; floating numbers of another type are converted.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import nn

from p2pswarm.base.errors import Unusable
from p2pswarm.data.hub import Pinned
from p2pswarm.models.base import WholeBlock
from p2pswarm.models.weight_files import INDEX, ONE_FILE, FolderFiles, HubFiles, WeightFiles
from p2pswarm.settings.config import RunConfig, ServeConfig
from p2pswarm.settings.limits import hub_name, is_pinned

PRETRAINED = "pretrained"
_files: dict[str, WeightFiles] = {}
"""By the digest that a manifest has."""


def offer(folder: Path) -> str:
    """Make a folder of this machine known to runs that start from it; returns its digest."""
    return _offered(FolderFiles(folder))


def offer_hub(pinned: str) -> str:
    """The same for NAME@COMMIT of the hub, of which no numbers are read yet."""
    found = hub_name(pinned)
    if found is None or not is_pinned(pinned):
        raise Unusable('run.model.hub is filled in: name the model by run.model = "hf:NAME"')
    return _offered(HubFiles(Pinned(*found)))


def offer_served(run: RunConfig, serve: ServeConfig) -> None:
    """Make known what this server's owner lets it read, for a run that starts from weights."""
    if run.start != PRETRAINED:
        return
    if serve.pretrained is not None:
        offer(serve.pretrained)
    elif serve.hub and run.model.hub:
        whole, _, _ = run.model.hub.partition("@")  # with the commit, or without
        if hub_name(serve.hub) not in (hub_name(run.model.hub), hub_name(whole)):
            raise Unusable(
                f"run {run.name!r} starts from {run.model.hub} of the hub, and serve.pretrained "
                f'lets this server read hf:{serve.hub}: set it to "hf:{run.model.hub}" if you agree'
            )
        offer_named(run)


def offer_named(run: RunConfig) -> None:
    """Make known the model of the hub that a run names, unless it is."""
    # Another model may have tensors of the same names: what is known is compared by its name.
    known = _files.get(run.model.weights)
    if known is None or known.where != run.model.hub:
        offer_hub(run.model.hub)


def load_blocks(run: RunConfig, blocks: Sequence[nn.Module]) -> None:
    """Copy the blocks' parameters from the files of the run's model."""
    files = _files.get(run.model.weights)
    if files is None:
        hub = run.model.hub
        name = hub.partition("@")[0]
        more = f', or to "hf:{name}" to download this stage\'s part of the hub' if hub else ""
        raise Unusable(
            f"run {run.name!r} starts from pretrained weights: put the files of "
            f"{name or run.model.family} ({ONE_FILE}, or {INDEX} and the parts that it names) into "
            f"a folder, and set serve.pretrained to it{more}"
        )
    places = files.places()
    targets: dict[str, list[nn.Parameter]] = {}
    for name, parameter in _wanted(files, places, blocks):
        targets.setdefault(name, []).append(parameter)
    for file in sorted({places[name] for name in targets}):
        names = [name for name in targets if places[name] == file]
        _require_shapes(files, file, [(name, each) for name in names for each in targets[name]])
        for name, tensor in files.tensors(file, names):
            for parameter in targets[name]:
                with torch.no_grad():
                    parameter.copy_(tensor)


def check_names(run: RunConfig, blocks: Sequence[nn.Module]) -> None:
    """Raise Unusable unless the run's files have all parameters of `blocks`, in their shapes."""
    files = _files[run.model.weights]
    places = files.places()
    wanted = list(_wanted(files, places, blocks))
    left = places.keys() - {name for name, _ in wanted}
    whole = [block for block in blocks if isinstance(block, WholeBlock)]
    ignored = [re.compile(each) for block in whole for each in block.ignored]
    constants = {name for block in whole for name in block.constants}
    for name in sorted(left):
        if name in constants or any(name == each.partition(".")[2] for each in constants):
            raise Unusable(
                f"{files.where}: {name} is trained otherwise than by gradients, and newcomers "
                'would lack it: run.start = "random"'
            )
        if not any(each.search(name) for each in ignored):
            raise Unusable(
                f"{files.where}: the model that config.json describes has no tensor {name}: its "
                "files are of another model, or hold something that is not trained here"
            )
    for file in sorted({places[name] for name, _ in wanted}):
        _require_shapes(files, file, [one for one in wanted if places[one[0]] == file])


def _offered(files: WeightFiles) -> str:
    places = json.dumps(files.places(), sort_keys=True).encode()
    digest = hashlib.sha256(b"p2pswarm-pretrained-1:" + places).hexdigest()
    _files[digest] = files
    return digest


def _wanted(
    files: WeightFiles, places: dict[str, str], blocks: Sequence[nn.Module]
) -> Iterator[tuple[str, nn.Parameter]]:
    """Every parameter with the name that it has in the files, which are at `places`."""
    for block in blocks:
        if not isinstance(block, WholeBlock):
            raise Unusable('run.start = "pretrained" is for models of transformers: set "random"')
        for name, parameter in block.named_parameters():
            full, first = block.full_name(name), block.draw_name(name)
            names = (full, full.partition(".")[2], first, first.partition(".")[2])
            found = next((each for each in names if each in places), None)
            if found is None:
                raise Unusable(
                    f"{files.where} has no tensor {full}: its files are of another model, or older "
                    "than this version of transformers, which can save them anew"
                )
            yield found, parameter


def _require_shapes(
    files: WeightFiles, file: str, wanted: Sequence[tuple[str, nn.Parameter]]
) -> None:
    """Raise Unusable for another shape, before any number is read."""
    shapes = files.shapes(file, [name for name, _ in wanted])
    for name, parameter in wanted:
        if shapes[name] != (due := tuple(parameter.shape)):
            raise Unusable(
                f"{files.where}: {file}: {name} has the shape {shapes[name]}, by config.json it "
                f"is {due}"
            )
