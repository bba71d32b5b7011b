"""Why a group of tasks failed, in one exception.

A `TaskGroup` raises a group even for one failure. Its callers handle one error: a bug if there is
one, for it must be seen, else the first of ours.
"""

from p2pswarm.errors import SwarmError


def cause_of(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The exception that stands for all of a group."""
    leaves = _leaves(group)
    return next((error for error in leaves if not isinstance(error, SwarmError)), leaves[0])


def _leaves(group: BaseExceptionGroup[BaseException]) -> list[BaseException]:
    """All that are not groups themselves, in order."""
    found: list[BaseException] = []
    for error in group.exceptions:
        found += _leaves(error) if isinstance(error, BaseExceptionGroup) else [error]
    return found
