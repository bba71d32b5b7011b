"""Settings of a command line, KEY=VALUE, in the place of those of a file.

A value is read by the type of its setting: a text as it stands, a number, list or table as TOML.

Errors:  ValueError, one line, for a key that is none, with the nearest name.
"""

import dataclasses
import tomllib
import types
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from p2pswarm.settings.config import ModelConfig, OptimizerConfig
from p2pswarm.settings.names import unknown
from p2pswarm.settings.node_config import NodeConfig
from p2pswarm.settings.objective import ObjectiveConfig

SHORT_FOR = {ModelConfig: "family", OptimizerConfig: "name", ObjectiveConfig: "name"}
"""Tables that may be one text."""
ELSEWHERE = {"run.budget": ["train", "budget"]}
"""Settings that are read where people look for them, too, and where they are."""
SHOWN_CHARS = 60  # of what somebody typed, so that the message stays one line
QUOTES = "\"'"


def changed(table: Mapping[str, Any], changes: Sequence[str]) -> dict[str, Any]:
    """The table of a settings file with other values; later changes win."""
    new = dict(table)
    for text in changes:
        key, is_given, value = text.partition("=")
        names = key.strip().split(".")
        if not is_given or not all(names):
            shown = text[:SHOWN_CHARS]
            raise ValueError(f"{shown!r} is not KEY=VALUE, as in --set run.steps=4000")
        place = ELSEWHERE.get(key.strip(), names)
        for other in (other for other, real in ELSEWHERE.items() if real == place):
            _leave_out(new, *other.split("."))  # the file may have it there, too
        _put(new, NodeConfig, place, value.strip())
    return new


def _leave_out(table: dict[str, Any], name: str, setting: str) -> None:
    """Take a setting out of a table in it; the table is copied."""
    inner = table.get(name)
    if isinstance(inner, Mapping) and setting in inner:
        table[name] = {key: value for key, value in inner.items() if key != setting}


def keys_of(changes: Sequence[str]) -> list[str]:
    """The settings that are changed."""
    return [text.partition("=")[0].strip() for text in changes]


def _put(table: dict[str, Any], kind: type, names: Sequence[str], value: str) -> None:
    """Put a value where its names lead; tables on the way are copied, and made if need be."""
    path = ""
    for name in names[:-1]:
        hint = _hint(kind, path, name)
        path = f"{path}.{name}" if path else name
        if not dataclasses.is_dataclass(hint) or not isinstance(hint, type):
            raise ValueError(f"{path} is no table: it has no {names[-1]!r}")
        inner, kind = table.get(name, {}), hint
        if isinstance(inner, str) and kind in SHORT_FOR:
            inner = {SHORT_FOR[kind]: inner}
        table[name] = dict(inner) if isinstance(inner, Mapping) else {}
        table = table[name]
    table[names[-1]] = _value(_hint(kind, path, names[-1]), value)


def _hint(kind: type, path: str, name: str) -> object:
    """The type of a setting, without limits; of one that may be left out, what it is else."""
    hints = typing.get_type_hints(kind)
    if name not in hints:
        raise ValueError(unknown(path, name, sorted(hints)))
    arms = [arm for arm in typing.get_args(hints[name]) if arm is not types.NoneType]
    is_union = typing.get_origin(hints[name]) in (types.UnionType, typing.Union)
    return arms[0] if is_union else hints[name]


def _value(hint: object, text: str) -> object:
    """A value as a file would have it; what cannot be read stays a text, and is refused later."""
    plain = hint in (str, Path)
    if plain and not text.startswith(("[", *QUOTES)):
        return text
    try:
        found = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        return text
    return found["value"] if len(found) == 1 else text
