"""Settings that a stranger may read: numbers, truth values, named choices; and those to hide."""

import dataclasses
import functools
import typing
from collections.abc import Iterator
from pathlib import PurePath
from typing import Any

from p2pswarm.settings.limits import OneOf

Plain = float | bool | str


def plain_settings(config: object, prefix: str = "") -> dict[str, Plain]:
    """The settings that are numbers, truth values or one of named choices, by their full names."""
    return {
        name: value
        for name, value, choices in _settings(config, prefix)
        if isinstance(value, int | float) or (isinstance(value, str) and value in choices)
    }


def set_texts(config: object, prefix: str = "") -> dict[str, tuple[str, ...]]:
    """The texts and paths that differ from their defaults, by their full names.

    They say what a user has, so they are what nobody else may see.
    """
    default = dict(_texts(type(config)(), prefix))
    return {name: texts for name, texts in _texts(config, prefix) if texts != default.get(name)}


def _texts(config: object, prefix: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    for name, value, choices in _settings(config, prefix):
        texts = tuple(_texts_in(value))
        if texts and not set(texts) <= set(choices):
            yield name, texts


def _texts_in(value: object) -> Iterator[str]:
    match value:
        case str() | PurePath():
            if str(value):
                yield str(value)
        case tuple() | list():
            for each in value:
                yield from _texts_in(each)
        case dict():
            for key, each in value.items():
                yield from _texts_in((key, each))
        case _ if dataclasses.is_dataclass(value):
            for _, of, _ in _settings(value, ""):
                yield from _texts_in(of)


def _settings(config: object, prefix: str) -> Iterator[tuple[str, object, tuple[str, ...]]]:
    """Every setting below a dataclass: its full name, its value, and its named choices."""
    kind: Any = type(config)
    hints = _hints(kind)
    assert dataclasses.is_dataclass(config), "settings are dataclasses"
    for each in dataclasses.fields(config):
        value, name = getattr(config, each.name), prefix + each.name
        if dataclasses.is_dataclass(value):
            yield from _settings(value, f"{name}.")
            continue
        limits = typing.get_args(hints[each.name])[1:]
        choices = [
            choice for limit in limits if isinstance(limit, OneOf) for choice in limit.choices
        ]
        yield name, value, tuple(choices)


@functools.cache
def _hints(kind: type) -> dict[str, object]:
    return typing.get_type_hints(kind, include_extras=True)
