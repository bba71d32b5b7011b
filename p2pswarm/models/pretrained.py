"""First weights from safetensors files, as a model of `transformers` is published.

The manifest has a digest of the tensors' names, and where they are (`model.safetensors`, or the
index of a model in parts). Whoever draws first weights takes them from files of its own with that
digest: a trainer from its model's; a server from `serve.pretrained`, a folder or the hub. Files in
a folder are mapped, and those of the hub are read by ranges, so a stage reads the bytes of its own
parameters, and of a model in parts needs those parts alone. What the files' tensors make is the
library's own rule (`weight_conversion.py`). That the numbers are those of the trainer is proved by
the digest of the stage's state (`node/run/resume.py`).

A manifest is written by strangers. What it names of the hub is downloaded only if the owner of the
server has named it, too.

Shapes:  as the parameters; floating numbers of another type are converted.
"""

import dataclasses
import hashlib
import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn

from p2pswarm.base.errors import Unusable
from p2pswarm.data.hub import Pinned
from p2pswarm.models.base import WholeBlock
from p2pswarm.models.library.compact_files import CompactFiles
from p2pswarm.models.library.hf_library import whole_model
from p2pswarm.models.library.weight_conversion import (
    Conversion,
    PublishedTensors,
    published_tensors,
)
from p2pswarm.models.library.weight_files import (
    EVERY_TYPE,
    INDEX,
    ONE_FILE,
    FolderFiles,
    HubFiles,
    WeightFiles,
)
from p2pswarm.settings.config import HF, PRETRAINED, ModelConfig, RunConfig
from p2pswarm.settings.limits import hub_name, is_pinned
from p2pswarm.settings.node_config import ServeConfig

PUBLISHED_KEPT = 4  # a name and a rule for each tensor; a process serves one or two models
_files: dict[str, dict[str, WeightFiles]] = {}
"""By the digest that a manifest has, and by where they are; the last that was offered comes last.
A model and what was trained of it have tensors of the same names, and one process may have both."""


class OfferedDigest(str):
    """The digest of files' names, as a manifest has it, of files that are known here.

    It is the text itself. A run whose model has it reads these files, whatever is offered later.
    """

    __slots__ = ("where",)
    where: str

    def __new__(cls, digest: str, where: str = "") -> Self:
        """`where`: as `WeightFiles.where`."""
        made = super().__new__(cls, digest)
        made.where = where
        return made


def offer(folder: Path) -> OfferedDigest:
    """Make a folder of this machine known to runs that start from it; returns its digest."""
    return _offered(FolderFiles(folder), FolderFiles(folder, EVERY_TYPE))


def offer_hub(pinned: str) -> OfferedDigest:
    """The same for NAME@COMMIT of the hub, of which no numbers are read yet."""
    found = hub_name(pinned)
    if found is None or not is_pinned(pinned):
        raise Unusable('run.model.hub is filled in: name the model by run.model = "hf:NAME"')
    model = Pinned(*found)
    return _offered(HubFiles(model), HubFiles(model, EVERY_TYPE))


def offer_served(run: RunConfig, serve: ServeConfig) -> RunConfig:
    """Make known what this server's owner lets it read, for a run that starts from weights.

    Returns the run, which reads them.
    """
    if run.start != PRETRAINED:
        return run
    if serve.pretrained is not None:
        return _reading(run, offer(serve.pretrained))
    if serve.hub and run.model.hub:
        whole, _, _ = run.model.hub.partition("@")  # with the commit, or without
        if hub_name(serve.hub) not in (hub_name(run.model.hub), hub_name(whole)):
            raise Unusable(
                f"run {run.name!r} starts from {run.model.hub} of the hub, and serve.pretrained "
                f'lets this server read hf:{serve.hub}: set it to "hf:{run.model.hub}" if you agree'
            )
        return offer_named(run)
    return run


def has_files(run: RunConfig) -> bool:
    """Return whether the run's first weights can be made here: drawn, or read from known files."""
    return run.start != PRETRAINED or run.model.weights in _files


def offer_base(run: RunConfig, place: str | Path | None) -> RunConfig:
    """Make known the weights that a trained model's base is made of; `place`: as its user says.

    Returns the run, which reads them. Nothing is downloaded that the user has not named.
    """
    if run.start != PRETRAINED:
        return run
    name = run.model.hub.partition("@")[0]
    remedy = "--base FOLDER with its files" + (f", or --base hf:{name} to download it" * bool(name))
    if place is None:
        raise Unusable(
            f"these weights stand on {name or run.model.family}, which is not in their file: "
            f"say {remedy}"
        )
    text = str(place)
    if text.startswith(HF):
        if not name or hub_name(text.removeprefix(HF)) not in ((name, ""), hub_name(run.model.hub)):
            raise Unusable(f"{text} is not what these weights stand on: say {remedy}")
        return offer_named(run)
    digest = offer(Path(text))
    if digest != run.model.weights:
        raise Unusable(
            f"{text} has other tensors than the model that these weights stand on: say {remedy}"
        )

    return _reading(run, digest)


