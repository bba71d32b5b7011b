"""The configuration of a `transformers` model as a manifest carries it: checked data, no code.

A folder's config.json is read by the trainer, cut down to what decides about computing, and travels
in the manifest. A server checks it again, because a stranger wrote it. What could make
`transformers` fetch something (names of kernels, code of the hub) has no place in it.

Units:   characters of JSON.
Errors:  ValueError, one line, for what is not allowed.
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from p2pswarm.settings.config import CONFIG_CHARS_MAX

DEPTH_MAX = 3  # config.json has tables in a table at most: rope parameters by kind of layer
LAYERS_MAX = 1_000  # as `run.model.layers`
PARTS_MAX = 4_096  # experts, heads, groups: modules are made of them
WHOLE_MAX = 1 << 40  # larger whole numbers size nothing
VOCABULARY_MAX = 1 << 22
WIDTH_MAX = 1 << 20
NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")
WORD = re.compile(r"[A-Za-z0-9_.+-]{0,64}")
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
PATTERN, LAYER_TYPES = "_sliding_window_pattern", "layer_types"
"""Gemma 3's config.json has both, and the library reads the first where the second is missing."""
CODE = {
    "auto_map": "its code is not part of transformers, and no code is fetched: take auto_map out "
    "if transformers has this model_type itself, or install its code as a package",
    "quantization_config": "its weights are quantized, and such weights do not train",
    "text_config": "it is a model of more than text: take the config.json of its text part",
    "vision_config": "it is a model of more than text: take the config.json of its text part",
}


def config_text(config: Mapping[str, Any]) -> str:
    """What of a config.json travels, as canonical JSON."""
    dropped = DROPPED | ({PATTERN} if LAYER_TYPES in config else set())
    kept = {key: value for key, value in config.items() if key not in dropped}
    text = json.dumps(kept, sort_keys=True, separators=(",", ":"))
    read_config(text)
    return text


def read_config(text: str) -> dict[str, Any]:
    """Read what `config_text` wrote; a stranger may have written something else."""
    if len(text) > CONFIG_CHARS_MAX:
        raise ValueError(
            f"the model's config has {len(text)} characters; {CONFIG_CHARS_MAX} fit a manifest: "
            "leave out of config.json what has its default"
        )
    try:
        config = json.loads(text, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the model's config is not JSON: {error}") from error
    if not isinstance(config, dict) or not isinstance(config.get("model_type"), str):
        raise ValueError("the model's config is no table with a model_type")  # noqa: TRY004
    for key, reason in CODE.items():
        if config.get(key) is not None:
            raise ValueError(f"the model's config has {key}: {reason}")
    for key, value in _values(config, 1):
        _check(key, value)
    if text != json.dumps(config, sort_keys=True, separators=(",", ":")):
        raise ValueError("the model's config is not in canonical form")
    return config


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
        for name, inner in value.items():
            if not NAME.fullmatch(name):
                raise ValueError(f"the model's config has the key {name!r}, which is no name")
            yield from _values(inner, depth + 1, name)
    elif isinstance(value, list):
        for inner in value:
            if isinstance(inner, dict | list):
                raise ValueError(f"the model's config has lists in the list {key}")  # noqa: TRY004
            yield key, inner
    else:
        yield key, value


def _check(key: str, value: object) -> None:
    match value:
        case bool() | float() | None:
            return
        case str():
            if not WORD.fullmatch(value):
                raise ValueError(f"the model's config: {key} is {value[:60]!r}, not one word")
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


def _no_number(name: str) -> object:
    raise ValueError(f"{name} is no number")
