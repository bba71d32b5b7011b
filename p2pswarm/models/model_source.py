"""The model of a run as its manifest names it, from what the trainer's settings say.

A folder's config.json becomes text in the manifest, and code is named with its package and
version. So every member makes the same model without the trainer's files.
"""

import dataclasses
import json
from pathlib import Path
from typing import Any

import torch
from torch import nn

from p2pswarm.base.errors import Unusable
from p2pswarm.base.files import read_small
from p2pswarm.data.hub import pinned_file
from p2pswarm.models import registry as packages
from p2pswarm.models.blocks import block_count, cut_into, make_blocks
from p2pswarm.models.library.hf_library import (
    config_text,
    library_config,
    requirement,
    settings_of_class,
)
from p2pswarm.models.own_weights import settled_start
from p2pswarm.models.pretrained import (
    check_names,
    ends_differ,
    offer,
    offer_hub,
    offer_named,
)
from p2pswarm.models.scope import settled_scope
from p2pswarm.settings.config import HF, PRETRAINED, ModelConfig, RunConfig
from p2pswarm.settings.parser import RUN_BYTES_MAX, run_to_json

CONFIG_FILE = "config.json"
FILE_BYTES_MAX = 1 << 20  # most have 1 kB; some name a thousand labels
BYTES = 256
"""The tokens of text as bytes, which a vocabulary has room for."""
INSTEAD = (
    f"put its {CONFIG_FILE}, and its safetensors files to start from them, into a folder, and say "
    'run.model = "hf:FOLDER"'
)


def resolved(run: RunConfig) -> RunConfig:
    """The run with its model as a manifest names it; one that has that already stays as it is."""
    run = settled_start(run)
    model = run.model
    if model.folder is not None:
        model = _of_place(model, model.folder, starts=run.start == PRETRAINED)
    elif packages.is_place(model.family):
        packages.trust([packages.package_of(model.family)])  # by the user's own settings
        if not model.package:
            model = dataclasses.replace(model, package=packages.requirement_of(model.family))
    if run.start == PRETRAINED and not model.weights:
        model = _with_weights(run, model)
    elif run.start == PRETRAINED and model.hub:
        offer_named(run)  # settings that were resolved before, as `p2pswarm plan` writes them
    found = run if model == run.model else dataclasses.replace(run, model=model)
    if found.has_base:
        found = _with_scope(found)
    if (size := len(run_to_json(found))) > RUN_BYTES_MAX:
        raise Unusable(
            f"the run's settings have {size:,} bytes, and a manifest has room for "
            f"{RUN_BYTES_MAX:,}: leave out of {CONFIG_FILE} what has its default"
        )
    return found


def _with_weights(run: RunConfig, model: ModelConfig) -> ModelConfig:
    """The model with the digest of the weights that the run starts from.

    Unusable if they do not fit. Ends that differ in the files are two tensors, whatever the config
    says: so the library reads them.
    """
    folder = run.model.folder
    if model.hub:
        digest = offer_hub(model.hub)
    elif folder is not None:
        digest = offer(folder)
    else:
        raise Unusable(
            'run.start = "pretrained" needs weights in a folder, or of the hub: '
            'run.model = "hf:FOLDER" or "hf:NAME"'
        )
    model = dataclasses.replace(model, weights=digest)
    if model.tie and ends_differ(model):
        if run.model.tie:
            raise Unusable(
                "run.model.tie is true, and in the files embedding and head are two tensors that "
                "differ: leave it out, or set it to false"
            )
        model = dataclasses.replace(model, tie=False)
    whole = dataclasses.replace(run, model=model)
    check_names(whole, _all_blocks(whole))
    return model


def _with_scope(run: RunConfig) -> RunConfig:
    """The run with an adapter that has names in the place of patterns."""
    found = settled_scope(run, _all_blocks(run))
    return run if found == run.adapter else dataclasses.replace(run, adapter=found)


def _all_blocks(run: RunConfig) -> list[nn.Module]:
    """All blocks of the model itself, without memory."""
    bare = dataclasses.replace(cut_into(run, 1), adapter=None, base="full")
    with torch.device("meta"):
        return make_blocks(bare, range(block_count(run.model)))


def _of_place(model: ModelConfig, folder: Path, *, starts: bool) -> ModelConfig:
    """The model of a folder, or where there is none of that name, of the hub.

    `starts`: the run begins with its weights, so the manifest says which these are.
    """
    if model.hub and not folder.exists():
        try:
            pinned, path = pinned_file(model.hub, CONFIG_FILE, FILE_BYTES_MAX, INSTEAD)
        except Unusable as error:
            raise Unusable(f"run.model: there is no folder {folder}; {error}") from error
        return _of_config(dataclasses.replace(model, hub=str(pinned) if starts else ""), path)
    path = folder / CONFIG_FILE
    if not path.is_file():
        raise Unusable(
            f"run.model: there is no {path}: hf: names a folder on this machine, or a model of "
            f"the hub as OWNER/NAME; put the model's {CONFIG_FILE} there"
        )
    return _of_config(dataclasses.replace(model, hub=""), path)


def _is_readable(quantisation: object) -> bool:
    """Return whether weights that are quantised so are read as dense ones."""
    match quantisation:
        case {"quant_method": "bitsandbytes", "load_in_4bit": True}:
            return True
        case {"quant_method": "mxfp4"}:
            return True
        case {"quant_method": "fp8", "weight_block_size": [_, _]}:
            return True
        case _:
            return False


def _of_config(model: ModelConfig, path: Path) -> ModelConfig:
    try:
        found = json.loads(read_small(path, FILE_BYTES_MAX, "it is no config of a model"))
    except (ValueError, RecursionError) as error:
        raise Unusable(f"run.model: {path} is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise Unusable(f"run.model: {path} is no table of settings")
    if _is_readable(found.get("quantization_config")):
        del found["quantization_config"]  # files say by their tensors what they are
    try:
        text = config_text(settings_of_class(found))
    except ValueError as error:
        raise Unusable(f"run.model: {path}: {error}") from error
    kind = found["model_type"]
    bare = dataclasses.replace(model, family=f"{HF}{kind}", folder=None, config=text)
    config: Any = library_config(bare)
    if config.vocab_size < BYTES:
        raise Unusable(
            f"run.model: {path}: a vocabulary of {config.vocab_size} tokens has no room for the "
            f"{BYTES} of text as bytes"
        )
    tied = bool(getattr(config, "tie_word_embeddings", False))
    return dataclasses.replace(
        bare,
        package=requirement(),
        tie=tied if model.tie is None else model.tie,
        vocabulary=config.vocab_size,
        d_model=config.hidden_size,
        layers=config.num_hidden_layers,
        heads=config.num_attention_heads,
    )
