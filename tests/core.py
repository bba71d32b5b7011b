"""The core of what a test tries: `make test` takes the core, `make test-all` takes all."""

from collections.abc import Collection, Iterable
from typing import Any

import pytest
from hypothesis import settings


def core_of(values: Iterable[Any], core: Collection[Any]) -> list[Any]:
    """The values as parameters, a tuple as several; those outside the core are marked `full`."""
    values = list(values)
    assert set(core) <= set(values), "the core is a part of the values"
    return [
        pytest.param(
            *(value if isinstance(value, tuple) else (value,)),
            marks=() if value in core else pytest.mark.full,
        )
        for value in values
    ]


def examples(count: int) -> int:
    """The number of a property's examples: `count` in full, and a share of it in `make test`."""
    return -(-count * settings.default.max_examples // settings.get_profile("full").max_examples)
