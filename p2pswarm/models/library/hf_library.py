"""The library `transformers`, loaded when a model of it is asked for, and its whole models.

A model is made on the meta device, from a config that travels in the manifest: nothing is fetched,
and only classes that `transformers` itself has are used. The trainer cuts a folder's config.json
down to what decides about computing. A server checks it again, because a stranger wrote it: what
could make `transformers` fetch something (names of kernels, code of the hub) has no place in it.
"""

import dataclasses
import importlib
import importlib.metadata
import json
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from types import ModuleType
from typing import Any

import torch
from torch import nn

from p2pswarm.base.errors import Unusable, missing_extra
from p2pswarm.models.formats.weight_formats import DTYPES
from p2pswarm.models.library.foreign_code import foreign
from p2pswarm.settings.config import CONFIG_BYTES_MAX, HF, ModelConfig

DEPTH_MAX = 3  # config.json has tables in a table at most: rope parameters by kind of layer
LISTS_DEPTH_MAX = 4  # gpt_neo has lists in lists in a list: kinds of layers, and how many of each
NESTING_MAX = DEPTH_MAX + LISTS_DEPTH_MAX  # tables and lists together
LAYERS_MAX = 1_000  # as `run.model.layers`
PARTS_MAX = 4_096  # experts, heads, groups: modules are made of them
WHOLE_MAX = 1 << 40  # larger whole numbers size nothing
VOCABULARY_MAX = 1 << 22
WIDTH_MAX = 1 << 20
NAME = re.compile(r"_?[A-Za-z][A-Za-z0-9_]{0,63}")
INNER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_]{0,63}")
"""In a table; some have one for each layer, under its number. Nothing there is private."""
WORDS = re.compile(r"[A-Za-z0-9_.+*|,;=()\[\] -]{0,1000}")
"""Kinds and patterns of layers; a name of a file, a site or a kernel has other characters."""
LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
DROPPED = frozenset(
    {
        "_attn_implementation",
        "_attn_implementation_autoset",
        "_name_or_path",
        "architectures",
        "dtype",
        "id2label",
        "label2id",
        "output_attentions",
        "output_hidden_states",
        "return_dict",
        "task_specific_params",
        "torch_dtype",
        "transformers_version",
        "use_cache",
    }
)
"""What says nothing about computing the scores."""
CODE_PLACES = "auto_map"
CODE = {
    CODE_PLACES: "its code is not part of transformers, and no code is fetched: a newer "
    "transformers may have this model_type; else install its code as a package",
    "quantization_config": "its weights are quantised in a way that is not read here: take the "
    "model's plain files (what is read: bitsandbytes' 4 bits, MXFP4, fp8 by blocks)",
    "text_config": "it is a model of more than text: take the config.json of its text part",
    "vision_config": "it is a model of more than text: take the config.json of its text part",
}


def config_text(config: Mapping[str, Any]) -> str:
    """The part of a config.json that travels, as canonical JSON.

    What is no name of an attribute cannot be read by the library's code, so it stays at home.
    """
    text = _canonical(_plain({key: x for key, x in config.items() if key.isidentifier()}, 1))
    read_config(text)
    return text


def read_config(text: str) -> dict[str, Any]:
    """Read what `config_text` wrote; a stranger may have written something else."""
    if len(text) > CONFIG_BYTES_MAX:
        raise ValueError(
            f"the model's config has {len(text):,} bytes; {CONFIG_BYTES_MAX:,} fit a manifest: "
            "leave out of config.json what has its default"
        )
    try:
        config = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the model's config is not JSON: {error}") from error
    if not isinstance(config, dict) or not isinstance(config.get("model_type"), str):
        raise ValueError("the model's config is no table with a model_type")  # noqa: TRY004
    for key, reason in CODE.items():
        if config.get(key) is not None:
            raise ValueError(f"the model's config has {key}: {reason}")
    for key, value in _values(config, 1):
        _check(key, value)
    if text != _canonical(config):
        raise ValueError("the model's config is not in canonical form")
    return config


