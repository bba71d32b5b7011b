"""The time of a move to another stage in this run, by the moves that were made.

Source:  docs/rebalancing.md, "What a move takes".
"""

from dataclasses import dataclass, replace

AWAY_PRIOR_S = 5.0  # to join again, and until routers know how fast it is
PREPARED_PRIOR_S = 1.0  # 0.02 s for small states, 0.2 to 1.4 s for half a gigabyte on a busy host
WAIT_PRIOR = 2.0  # commits: the first after the pieces have come proves them, the next changes it
NEWEST = 0.4  # of an estimate: after four moves the prior is an eighth of it
AWAY_MAX_S = 3600.0  # a mover that is away for longer has had another trouble than moving
UNDER_WAY_MAX = 4096  # as many servers as a run can have


@dataclass(frozen=True, slots=True)
class MoveTimes:
    """What is expected of the next move, beside the download at the link's rate.

    A mover is away from the moment at which it ends its session until it computes in its new
    stage. Who leaves first downloads meanwhile; what is learnt is the rest: joining, and what the
    link did not keep of its promise. Who fetches first is away for moments, but waits for a commit
    before: that is learnt in commits, because steps become longer and shorter. Before any move was
    made, each counts as a prior says; the newest moves count most, so that a few are enough to
    forget it.
    """

    prepared_s: float = PREPARED_PRIOR_S
    """How long a server is away that has fetched the weights."""
    unprepared_s: float = AWAY_PRIOR_S
    """How much longer than the download one is away that leaves first."""
    waits_s: float = 0.0
    """How long one that has fetched the weights waits for the commit at which it changes."""
    prepared: int = 0
    """Moves that were measured."""
    unprepared: int = 0


NO_MOVES = MoveTimes()
"""Before any was made, and where steps take no time."""


@dataclass(slots=True)
class _UnderWay:
    """A move that was ordered."""

    ordered_s: float
    fetch_s: float
    """The download, by what was known of the link."""
    prepared: bool
    left_s: float | None = None
    """When its session ended."""


class MoveMeter:
    """Learns from the moves of one run under one coordinator."""

    def __init__(self) -> None:
        self._times = NO_MOVES
        self._waits = WAIT_PRIOR
        self._step_s: float | None = None
        self._committed_s: float | None = None
        self._under_way: dict[bytes, _UnderWay] = {}

    def on_commit(self, now_s: float) -> None:
        """A step is decided."""
        if self._committed_s is not None:
            took_s = now_s - self._committed_s
            self._step_s = took_s if self._step_s is None else _closer(self._step_s, took_s)
        self._committed_s = now_s

    def on_order(self, server: bytes, fetch_s: float, now_s: float, *, prepared: bool) -> None:
        """A server is to move; if it is not to prepare, it leaves now."""
        self._under_way.pop(server, None)
        if len(self._under_way) < UNDER_WAY_MAX:
            left_s = None if prepared else now_s
            self._under_way[server] = _UnderWay(now_s, fetch_s, prepared, left_s)

    def on_leave(self, server: bytes, now_s: float) -> None:
        """A server that was to prepare ends its session now."""
        if (move := self._under_way.get(server)) is not None:
            move.left_s = now_s
            waited_s = max(0.0, now_s - move.ordered_s - move.fetch_s)
            if self._step_s:
                self._waits = _closer(self._waits, waited_s / self._step_s)

    def on_ready(self, server: bytes, now_s: float) -> None:
        """A server is ready; if it was under way, it is there."""
        move = self._under_way.pop(server, None)
        if move is None or move.left_s is None:
            return
        away_s = min(AWAY_MAX_S, now_s - move.left_s)
        times = self._times
        if move.prepared:
            prepared_s = _closer(times.prepared_s, away_s)
            times = replace(times, prepared_s=prepared_s, prepared=times.prepared + 1)
        else:
            unprepared_s = _closer(times.unprepared_s, max(0.0, away_s - move.fetch_s))
            times = replace(times, unprepared_s=unprepared_s, unprepared=times.unprepared + 1)
        self._times = times

    def on_end(self, server: bytes) -> None:
        """A move ends otherwise: its server is gone, or stays where it was."""
        self._under_way.pop(server, None)

    @property
    def times(self) -> MoveTimes:
        """Return what is expected of the next move."""
        return replace(self._times, waits_s=self._waits * (self._step_s or 0.0))


def _closer(estimate: float, measured: float) -> float:
    """An estimate after one more measurement."""
    return estimate + NEWEST * (measured - estimate)
