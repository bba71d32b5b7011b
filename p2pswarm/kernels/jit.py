"""Functions on arrays and numbers, compiled by numba.

Compiled code is kept beside the source or in the user's cache, so it costs seconds once. Other
threads run while it does. A sum of a product is never fused: LLVM does that only where it is asked
to, so every processor rounds twice, as torch's elementwise functions do.
"""

from collections.abc import Callable
from typing import ParamSpec, TypeVar, cast

import numba

P = ParamSpec("P")
R = TypeVar("R")


def compiled(function: Callable[P, R]) -> Callable[P, R]:
    """The function, compiled at its first call; it may call other compiled ones."""
    return cast(Callable[P, R], numba.njit(cache=True, error_model="numpy", nogil=True)(function))


def compiled_for(signature: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """As `compiled`, at once and for these types alone: no call has to wait for a compiler.

    The signature is numba's, as "int64(float32[::1], int64)".
    """

    def compiled_now(function: Callable[P, R]) -> Callable[P, R]:
        njit = numba.njit(signature, cache=True, error_model="numpy", nogil=True)
        return cast(Callable[P, R], njit(function))

    return compiled_now


def inlined(function: Callable[P, R]) -> Callable[P, R]:
    """As `compiled`, for what a compiled function calls at every turn: it becomes part of it.

    A call hands over some ten words for each array, and counts references to it.
    """
    njit = numba.njit(cache=True, error_model="numpy", nogil=True, forceinline=True)
    return cast(Callable[P, R], njit(function))
