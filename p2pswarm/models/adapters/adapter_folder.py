"""The files of an adapter, as PEFT writes and reads them: a config, and the factors by their names.

PEFT only warns of a tensor under a name that it does not expect, and computes without it. So what
is read here, our own files too, has to have the very names and shapes that the model's adapter has.

Errors:  Unusable for files that are no adapter of this model.
Source:  `save_pretrained` of PEFT 0.21.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from p2pswarm.base.errors import Unusable, one_line
from p2pswarm.base.files import read_small
from p2pswarm.models.adapters.adapter_targets import Target, ends_with, nearest, pattern_entry
from p2pswarm.settings.adapter_config import AdapterConfig
from p2pswarm.settings.parser import from_values

CONFIG_FILE, WEIGHTS_FILE = "adapter_config.json", "adapter_model.safetensors"
PREFIX = "base_model.model."  # before a parameter's name in the whole model
PLAIN: Mapping[str, object] = {
    "bias": "none",
    "layers_to_transform": None,
    "exclude_modules": None,
    "trainable_token_indices": None,
    "layer_replication": None,
    "alora_invocation_tokens": None,
}
"""What a config may say otherwise, and then is of no use here."""
INITS = frozenset({"gaussian", "orthogonal", "eva"})
"""Ways to draw first factors that leave the base as it is."""
CONFIG_BYTES_MAX = 1 << 20  # a name for each of some thousand modules


@dataclass(frozen=True, slots=True)
class BaseModel:
    """What an adapter's config says of the model that it is for."""

    name: str
    """A folder, or a name of the hub."""
    commit: str = ""


def adapter_config(
    adapter: AdapterConfig, targets: Sequence[Target], base: BaseModel
) -> dict[str, Any]:
    """The table of adapter_config.json.

    `adapter`: a settled one; `targets`: all that could have one.
    """
    modules, parameters = list[str](), list[str]()
    conv_1d = False
    for entry in adapter.targets:
        for target in targets:
            if ends_with(target.name, entry):
                (parameters if target.parameter else modules).append(entry)
                conv_1d |= type(target.module).__name__ == "Conv1D"
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base.name,
        "revision": base.commit or None,
        "r": adapter.rank,
        "lora_alpha": _whole(adapter.alpha),
        "lora_dropout": adapter.dropout,
        "target_modules": list(dict.fromkeys(modules)),
        "target_parameters": list(dict.fromkeys(parameters)) or None,
        "rank_pattern": {k: int(v) for k, v in _patterns(adapter.rank_pattern).items()},
        "alpha_pattern": _patterns(adapter.alpha_pattern),
        "modules_to_save": list(adapter.train) or None,
        "bias": "none",
        "fan_in_fan_out": conv_1d,
        "use_rslora": adapter.rslora,
        "use_dora": False,
        "inference_mode": True,
    }


