"""ChannelSilence: which bulk connection of a link brings nothing, although the link is well.

Errors:  a peer that reports nonsense harms its own transfers.
Source:  docs/paths.md; `net/link/liveness.py`, which does the same for the control connection.
"""

from dataclasses import dataclass

REPORT_S = 0.5  # between two reports: two small records a second while a tensor is awaited
COUNTED_S_MAX = 2 * REPORT_S  # what one report adds to a silence: more, and somebody stood still
BLIND_S = 10.0  # where the kernel does not tell what came: a chunk of 64 KiB on 50 kbit/s
PATIENCE_S_MAX = 20.0  # as TCP gives any other connection: USER_TIMEOUT_MS in net/os/sockets.py
CALM_S = 60.0  # without a silent connection, after which one doubling is taken back


@dataclass(slots=True)
class _Progress:
    """The progress of one connection."""

    came: int
    acknowledged: int | None
    heard_s: float
    """The time of the last report."""
    silent_s: float = 0.0


class ChannelSilence:
    """The silences of the bulk connections of one link, as the sender of tensors sees them.

    A router that has forgotten one connection, or one of several lines that broke, says nothing.
    TCP gives up after 5 s, and never if a relay acknowledges what it swallows. But the receiver of
    a tensor tells twice a second, by the control connection, how many chunks came on each bulk
    connection. A connection on which chunks are under way, and neither a chunk came nor did the
    kernel at the other end acknowledge a byte for as long as TCP needs to repair three losses in a
    row, is silent: it is closed, and others carry its chunks.

    Silence is counted in reports. So nothing is concluded while the control connection is down,
    while the peer stands still, or from reports that were waiting because we stood still
    ourselves.

    A connection that was only slow costs its chunks once more. So that a slow path does not pay
    again and again, the patience doubles with each connection that is closed, to 20 s at most.
    """

    def __init__(self) -> None:
        self._progress: dict[int, _Progress] = {}
        self._doublings = 0
        self._found_s = 0.0

    def __len__(self) -> int:
        """Return how many connections are watched."""
        return len(self._progress)

    def on_report(
        self,
        number: int,
        came: int,
        taken: int,
        acknowledged: int | None,
        patience_s: float,
        now_s: float,
    ) -> bool:
        """The peer has told how many chunks came on a connection; whether that one is silent.

        `taken`: how many it has taken to send. `acknowledged`: bytes that the other kernel has, as
        far as ours knows; None if it does not say. `patience_s`: what TCP needs for three losses.
        """
        progress = self._progress.setdefault(number, _Progress(came, acknowledged, now_s))
        passed_s = min(now_s - progress.heard_s, COUNTED_S_MAX)
        progress.heard_s = now_s
        still = (came, acknowledged) == (progress.came, progress.acknowledged)
        if came >= taken or not still:
            progress.came, progress.acknowledged, progress.silent_s = came, acknowledged, 0.0
            return False
        progress.silent_s += passed_s
        if acknowledged is None:
            patience_s = max(patience_s, BLIND_S)
        if progress.silent_s < min(patience_s * 2 ** self._calmed(now_s), PATIENCE_S_MAX):
            return False
        self._doublings, self._found_s = self._doublings + 1, now_s
        del self._progress[number]
        return True

    def forget(self, number: int) -> None:
        """A connection has ended."""
        self._progress.pop(number, None)

    def _calmed(self, now_s: float) -> int:
        """Return how often the patience is doubled now."""
        calm = int((now_s - self._found_s) / CALM_S)
        if calm and self._doublings:
            self._doublings = max(0, self._doublings - calm)
            self._found_s = now_s
        return self._doublings
