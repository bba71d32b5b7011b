"""The library `transformers`, loaded when a model of it is asked for, and its whole models.

A model is made on the meta device, from a config that travelled as text: nothing is fetched, and
only classes that `transformers` itself has are used.

Errors:  Unusable, one line with the remedy.
"""

import importlib
import importlib.metadata
from functools import lru_cache
from types import ModuleType
from typing import Any

import torch
from torch import nn

from p2pswarm.base.errors import Unusable
from p2pswarm.models.config_text import read_config
from p2pswarm.models.foreign_code import foreign
from p2pswarm.settings.config import ModelConfig

LIBRARY = "transformers"
WHOLE_KEPT = 4  # models without memory for weights; a process serves one or two
OTHER_PARTS = ("audio", "text", "vision", "vq_")
"""How the configs in a config begin that belong to a model of more than text."""
SIZES = ("vocab_size", "hidden_size", "num_hidden_layers")
"""What a config of a causal language model says, under these names or others that mean them."""


@lru_cache(maxsize=1)
def library() -> ModuleType:
    """The module; Unusable where it is not installed."""
    with foreign(f"{LIBRARY} cannot be imported"):
        try:
            found = importlib.import_module(LIBRARY)
        except ImportError as error:
            raise Unusable(
                f"a model of transformers needs {error.name}: pip install 'p2pswarm[hf]'"
            ) from error
    found.logging.set_verbosity_error()  # what it warns of are tokens and files, not models
    found.logging.disable_progress_bar()  # stderr is ours
    return found


def requirement() -> str:
    """The library as a manifest names it: another version may compute something else."""
    library()
    return f"{LIBRARY}=={importlib.metadata.version(LIBRARY)}"


def library_config(model: ModelConfig) -> Any:
    """The config as the library's own class has it."""
    if not model.config:
        raise Unusable(
            f"family {model.family!r} comes without a config: name its folder, hf:FOLDER"
        )
    try:
        values = read_config(model.config)
    except ValueError as error:
        raise Unusable(str(error)) from error
    kind = values.pop("model_type")
    known = importlib.import_module(f"{library().__name__}.models.auto.modeling_auto")
    if kind not in known.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        raise Unusable(
            f"{kind!r} is no causal language model of {requirement()}: docs/models.md names "
            "families that work; a newer transformers may know more"
        )
    with foreign(f"the config of {kind} is refused by {requirement()}"):
        config = library().AutoConfig.for_model(kind, **values)
    if any(key.startswith(OTHER_PARTS) for key in config.sub_configs):
        raise Unusable(
            f"{kind} is a model of more than text: take the config.json of its text part"
        )
    if missing := [name for name in SIZES if not hasattr(config, name)]:
        raise Unusable(
            f"{kind} cannot be cut: its config has no {missing[0]}: "
            "docs/models.md names families that work"
        )
    if model.dtype == "float64":
        config._experts_implementation = "eager"  # noqa: SLF001  the fast one has no float64
    return config


@lru_cache(maxsize=WHOLE_KEPT)
def whole_model(model: ModelConfig) -> nn.Module:
    """The whole model on the meta device, with two tensors where it is tied; do not change it.

    `was_tied`: its config says that embedding and head are one; `is_tied`: the settings, too.
    """
    config = library_config(model)
    tied = bool(getattr(config, "tie_word_embeddings", False))
    if tied and model.tie is None:
        raise Unusable(
            f"{model.family}: by its config embedding and head are one tensor, and the run does "
            "not say whether they stay one: set run.model.tie to true or false"
        )
    if model.tie and not tied:
        raise Unusable(
            f"{model.family}: by its config.json embedding and head are two tensors: leave "
            "run.model.tie out, or set tie_word_embeddings there"
        )
    if getattr(config, "output_router_logits", False):
        raise Unusable(
            f"{model.family}: output_router_logits adds a loss over the routers of all layers, "
            "which lie on different machines: set it to false in config.json"
        )
    config.tie_word_embeddings = False
    with foreign(f"{requirement()} makes no model of this config"), torch.device("meta"):
        whole: nn.Module = library().AutoModelForCausalLM.from_config(config)
    whole.was_tied = tied  # type: ignore[assignment]
    whole.is_tied = bool(model.tie)  # type: ignore[assignment]
    config.tie_word_embeddings = whole.is_tied
    return whole


def library_model(model: ModelConfig, dtype: torch.dtype) -> nn.Module:
    """The library's own model with memory for its weights, to compare with."""
    config = library_config(model)
    config.tie_word_embeddings = bool(model.tie)
    whole: nn.Module = library().AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    return whole.to(dtype).train()  # as blocks are made: constants have float32's numbers
