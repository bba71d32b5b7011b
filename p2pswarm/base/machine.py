"""The contract of everything that has a deadline and no clock of its own: a machine of pure rules.

A machine is given inputs and the time, and says what is to be done and when it is to be woken. What
awaits for it (its shell) gives one input, drains it, carries out all that came, and asks for the
next deadline. So a test, a simulation and the network drive the same rules.

    inputs            methods `on_<noun>(..., now_s)`: something has happened
    drain()           what is to be done by now, in order; it is handed out once
    next_deadline_s() when to call `on_deadline`, if nothing happens before; None: never
    on_deadline       that time has come; a call before it, or long after it, does no harm

Units:   seconds on the clock of whoever calls, which never goes back.
Source:  h11 and quinn-proto, whose protocols are machines without a socket.
"""

from collections.abc import Sequence
from typing import Protocol, TypeVar

Output_co = TypeVar("Output_co", covariant=True)
"""An output of a machine: an action, a report, or whoever has something to be sent."""


class Machine(Protocol[Output_co]):
    """Rules with deadlines, behind inputs that are methods of their own."""

    def drain(self) -> Sequence[Output_co]:
        """Return what is to be done by now, in order; what is drained is not returned again."""

    def next_deadline_s(self) -> float | None:
        """Return when to call `on_deadline` unless an input comes first; None if never."""

    def on_deadline(self, now_s: float) -> None:
        """Act on all that is due at `now_s`."""
