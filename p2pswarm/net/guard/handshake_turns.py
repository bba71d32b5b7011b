"""HandshakeTurns: how much of the event loop's time strangers may take, and who is next.

A first message costs us the most of what a stranger can make us do: 0.23 ms of cryptography for
55 bytes, and its proof as much again. Places bound memory, not this. So each computation of a
handshake that we accept waits for its turn: groups of addresses take turns (`fair_turns.py`), and
after each computation nobody has a turn before the others that use the loop had their part.

Who has our answer and proves itself comes in turn with those who say their first words: a flood of
first messages, which are cheap to make, does not hold up those who were answered. So a dialler of a
network of its own waits for one turn of each other network that floods us, at most, and for little
more at its proof: 10 ms beside one network, 0.25 s beside a hundred.

Units:   seconds (`_s`), of the loop's clock.
Errors:  none.
"""

from p2pswarm.net.guard.fair_turns import FairTurns
from p2pswarm.net.os.address_groups import address_groups

SHARE = 0.25  # of the loop's time: a thousand computations a second, and training keeps the most
BURST_S = 0.02  # so much at once: 40 peers that join together do not wait
COST_MAX_S = 0.005  # counted at most: a pause of the whole process is nobody's computation


class HandshakeTurns:
    """The computations that wait, each under its handshake's ticket."""

    def __init__(self, share: float = SHARE) -> None:
        """`share`: of the loop's time, above 0 and at most 1."""
        self._share = share
        self._greetings: FairTurns[int] = FairTurns()
        self._proofs: FairTurns[int] = FairTurns()
        self._proof_is_next = True
        self._paid_until_s = 0.0
        """When all that was computed so far will be paid for, at our share."""

    def __len__(self) -> int:
        """How many wait."""
        return len(self._greetings) + len(self._proofs)

    def enter(self, ticket: int, host: str, *, answered: bool = False) -> None:
        """Let a handshake wait for its turn; it waits for one at a time.

        `answered`: whether it had our answer, and this is its proof.
        """
        waiting = self._proofs if answered else self._greetings
        waiting.add(ticket, address_groups(host))

    def leave(self, ticket: int) -> None:
        """Forget a handshake that waits no more."""
        self._greetings.remove(ticket)
        self._proofs.remove(ticket)

    def next(self, now_s: float) -> int | None:
        """Take out the ticket whose turn it is; None if nobody waits, or it is too early."""
        at_s = self.next_deadline_s()
        if at_s is None or now_s < at_s:
            return None
        proof = bool(self._proofs) and (self._proof_is_next or not self._greetings)
        self._proof_is_next = not proof
        return (self._proofs if proof else self._greetings).next()

    def computed(self, cost_s: float, now_s: float) -> None:
        """Note that a computation has taken `cost_s`; may set the deadline."""
        owed_from_s = max(self._paid_until_s, now_s)
        self._paid_until_s = owed_from_s + min(cost_s, COST_MAX_S) / self._share

    def next_deadline_s(self) -> float | None:
        """When to call `next`; None while nobody waits."""
        return self._paid_until_s - BURST_S / self._share if len(self) else None
