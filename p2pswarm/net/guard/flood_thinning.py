"""FloodThinning: which networks' new connections the kernel is to drop, and how many of them.

Units:   a level: one of 4 ** level connections passes.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from p2pswarm.net.os.addresses import NAMES, address_groups
from p2pswarm.net.os.arrival_filter import GROUPS_MAX, LEVEL_MAX

FULL_S = 0.3  # a burst of some hundreds that join together is taken in less
FULL_COUNT = 128  # and so many came meanwhile: half of the kernel's queue
PERIOD_S = 0.25  # between two looks
KEPT = 0.9  # of the scores from one look to the next: it counts what came within about 2.5 s
MANY = 2.0  # connections that came to nothing yet; a network that is calm has one
USED_LEAST = 0.25  # of what comes: of a crowd 0.2 s away more have proven themselves by `FULL_S`
MOSTLY = 0.75  # of a network's score: the part that has so much is thinned instead of it
LEVEL_FIRST = 2  # one of 16; a flood from many networks is hardly less at one of 4
HOLD_S = 8.0  # without a full queue before the first step back: a step may fill it for a second
HOLD_MAX_S = 64.0  # the same for a flood that goes on and on
SCORES_MAX = 4096  # groups that are counted: 1 MB; a flood from more of them is not thinned
FORGOTTEN = 0.1  # a score that does not matter any more

NAMED_MAX = 4  # networks in a text for people

_Path = tuple[str, ...]
"""A group after those that it is in, the widest first."""


@dataclass(slots=True)
class _Thinned:
    """A group that is thinned, or was a short time ago."""

    level: int
    since_s: float
    """The time at which the level was set."""
    hold_s: float


@dataclass(slots=True)
class _Arrivals:
    """The connections of a group within the last seconds."""

    came: float = 0.0
    used: float = 0.0
    """Those of which the peer has proven itself."""

    @property
    def wasted(self) -> float:
        """Those that came to nothing, or not yet to anything."""
        return self.came - self.used

    @property
    def floods(self) -> bool:
        """Return whether too much is wasted: of an honest crowd nearly all prove themselves."""
        return self.wasted >= MANY and self.used < USED_LEAST * self.came


class FloodThinning:
    """The networks that flood us, by the connections that arrive and those that are of use.

    Each connection costs the process that takes it half a millisecond, more than it costs its
    dialler. So when strangers come faster than a node can take them, turns and slots are shared
    fairly, and yet the kernel's queue of connections is full: it drops the first packets of
    everybody alike. Then it has to be told whose to drop.

    That is so when the queue was not found empty for 0.3 s and 128 connections. Then a group of
    addresses most of whose connections came to nothing, or to nothing yet, is *thinned*: what it
    has in the queue is closed, and one of 16 of its new connections arrives, then one of 64, as
    long as the queue stays full. The others are tried again by their diallers' kernels, after 1
    and 3 s. So who comes from a calm network is not held up, and who comes from another waits
    longer than before.

    What is thinned is the smallest group that has nearly all that its network has: one host costs
    its neighbours nothing. It ends by steps; a group that floods again waits longer for the next.
    Nobody is thinned for what others say in its name: a connection arrives when its address has
    answered our kernel.
    """

    def __init__(self) -> None:
        self._scores: dict[_Path, _Arrivals] = {}
        self._thinned: dict[str, _Thinned] = {}
        self._look_s: float | None = None
        self._filled_s = float("inf")
        """Since when the queue was not found empty."""

    @property
    def levels(self) -> Mapping[str, int]:
        """The groups that are thinned, and how much."""
        return {name: each.level for name, each in self._thinned.items() if each.level}

    def on_arrival(self, host: str, in_a_row: int, now_s: float) -> bool:
        """Note a new connection, the `in_a_row`-th since the kernel's queue was empty.

        Returns whether to take it: those of a group that floods us are closed while the queue is
        full, so that the others in it have their turn soon.
        """
        if in_a_row <= 1:
            self._filled_s = now_s
        if self._look_s is None:
            self._look_s = now_s + PERIOD_S
        path = address_groups(host)
        if path[0] == NAMES:
            return True  # no kernel drops by name
        for end in range(2, len(path) + 1):
            score = self._scores.get(path[:end])
            if score is None and len(self._scores) < SCORES_MAX:
                score = self._scores[path[:end]] = _Arrivals()
            if score is not None:
                score.came += 1.0
        if not self._full(in_a_row, now_s):
            return True
        network = self._scores.get(path[:2])
        floods = network is not None and network.floods
        return not floods and not any(name in self._thinned for name in path)

    def on_proof(self, host: str) -> None:
        """Note that a connection from a host came to something: its peer has proven itself."""
        path = address_groups(host)
        for end in range(2, len(path) + 1):
            score = self._scores.get(path[:end])
            if score is not None:
                score.used = min(score.used + 1.0, score.came)

    def _full(self, in_a_row: int, now_s: float) -> bool:
        return in_a_row >= FULL_COUNT and now_s - self._filled_s >= FULL_S

    def next_deadline_s(self) -> float | None:
        """Return when to call `on_deadline`; None while there is nothing to do."""
        return self._look_s

    def on_deadline(self, in_a_row: int, now_s: float) -> bool:
        """Look at the scores; returns whether `levels` has changed. `in_a_row`: see `arrived`."""
        if self._look_s is None or now_s < self._look_s:
            return False
        before = self.levels
        if self._full(in_a_row, now_s):
            self._thin(now_s)
        else:
            self._lower(now_s)
        for path, score in tuple(self._scores.items()):
            score.came *= KEPT
            score.used *= KEPT
            if score.came < FORGOTTEN:
                del self._scores[path]
        self._look_s = now_s + PERIOD_S if self._scores or self._thinned else None
        return self.levels != before

    def _thin(self, now_s: float) -> None:
        within: defaultdict[_Path, list[_Path]] = defaultdict(list)
        for path in self._scores:
            within[path[:-1]].append(path)
        for networks in [within[path] for path in tuple(within) if len(path) == 1]:
            for path in networks:
                if self._scores[path].floods:
                    self._raise(self._part(path, within), now_s)
                    self._forget(path, within)

    def _part(self, path: _Path, within: Mapping[_Path, list[_Path]]) -> _Path:
        """The smallest group that wastes nearly all that a network does."""
        least = MOSTLY * self._scores[path].wasted
        while parts := [p for p in within.get(path, ()) if self._scores[p].wasted >= least]:
            path = parts[0]
        return path

    def _forget(self, path: _Path, within: Mapping[_Path, list[_Path]]) -> None:
        del self._scores[path]
        for part in within.get(path, ()):
            self._forget(part, within)

    def _raise(self, path: _Path, now_s: float) -> None:
        thinned = self._thinned.get(path[-1])
        if thinned is None:
            if len(self._thinned) < GROUPS_MAX:
                self._thinned[path[-1]] = _Thinned(LEVEL_FIRST, now_s, HOLD_S)
        else:
            thinned.level = min(max(thinned.level + 1, LEVEL_FIRST), LEVEL_MAX)
            thinned.hold_s = min(2 * thinned.hold_s, HOLD_MAX_S)
            thinned.since_s = now_s

    def _lower(self, now_s: float) -> None:
        for name, thinned in tuple(self._thinned.items()):
            if now_s - thinned.since_s >= thinned.hold_s:
                thinned.since_s = now_s
                if thinned.level:
                    thinned.level -= 1
                else:
                    del self._thinned[name]


def thinned_text(levels: Mapping[str, int]) -> str:
    """Return what `FloodThinning.levels` means, in one line for people."""
    if not levels:
        return "the flood of connections is over: nobody's are dropped any more"
    worst = sorted(levels, key=lambda name: (-levels[name], name))
    others = len(worst) - NAMED_MAX
    names = ", ".join(worst[:NAMED_MAX]) + (f" and {others} more" if others > 0 else "")
    return (
        f"a flood of connections from {names}: most of theirs are dropped until it ends;"
        " who is there waits a few seconds longer, all others are served"
    )