def offer_named(run: RunConfig) -> RunConfig:
    """Make known the model of the hub that a run names, unless it is; returns the run."""
    if run.model.hub in _files.get(run.model.weights, {}):
        return _reading(run, OfferedDigest(run.model.weights, run.model.hub))
    return _reading(run, offer_hub(run.model.hub))


def _reading(run: RunConfig, digest: OfferedDigest) -> RunConfig:
    """The run, which reads these files if they are of its model."""
    if digest != run.model.weights:
        return run
    return dataclasses.replace(run, model=dataclasses.replace(run.model, weights=digest))


def load_blocks(run: RunConfig, blocks: Sequence[nn.Module]) -> None:
    """Copy the blocks' parameters from the files of the run's model."""
    model = _model(_files_of(run), run.model, blocks)
    for parameter, tensor in _loaded(model, list(_wanted(model, blocks))):
        with torch.no_grad():
            parameter.copy_(tensor)


def published_values(
    run: RunConfig, block: nn.Module, names: Collection[str]
) -> Iterator[tuple[str, Tensor]]:
    """Some parameters of a block from the files of the run's model, by their names in it."""
    model = _model(_files_of(run), run.model, [block])
    own = {parameter: name for name, parameter in block.named_parameters() if name in names}
    for parameter, tensor in _loaded(model, list(_wanted(model, [block], names))):
        yield own[parameter], tensor


def _files_of(run: RunConfig) -> WeightFiles:
    files = _known(run.model)
    if files is None:
        hub = run.model.hub
        name = hub.partition("@")[0]
        more = f', or to "hf:{name}" to download this stage\'s part of the hub' if hub else ""
        raise Unusable(
            f"run {run.name!r} starts from pretrained weights: put the files of "
            f"{name or run.model.family} ({ONE_FILE}, or {INDEX} and the parts that it names) into "
            f"a folder, and set serve.pretrained to it{more}"
        )
    return files


def _known(model: ModelConfig) -> WeightFiles | None:
    """The files of a model: those that it was offered with, or the hub's, or the last ones."""
    digest, places = model.weights, _files.get(model.weights, {})
    own = digest.where if isinstance(digest, OfferedDigest) else model.hub
    return places.get(own) or next(reversed(places.values()), None)


def _loaded(
    model: "_PublishedModel", wanted: "Sequence[_ParameterSource]"
) -> Iterator[tuple[nn.Parameter, Tensor]]:
    _require_shapes(model, wanted)
    targets: dict[str, list[nn.Parameter]] = {}
    for each in wanted:
        targets.setdefault(each.name, []).append(each.parameter)
    for made in _made(model, _conversions(wanted)):
        for name, tensor in made.items():
            for parameter in targets.get(name, ()):
                yield parameter, tensor


def check_names(run: RunConfig, blocks: Sequence[nn.Module]) -> None:
    """Raise Unusable unless the run's files have all parameters of `blocks`, in their shapes."""
    model = _model(_files_of(run), run.model, blocks)
    wanted = list(_wanted(model, blocks))
    used = {source for each in _conversions(wanted) for source in each.sources}
    _refuse_others(model, model.places.keys() - used, blocks)
    _require_shapes(model, wanted)


def ends_differ(model: ModelConfig) -> bool:
    """Return whether the files hold two tensors where the config says that one is both ends.

    The library then keeps both, as they are in the files, and ties nothing.
    """
    files = _known(model)
    assert files is not None, "it was offered just before"
    known = _model(files, model, ())
    if not known.whole.was_tied:
        return False
    by_name = known.published.conversions
    for head, embedding in dict(known.whole._tied_weights_keys or {}).items():  # noqa: SLF001
        if head not in by_name or embedding not in by_name:
            continue
        both = _made(known, [by_name[head], by_name[embedding]])
        made = {name: tensor for one in both for name, tensor in one.items()}
        if not torch.equal(made[head], made[embedding]):
            return True
    return False


def _offered(files: WeightFiles, parts_of: WeightFiles) -> OfferedDigest:
    names = json.dumps(files.places(), sort_keys=True).encode()
    digest = hashlib.sha256(b"p2pswarm-pretrained-1:" + names).hexdigest()
    compact = CompactFiles(files, parts_of)
    places = _files.setdefault(digest, {})
    places.pop(files.where, None)
    places[files.where] = compact if compact.any else files
    return OfferedDigest(digest, files.where)


