"""What a member's links carry in one direction, measured while it averages.

The bytes to each peer are divided by the time in which any were on their way to it, and the rates
of all peers are added: they share the same uplink at the same time. So the rate is of the link and
not of the waiting between pieces, and one slow receiver does not make a fast sender look slow.

Units:   bytes, seconds on the caller's clock.
Errors:  none.
"""

from dataclasses import dataclass

MEASURED_S = 0.001  # a peer whose bytes took less tells of the kernel's buffers, not of a link


@dataclass(slots=True)
class _Flow:
    """The bytes to or from one peer."""

    under_way: int = 0
    since_s: float = 0.0
    busy_s: float = 0.0
    size_bytes: int = 0


class Bandwidth:
    """The rate of one direction over all peers."""

    def __init__(self) -> None:
        self._flows: dict[bytes, _Flow] = {}

    def began(self, peer: bytes, now_s: float) -> None:
        """Bytes to or from `peer` are on their way; say `ended` once for each call."""
        flow = self._flows.setdefault(peer, _Flow())
        if not flow.under_way:
            flow.since_s = now_s
        flow.under_way += 1

    def ended(self, peer: bytes, size_bytes: int, now_s: float) -> None:
        """They have come, or `size_bytes` of them."""
        flow = self._flows[peer]
        flow.under_way -= 1
        flow.size_bytes += size_bytes
        if not flow.under_way:
            flow.busy_s += now_s - flow.since_s

    @property
    def bytes_per_s(self) -> float:
        """The sum of the peers' rates; 0 if none took long enough to measure."""
        return sum(
            flow.size_bytes / flow.busy_s
            for flow in self._flows.values()
            if flow.busy_s >= MEASURED_S
        )


class BothWays:
    """What a member's links carry while it averages, perhaps in two averagings at a time."""

    def __init__(self) -> None:
        self.sent, self.received = Bandwidth(), Bandwidth()

    @property
    def bytes_per_s(self) -> float:
        """The rate of the slower direction."""
        return min(self.sent.bytes_per_s, self.received.bytes_per_s)
