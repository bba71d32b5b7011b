"""RouterEpoch: whether a router has lost what it promised, by the clock in all of its packets.

The clock of a router's port mappings begins at 0 when they are lost, as at its start. It tells its
time in each answer, and to all hosts by multicast when it has been started. A time that does
not fit the one before, by our own clock, is another beginning.

Units:   seconds; `now_s` on the caller's monotonic clock.
Errors:  none: a packet that cannot be read tells no time.
Source:  RFC 6887 sections 8.5 and 14.1; RFC 6886 sections 3.2.1 and 3.6, whose clock is the same.
"""

from p2pswarm.reach.nat import nat_pmp, pcp

ANNOUNCED_PORT = 5350  # RFC 6887 section 19.1: where clients hear of a router's start
ANNOUNCED_GROUP = "224.0.0.1"
JITTER_S = 2.0  # RFC 6887 section 8.5: packets are late, and clocks are read in whole seconds
DRIFT = 16  # and a sixteenth is how much slower or faster a router's clock may be
BACK_S = 1.0


class RouterEpoch:
    """The clock of one router."""

    def __init__(self) -> None:
        self._heard: tuple[float, float] | None = None
        """The router's last time, and ours when it came."""

    def lost(self, packet: bytes, now_s: float) -> bool:
        """Take a packet of the router; whether it has begun anew since the one before."""
        epoch_s = epoch_in(packet)
        if epoch_s is None:
            return False
        before, self._heard = self._heard, (float(epoch_s), now_s)
        return before is not None and not _fits(before, self._heard)


def epoch_in(packet: bytes) -> int | None:
    """The router's time in a packet of PCP or NAT-PMP; None if there is none."""
    return pcp.epoch_in(packet) if packet[:1] == bytes((pcp.VERSION,)) else nat_pmp.epoch_in(packet)


def _fits(before: tuple[float, float], after: tuple[float, float]) -> bool:
    theirs_s, ours_s = after[0] - before[0], after[1] - before[1]
    if theirs_s < -BACK_S:
        return False
    slow = ours_s + JITTER_S < theirs_s - theirs_s / DRIFT
    fast = theirs_s + JITTER_S < ours_s - ours_s / DRIFT
    return not (slow or fast)
