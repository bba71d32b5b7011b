"""The request to leave, as a node's process gives it to its role.

Units:   seconds.
Errors:  none.
"""

import asyncio

LEAVE_S = 3.0  # a person who pressed Ctrl-C waits; leaving after the step saves a replay


class LeaveRequest(asyncio.Event):
    """Set when the node is to leave."""

    def __init__(self) -> None:
        super().__init__()
        self.grace_s = LEAVE_S
        """The most time that leaving may take; final once the event is set."""
