"""How many microbatches may be on their way at once.

Too few, and servers wait for work; too many, and their memory is full of inputs that wait for
gradients, without a gain. By Little's law as many are in flight as finish in a second, times the
seconds that one takes which waits for nobody. `MARGIN` times that are launched: while two servers
of a stage happen to get the same microbatch time, the others still have something to do.

Both are measured in each step: the rate over its best quarter, so that filling and draining the
pipeline do not count, and the time by the first that finish, as many as there are first servers,
because nothing was before them. So in a window that is too small the rate shows it, and the window
grows; a queue makes neither greater, so it does not grow without end. Until something was measured,
the window is as many as keep all ready servers busy on a short path; that is too few on a long one,
so the first choice is made in the middle of the first step.

A server without memory for a microbatch's graph computes it once more when the gradient comes.
While any server does that, the margin shrinks with every step, and else it grows again.

Units:   microbatches; `now_s` seconds on the caller's clock.
Errors:  none.
Source:  Little, "A Proof for the Queuing Formula L = lambda W" (1961); the best rate
         times the least round trip, with a gain, as in BBR (Cardwell et al., ACM Queue 2016).
"""

import math

from p2pswarm.run.view import Incarnation
from p2pswarm.settings.config import RunConfig
from p2pswarm.trainer.members.membership import Membership

WINDOW_PER_ENTRY = 4  # a server of stage 0 computes one while three are on the wire
WINDOW_PER_SERVER = 2  # deep pipelines: each server computes one while one is on its way there
MARGIN, MARGIN_LEAST = 3.5, 1.5  # with 4, queues at the end of a step; bench/busy_share.py
SHRINK, REGROW = 0.8, 1.1  # of the margin, with each step in which a graph was computed again
CHANGE_MAX = 2.0  # from step to step
MEASURED_LEAST = 16  # microbatches of a step; fewer have no middle
FIRST_CHOICE = 4  # times the first servers: so many have finished when the first choice is made
PER_ENTRY_MAX = 128  # inputs that one first-stage server holds; it refuses more than 512


class LaunchPace:
    """What is measured of the microbatches that finish; kept from step to step."""

    def __init__(self) -> None:
        self._entries = 1
        self._took_s: list[float] = []
        """How long those of this step took, the first that finished first."""
        self._finished_s: list[float] = []
        self._margin = MARGIN
        self._chosen: float | None = None
        self._first = WINDOW_PER_ENTRY
        """The window until something was measured."""
        self._recomputed: dict[Incarnation, int] = {}
        """The graphs that each member computed again, by its last word in this step or before."""
        self._short = False
        """Whether one has computed a graph again in this step."""

    def begin(self) -> None:
        """The next step begins: choose from what was measured in the last."""
        margin = self._margin * (SHRINK if self._short else REGROW)
        self._margin = max(MARGIN_LEAST, min(MARGIN, margin))
        measured = self._measured()
        if measured is not None:
            before = self._chosen or measured
            self._chosen = min(max(measured, before / CHANGE_MAX), before * CHANGE_MAX)
        self._took_s, self._finished_s, self._short = [], [], False

    def on_completion(self, launched_s: float, now_s: float) -> None:
        """All stages have counted a microbatch that was launched then."""
        if len(self._took_s) < self._entries:
            self._took_s.append(max(0.0, now_s - launched_s))
        self._finished_s.append(now_s)
        if self._chosen is None and self._enough_for_a_first_choice():
            measured = self._measured()
            self._chosen = measured and min(measured, CHANGE_MAX * self._first)

    def on_recomputation(self, member: Incarnation, graphs: int) -> None:
        """A member says how many graphs it has had to compute again since it began."""
        before = self._recomputed.get(member)
        self._recomputed[member] = graphs
        self._short |= before is not None and graphs > before

    def on_end(self, member: Incarnation) -> None:
        """An incarnation is over."""
        self._recomputed.pop(member, None)

    def window(self, entries: int, servers: int) -> int:
        """How many may be in flight, with so many servers of stage 0, and of all stages."""
        self._entries = max(1, entries)
        if self._chosen is None:
            self._first = max(WINDOW_PER_ENTRY * entries, WINDOW_PER_SERVER * servers)
            return self._first
        return math.ceil(min(max(self._chosen, 2 * entries), PER_ENTRY_MAX * entries))

    def _enough_for_a_first_choice(self) -> bool:
        """Looked at now and then only: each look goes over all that have finished."""
        count = len(self._finished_s)
        return count >= FIRST_CHOICE * self._entries and count % MEASURED_LEAST == 0

    def _measured(self) -> float | None:
        """`MARGIN` times what was in flight in the last step and waited for nobody."""
        times_s, span = self._finished_s, len(self._finished_s) // 4
        if len(times_s) < MEASURED_LEAST:
            return None
        pairs = zip(times_s, times_s[span:], strict=False)
        least_s = min(later_s - sooner_s for sooner_s, later_s in pairs)
        if least_s <= 0:  # they are told together, after a takeover
            return None
        return self._margin * span / least_s * sum(self._took_s) / len(self._took_s)


def launch_window(config: RunConfig, members: Membership, pace: LaunchPace) -> int:
    """The setting, or else what the pace asks for."""
    return config.batch.window or pace.window(members.ready_count(0), members.ready_count())