def _canonical(config: Mapping[str, Any]) -> str:
    """JSON in one form, in ASCII; with Infinity and NaN, which Python reads as it writes them."""
    return json.dumps(config, sort_keys=True, separators=(",", ":"))


def _plain(value: Any, depth: int) -> Any:
    """A value of a config.json without what says nothing; a config in it has such things, too.

    The library writes numbers that JSON has not as tables.
    """
    # Before Python's own limit: other libraries of the process may raise that.
    if depth > NESTING_MAX + 1:
        raise ValueError(
            f"tables and lists more than {NESTING_MAX} deep, too deep to be a model's config"
        )
    match value:
        case {"__float__": "Infinity" | "-Infinity" | "NaN" as name} if len(value) == 1:
            return float(name)
        case dict():
            return {
                key: _plain(inner, depth + 1) for key, inner in value.items() if key not in DROPPED
            }
        case list():
            return [_plain(inner, depth + 1) for inner in value]
        case _:
            return value


def chances(config: Mapping[str, Any]) -> list[str]:
    """The settings that make a forward draw: dropout, and noise in a router."""
    return [
        key
        for key, value in config.items()
        if isinstance(value, int | float)
        and value > 0
        and ("dropout" in key or "pdrop" in key or "jitter" in key or "layerdrop" in key)
    ]


def _values(value: object, depth: int, key: str = "") -> Iterator[tuple[str, object]]:
    """Every value that is no table and no list, with the name that it stands under."""
    if isinstance(value, dict):
        if depth > DEPTH_MAX:
            raise ValueError(f"the model's config has tables more than {DEPTH_MAX} deep")
        names = NAME if depth == 1 else INNER_NAME
        for name, inner in value.items():
            if not names.fullmatch(name):
                raise ValueError(f"the model's config has the key {name!r}, which is no name")
            yield from _values(inner, depth + 1, name)
    elif isinstance(value, list):
        yield from _listed(value, 1, key)
    else:
        yield key, value


def _listed(values: list[Any], depth: int, key: str) -> Iterator[tuple[str, object]]:
    if depth > LISTS_DEPTH_MAX:
        raise ValueError(f"the model's config has lists more than {LISTS_DEPTH_MAX} deep in {key}")
    for inner in values:
        if isinstance(inner, dict):
            raise ValueError(f"the model's config has tables in the list {key}")  # noqa: TRY004
        if isinstance(inner, list):
            yield from _listed(inner, depth + 1, key)
        elif depth > 1 and type(inner) is int and not 0 <= inner <= LAYERS_MAX:
            # it says how often the list beside it counts
            raise ValueError(f"the model's config: {key} has {inner}, not 0 to {LAYERS_MAX}")
        else:
            yield key, inner


def _check(key: str, value: object) -> None:
    match value:
        case bool() | float() | None:
            return
        case str():
            if not WORDS.fullmatch(value):
                raise ValueError(
                    f"the model's config: {key} is {value[:60]!r}, which is more than plain words"
                )
        case int():
            low, high = -WHOLE_MAX, WHOLE_MAX
            if key in LAYERS:
                low, high = 1, LAYERS_MAX
            elif key == "vocab_size":
                low, high = 1, VOCABULARY_MAX
            elif key.endswith(("_size", "_dim", "_rank", "n_embd", "n_inner", "n_positions")):
                low, high = 0, WIDTH_MAX
            elif key.startswith(("num_", "n_")):
                low, high = 0, PARTS_MAX
            if not low <= value <= high:
                raise ValueError(f"the model's config: {key} is {value}, not {low} to {high}")
        case _:
            raise ValueError(f"the model's config: {key} is no value of JSON")


LIBRARY = "transformers"
OWN_CONVERSIONS = frozenset({"mixtral"})  # it names no other's rule
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
            raise missing_extra(f"a model of transformers needs {error.name}", "hf") from error
    found.logging.set_verbosity_error()  # what it warns of are tokens and files, not models
    found.logging.disable_progress_bar()  # stderr is ours
    return found


def library_module(name: str) -> ModuleType:
    """A module of the library."""
    return importlib.import_module(f"{library().__name__}.{name}")


