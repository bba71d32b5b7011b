"""Errors of this machine's own after which a later try may work, so that launchers may try again.

The exit code is 1. No other peer is told of them.
"""

from p2pswarm.base.errors import RunEnded, SwarmError, Unusable


class DeviceLost(Unusable):
    """A device that fails whatever it is given: the fault is this machine's, not the run's.

    It mostly works again in a new process.
    """


class NobodyAnswers(Unusable):
    """Nodes that should know do not answer: they may begin after this one, or be away a moment."""


def is_transient(error: SwarmError) -> bool:
    """Return whether a later try may work; all else fails until its user has corrected it."""
    return isinstance(error, RunEnded | DeviceLost | NobodyAnswers)
