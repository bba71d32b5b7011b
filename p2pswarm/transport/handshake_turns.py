"""HandshakeTurns: how much of the event loop's time strangers may take, and who is next.

A first message costs us the most of what a stranger can make us do: 0.23 ms of cryptography for
55 bytes, and its proof as much again. Places bound memory, not this. So each computation of a
handshake that we accept waits for its turn: groups of addresses take turns (`fair_turns.py`), and
after each computation nobody has a turn before the others that use the loop had their part.

A dialler of a network of its own waits for two turns of each other network that floods us, at most:
20 ms beside one network, 0.5 s beside a hundred.

Units:   seconds (`_s`), of the loop's clock.
Errors:  none.
"""

from p2pswarm.net.address_groups import address_groups
from p2pswarm.transport.fair_turns import FairTurns

SHARE = 0.25  # of the loop's time: a thousand computations a second, and training keeps the most
BURST_S = 0.02  # so much at once: 40 peers that join together do not wait
COST_MAX_S = 0.005  # counted at most: a pause of the whole process is nobody's computation


class HandshakeTurns:
    """The computations that wait, each under its handshake's ticket."""

    def __init__(self, share: float = SHARE) -> None:
        """`share`: of the loop's time, above 0 and at most 1."""
        self._share = share
        self._waiting: FairTurns[int] = FairTurns()
        self._paid_until_s = 0.0
        """When all that was computed so far will be paid for, at our share."""

    def enter(self, ticket: int, host: str) -> None:
        """Let a handshake wait for its turn; it waits for one at a time."""
        self._waiting.add(ticket, address_groups(host))

    def leave(self, ticket: int) -> None:
        """Forget a handshake that waits no more."""
        self._waiting.remove(ticket)

    def next(self, now_s: float) -> int | None:
        """Take out the ticket whose turn it is; None if nobody waits, or it is too early."""
        at_s = self.next_deadline_s()
        return None if at_s is None or now_s < at_s else self._waiting.next()

    def computed(self, cost_s: float, now_s: float) -> None:
        """Note that a computation has taken `cost_s`; may set the deadline."""
        owed_from_s = max(self._paid_until_s, now_s)
        self._paid_until_s = owed_from_s + min(cost_s, COST_MAX_S) / self._share

    def next_deadline_s(self) -> float | None:
        """When to call `next`; None while nobody waits."""
        return self._paid_until_s - BURST_S / self._share if self._waiting else None
