"""The calls of a chain that are under way, and how long each may take.

A machine asks again each second those that have not answered. A record that is longer than a frame
may take longer than that to arrive, behind a slow uplink and beside tensors. If it began anew each
second, it would never be whole; so the same one is not sent to a peer again while it is under way.
"""

from p2pswarm.net.rpc.framing import FRAME_BYTES_MAX
from p2pswarm.run.chain.actions import Ask
from p2pswarm.run.chain.messages import Propose
from p2pswarm.run.chain.record import about_bytes, digest

ASK_S = 1.0  # the machine asks again each second
LONG_ASK_S = 10.0  # as long as a peer takes parts; 128 kB at 100 kbit/s


class OpenAsks:
    """The long proposals that are under way."""

    def __init__(self) -> None:
        self._long: dict[tuple[bytes, int, bytes], None] = {}

    def begin(self, ask: Ask) -> float | None:
        """Return how long the call may take; None if the same is under way, so it should not be
        made.
        """
        key = _key(ask)
        if key is None:
            return ASK_S
        if key in self._long:
            return None
        self._long[key] = None
        return LONG_ASK_S

    def end(self, ask: Ask) -> None:
        """The call is over."""
        if (key := _key(ask)) is not None:
            self._long.pop(key, None)


def _key(ask: Ask) -> tuple[bytes, int, bytes] | None:
    """Return who is asked to accept which long record under which term; None for any other call."""
    message = ask.message
    if not isinstance(message, Propose) or about_bytes(message.record) <= FRAME_BYTES_MAX:
        return None
    return ask.to, message.term, digest(message.record)
