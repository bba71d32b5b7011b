"""The one exception that explains why a group of tasks failed.

A `TaskGroup` raises an exception group even for one failure, but its callers handle one error. A
bug goes first, because it must be seen; otherwise the first SwarmError counts.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from p2pswarm.base.errors import SwarmError


@contextmanager
def raising_cause() -> Iterator[None]:
    """Run a block; of a group that it raises, raise the exception that stands for all."""
    try:
        yield
    except BaseExceptionGroup as group:
        raise cause_of(group) from None


def cause_of(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The exception that stands for all of a group."""
    leaves = _leaves(group)
    return next((error for error in leaves if not isinstance(error, SwarmError)), leaves[0])


def _leaves(group: BaseExceptionGroup[BaseException]) -> list[BaseException]:
    """The exceptions that are not groups themselves, in order."""
    found: list[BaseException] = []
    for error in group.exceptions:
        found += _leaves(error) if isinstance(error, BaseExceptionGroup) else [error]
    return found