def conversion_of(family: str) -> str:
    """The name of the rule by which the library reads older files of a family; empty if none."""
    kind = family.removeprefix(HF)
    if kind in OWN_CONVERSIONS:
        return kind
    rules: Mapping[str, str] = library_module("conversion_mapping")._MODEL_TO_CONVERSION_PATTERN  # noqa: SLF001
    return rules.get(kind, "")


def requirement() -> str:
    """The library as a manifest names it: another version may compute something else."""
    library()
    return f"{LIBRARY}=={importlib.metadata.version(LIBRARY)}"


def settings_of_class(config: Mapping[str, Any]) -> dict[str, Any]:
    """What the library's own class reads of a config.

    Of private names it reads those that it declares, such as OPT's `_remove_final_layer_norm`. Code
    that a config names beside it is for versions that lacked the class.
    """
    kind = str(config.get("model_type"))
    private, there = _private_settings(kind), kind in library().CONFIG_MAPPING
    return {
        key: value
        for key, value in config.items()
        if (not key.startswith("_") or key in private) and not (there and key == CODE_PLACES)
    }


def _private_settings(kind: str) -> frozenset[str]:
    """The private names that the class of a model's config declares itself."""
    if kind not in library().CONFIG_MAPPING:
        return frozenset()
    own, every = library().CONFIG_MAPPING[kind], library().PreTrainedConfig
    names = {field.name for field in dataclasses.fields(own)}
    names -= {field.name for field in dataclasses.fields(every)}
    return frozenset(name for name in names if name.startswith("_"))


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
    known = library_module("models.auto.modeling_auto")
    if kind not in known.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        raise Unusable(
            f"{kind!r} is no causal language model of {requirement()}: docs/models.md names "
            "families that work; a newer transformers may know more"
        )
    if strange := values.keys() - settings_of_class({"model_type": kind} | values).keys():
        raise Unusable(
            f"the model's config has {min(strange)}, which is no setting of {kind} in "
            f"{requirement()}: leave it out"
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


def whole_model(model: ModelConfig, attention: str | None = None) -> nn.Module:
    """The whole model on the meta device, with two tensors where it is tied; do not change it.

    `attention`: by the name that the library was told of it; None: as the library chooses.
    `was_tied`: its config says that embedding and head are one; `is_tied`: the settings, too.
    """
    return _whole_model(model, attention)  # by place: a default and its value are one model


@lru_cache(maxsize=WHOLE_KEPT)
def _whole_model(model: ModelConfig, attention: str | None) -> nn.Module:
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
            "which lie on different machines: set it to false in config.json, and "
            "run.model.router_loss to true: that balances each layer's"
        )
    config.tie_word_embeddings = False
    config._attn_implementation = attention  # noqa: SLF001  the library's
    with foreign(f"{requirement()} makes no model of this config"), torch.device("meta"):
        whole: nn.Module = library().AutoModelForCausalLM.from_config(
            config, dtype=DTYPES[model.dtype]
        )
    whole.was_tied = tied  # type: ignore[assignment]
    whole.is_tied = bool(model.tie)  # type: ignore[assignment]
    config.tie_word_embeddings = whole.is_tied
    return whole


def owners(module: nn.Module, owner: Any) -> Iterator[tuple[Any, nn.Module]]:
    """Every module inside, the inmost first, each with the model that initialises it."""
    for child in module.children():
        yield from owners(child, child if hasattr(child, "_init_weights") else owner)
    yield owner, module


def library_model(model: ModelConfig, dtype: torch.dtype) -> nn.Module:
    """The library's own model with memory for its weights, to compare with.

    Its constants have the numbers that they have when the library loads files in this dtype: there
    it computes them after it has made the model, and in float32 where their code does not say.
    """
    config = library_config(model)
    config.tie_word_embeddings = bool(model.tie)
    whole: nn.Module = library().AutoModelForCausalLM.from_config(config, dtype=dtype)
    for owner, module in owners(whole, whole):
        if any(True for _ in module.buffers(recurse=False)):
            owner._init_weights(module)  # noqa: SLF001  the library's
    return whole.to(dtype).train()