@dataclass(frozen=True, slots=True)
class _PublishedModel:
    """A published model."""

    files: WeightFiles
    places: Mapping[str, str]
    """The file of each tensor."""
    whole: Any
    """The library's, without memory."""
    published: PublishedTensors


@dataclass(frozen=True, slots=True)
class _ParameterSource:
    """A parameter of a block, and what it is made of."""

    name: str
    """In the whole model."""
    conversion: Conversion
    parameter: nn.Parameter


def _model(files: WeightFiles, model: ModelConfig, blocks: Sequence[nn.Module]) -> _PublishedModel:
    """The model whose files these are; Unusable if `blocks` are of none of the library's."""
    if not all(isinstance(block, WholeBlock) for block in blocks):
        raise Unusable('run.start = "pretrained" is for models of transformers: set "random"')
    return _PublishedModel(files, files.places(), whole_model(model), _published(model))


@lru_cache(maxsize=PUBLISHED_KEPT)
def _published(model: ModelConfig) -> PublishedTensors:
    """Of any files of this digest: it is a hash of the names."""
    files = _known(model)
    assert files is not None, "it is asked of files that are known"
    return published_tensors(whole_model(model), files.places())


def _wanted(
    model: _PublishedModel, blocks: Sequence[nn.Module], only: Collection[str] | None = None
) -> Iterator[_ParameterSource]:
    """Every parameter of the blocks, or those of certain names; Unusable for one that the files do
    not make.
    """
    by_name = model.published.conversions
    for block in blocks:
        assert isinstance(block, WholeBlock), "all are the library's"
        for name, parameter in block.named_parameters():
            if only is not None and name not in only:
                continue
            names = block.published_names(name)
            found = next((each for each in names if each in by_name), None)
            if found is None:
                raise Unusable(
                    f"{model.files.where} has no tensor {names[0]}: its files are of another "
                    "model, or older than this version of transformers, which can save them anew"
                )
            yield _ParameterSource(found, by_name[found], parameter)


def _conversions(wanted: Iterable[_ParameterSource]) -> list[Conversion]:
    """What the parameters are made of, each once."""
    return list({each.conversion.names: each.conversion for each in wanted}.values())


def _made(model: _PublishedModel, conversions: Sequence[Conversion]) -> Iterator[dict[str, Tensor]]:
    """The parameters that each conversion makes, as soon as the files have given its tensors."""
    places = model.places
    waiting: dict[str, list[Conversion]] = {}
    for conversion in conversions:
        for source in conversion.sources:
            waiting.setdefault(source, []).append(conversion)
    lacking = {each.names: set(each.sources) for each in conversions}
    kept: dict[str, Tensor] = {}
    for file in sorted({places[source] for source in waiting}):
        names = [source for source in waiting if places[source] == file]
        for source, tensor in model.files.tensors(file, names):
            kept[source] = tensor
            for conversion in waiting[source]:
                lacking[conversion.names].discard(source)
                if not lacking[conversion.names]:
                    yield conversion.made(model.whole, kept)
            for done in waiting[source]:
                for each in done.sources if not lacking[done.names] else ():
                    kept.pop(each, None)


def _require_shapes(model: _PublishedModel, wanted: Sequence[_ParameterSource]) -> None:
    """Raise Unusable for another shape, before any number is read."""
    conversions = _conversions(wanted)
    sources = {source for each in conversions for source in each.sources}
    bare: dict[str, Tensor] = {}
    for file in sorted({model.places[source] for source in sources}):
        names = [source for source in sources if model.places[source] == file]
        for name, shape in model.files.shapes(file, names).items():
            bare[name] = torch.empty(shape, device="meta")
    made: dict[str, Tensor] = {}
    for conversion in conversions:
        made |= conversion.made(model.whole, bare)
    for each in wanted:
        found = tuple(made[each.name].shape) if each.name in made else None
        if found != (due := tuple(each.parameter.shape)):
            first = each.conversion.sources[0]
            what = first if each.conversion.renames else f"{each.name}, made of {first} and others,"
            raise Unusable(
                f"{model.files.where}: {model.places[first]}: {what} has the shape {found}, by "
                f"config.json it is {due}"
            )


def _refuse_others(
    model: _PublishedModel, left: Iterable[str], blocks: Sequence[nn.Module]
) -> None:
    """Raise Unusable for tensors of the files that no parameter is made of, unless they may be."""
    whole = [block for block in blocks if isinstance(block, WholeBlock)]
    ignored = [
        re.compile(each)
        for each in dict.fromkeys(each for block in whole for each in block.ignored)
    ]
    for source in sorted(left):
        if not any(each.search(source) for each in ignored):
            raise Unusable(
                f"{model.files.where}: the model that config.json describes has no tensor "
                f"{source}: its files are of another model, or hold something that is not trained "
                "here"
            )
