"""Tokens as arrays: of one byte where a token is a byte, else of four, as they travel."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Tokens = NDArray[np.integer[Any]]


def stacked(rows: Sequence[Tokens]) -> Tokens:
    """Rows as one array: uint8 for bytes, int32 for all others, which the wire and torch know."""
    together = np.stack(rows)
    return together if together.dtype == np.uint8 else together.astype(np.int32)
