"""Functions on arrays and numbers, compiled by numba at their first call.

Compiled code is kept beside the source or in the user's cache, so it costs seconds once. Other
threads run while it does.
"""

from collections.abc import Callable
from typing import ParamSpec, TypeVar, cast

import numba

P = ParamSpec("P")
R = TypeVar("R")


def compiled(function: Callable[P, R]) -> Callable[P, R]:
    """The function, compiled; it may call other compiled ones."""
    return cast(Callable[P, R], numba.njit(cache=True, error_model="numpy", nogil=True)(function))


def inlined(function: Callable[P, R]) -> Callable[P, R]:
    """As `compiled`, for what a compiled function calls at every turn: it becomes part of it.

    A call hands over some ten words for each array, and counts references to it.
    """
    njit = numba.njit(cache=True, error_model="numpy", nogil=True, forceinline=True)
    return cast(Callable[P, R], njit(function))
