"""Parameters of a test of which `make test` takes the core, and `make test-all` takes all."""

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def core_of(values: Iterable[Any], core: Collection[Any]) -> list[Any]:
    """The values as parameters; those outside the core are marked `full`."""
    values = list(values)
    assert set(core) <= set(values), "the core is a part of the values"
    return [
        pytest.param(value, marks=() if value in core else pytest.mark.full) for value in values
    ]
