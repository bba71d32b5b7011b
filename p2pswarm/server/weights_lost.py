"""When a server's weights cannot follow the run any more, or its device cannot go on.

Errors:  those that it is for.
"""

from p2pswarm.base.errors import NotServing, SwarmError, Unusable


class WeightsLost(NotServing):
    """The stage has moved on, and the weights here cannot: they have to be fetched again."""


def lost_by(error: SwarmError, what: str) -> SwarmError:
    """What follows of an error: the weights are lost, or the whole device is, which is worse."""
    return error if isinstance(error, Unusable) else WeightsLost(f"{what}: {error}")