def write_adapter(folder: Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Write both files; `tensors`: by their names in the whole model. OSError of the disk."""
    text = json.dumps(config, indent=2, sort_keys=True) + "\n"
    (folder / CONFIG_FILE).write_text(text, encoding="utf-8")
    named = {f"{PREFIX}{name}": tensor.contiguous() for name, tensor in tensors.items()}
    save_file(named, folder / WEIGHTS_FILE, metadata={"format": "pt"})


def read_adapter(folder: Path, shapes: Mapping[str, Sequence[int]]) -> dict[str, Tensor]:
    """The tensors of an adapter by their names in the whole model, whose shapes they must have."""
    path = folder / WEIGHTS_FILE
    try:
        with safe_open(path, "pt", "cpu") as file:
            found = {name.removeprefix(PREFIX): name for name in file.keys()}  # noqa: SIM118
            for name, there in found.items():
                if there == name or name not in shapes:
                    hint = nearest(name, shapes)
                    raise Unusable(f"{path}: {there} is no tensor of this adapter{hint}")
            for name, due in shapes.items():
                if name not in found:
                    raise Unusable(f"{path}: {PREFIX}{name} is missing: name a whole adapter")
                if (shape := file.get_slice(found[name]).get_shape()) != list(due):
                    raise Unusable(f"{path}: {found[name]} is {shape}, and {list(due)} is due")
            return {name: file.get_tensor(there) for name, there in found.items()}
    except (OSError, SafetensorError) as error:
        reason = one_line(error)
        raise Unusable(f"{path}: cannot be read: {reason}: name an adapter's folder") from error


def read_adapter_config(folder: Path) -> dict[str, Any]:
    """The table of an adapter's config; Unusable for another kind of adapter."""
    path = folder / CONFIG_FILE
    try:
        found = json.loads(read_small(path, CONFIG_BYTES_MAX, "it is no adapter's config"))
    except (ValueError, RecursionError) as error:
        raise Unusable(f"{path} is not JSON: {error}") from error
    if not isinstance(found, dict) or found.get("peft_type") != "LORA":
        raise Unusable(f"{path}: its peft_type is not LORA: other adapters are not known here")
    for key in ("use_dora", "lora_bias"):
        if found.get(key):
            raise Unusable(f"{path}: {key} is not known here: train an adapter without it")
    return found


def adapter_settings(folder: Path) -> AdapterConfig:
    """What an adapter's config says, as `run.adapter` does; Unusable for more than that can say."""
    found = read_adapter_config(folder)
    for key, plain in PLAIN.items():
        if found.get(key) not in (None, plain):
            raise Unusable(f"{folder / CONFIG_FILE}: {key} is not known here: train another")
    for key, value in found.items():
        if key.startswith("use_") and value and key != "use_rslora":
            raise Unusable(f"{folder / CONFIG_FILE}: {key} is not known here: train another")
    if isinstance(found.get("init_lora_weights"), str) and found["init_lora_weights"] not in INITS:
        raise Unusable(
            f"{folder / CONFIG_FILE}: init_lora_weights {found['init_lora_weights']!r} has changed "
            "the base: have PEFT convert it, or train another"
        )
    modules, parameters = found.get("target_modules") or (), found.get("target_parameters") or ()
    if isinstance(modules, str) and parameters:
        raise Unusable(
            f"{folder / CONFIG_FILE}: target_modules is one pattern beside target_parameters: have "
            "it name modules"
        )
    whole = found.get("modules_to_save") or ()
    try:
        values = {
            "rank": found["r"],
            "alpha": found["lora_alpha"],
            "targets": modules if isinstance(modules, str) else (*modules, *parameters),
            "rslora": bool(found.get("use_rslora")),
            "dropout": found.get("lora_dropout") or 0.0,
            "rank_pattern": _entries_of(found.get("rank_pattern")),
            "alpha_pattern": _entries_of(found.get("alpha_pattern")),
            "train": (whole,) if isinstance(whole, str) else tuple(whole),
        }
        return from_values(AdapterConfig, values, "run.adapter")
    except (KeyError, TypeError, AttributeError) as error:
        raise Unusable(f"{folder / CONFIG_FILE} is no whole config of LoRA: {error!r}") from error
    except ValueError as error:
        raise Unusable(f"{folder / CONFIG_FILE} does not fit: {error}") from error


def base_of(folder: Path) -> BaseModel:
    """The model that an adapter's config is for; its name may be empty."""
    found = read_adapter_config(folder)
    name, commit = found.get("base_model_name_or_path"), found.get("revision")
    return BaseModel(str(name or ""), str(commit or ""))


def _entries_of(patterns: Any) -> tuple[str, ...]:
    return tuple(pattern_entry(name, float(n)) for name, n in sorted((patterns or {}).items()))


def _patterns(entries: Sequence[str]) -> dict[str, float]:
    """PEFT reads names as regular expressions."""
    pairs = (entry.rpartition("=") for entry in entries)
    return {re.escape(name): _whole(float(number)) for name, _, number in pairs}


def _whole(number: float) -> float:
    """A whole number as one: PEFT's own files have no 16.0."""
    return int(number) if number.is_integer() else number
