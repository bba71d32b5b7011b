"""Stages without servers: since when, what people are told, and what is done about it.

A stage without servers has lost its weights for now. They may come back: a server that froze, or
lost its link, still holds them. Meanwhile nothing is launched, and all others keep what they have.

Units:   seconds on the caller's clock; versions count commits.
Errors:  none.
"""

import math

from p2pswarm.run.view import Incarnation
from p2pswarm.trainer.members.membership import Member
from p2pswarm.trainer.reports import actions as act

UNSERVED_STAGE_S = 30.0  # how long `on_stage_lost = "end"` waits for a server that rejoins
REWIND_S = 60.0  # the default of run.rewind_after_s
TELL_S = 5.0  # a server that has lost its link is back by then: people need not hear of it


class UnservedStages:
    """The stages that lack servers now."""

    def __init__(
        self,
        on_stage_lost: str,
        rewind_s: float = REWIND_S,
        end_s: float = UNSERVED_STAGE_S,
    ) -> None:
        """`on_stage_lost`: "wait" for ever, "rewind" after `rewind_s`, or "end" after `end_s`."""
        self._answer = on_stage_lost
        self._limit_s = rewind_s if on_stage_lost == "rewind" else end_s
        self._asked_s = -math.inf
        self._copies_told = False
        self._since_s: dict[int, float] = {}
        self._told: tuple[int, ...] = ()
        self._last: dict[int, tuple[Incarnation, str]] = {}

    def left(self, member: Member) -> None:
        """A server that held the current weights of its stage is gone."""
        self._last[member.stage] = member.incarnation, member.address

    def watch(
        self, stages: list[int], version: int, now_s: float, *, counting: bool
    ) -> list[act.StagesUnserved | act.WeightsSought]:
        """Note which stages lack servers; what to tell if they have changed.

        The time counts only once the run has begun: `counting` is False while servers gather.
        """
        waiting = stages if counting else []
        lost = [stage for stage in waiting if stage not in self._since_s]
        self._since_s = {stage: self._since_s.get(stage, now_s) for stage in waiting}
        self._copies_told = self._copies_told and bool(waiting)
        if tuple(stages) == self._told:
            return []
        self._told = tuple(stages)
        sought = [
            act.WeightsSought(stage, version, *self._last[stage])
            for stage in lost
            if stage in self._last
        ]
        return [act.StagesUnserved(self._told), *sought]

    def hopeless(self, now_s: float) -> str | None:
        """Why the run ends, if a stage has waited for too long."""
        if self._answer != "end" or now_s < self._overdue_s:
            return None
        stage = min(self._since_s, key=lambda stage: self._since_s[stage])
        return f"stage {stage} has no server left that holds its weights"

    def overdue(self, now_s: float, version: int) -> list[act.SeekCopy | act.GoBack]:
        """What to tell of stages that have waited for long, and whether to go back for them.

        If the run cannot go back, that is asked again later.
        """
        asked: list[act.SeekCopy | act.GoBack] = []
        rewinds = self._answer == "rewind"
        if not self._copies_told and now_s >= self._tell_s:
            self._copies_told = True
            rewind_s = max(0.0, self._overdue_s - now_s) if rewinds else None
            asked.append(act.SeekCopy(tuple(sorted(self._since_s)), version, rewind_s))
        if rewinds and now_s >= self._overdue_s:
            self._asked_s = now_s
            asked.append(act.GoBack())
        return asked

    def next_deadline_s(self) -> float | None:
        """When something is to be told or done about them; None if it is not."""
        due_s = [] if self._answer == "wait" else [self._overdue_s]
        due_s += [] if self._copies_told else [self._tell_s]
        soonest_s = min(due_s, default=math.inf)
        return soonest_s if soonest_s < math.inf else None

    @property
    def _tell_s(self) -> float:
        return min(self._since_s.values(), default=math.inf) + TELL_S

    @property
    def _overdue_s(self) -> float:
        """When the first of them has waited for too long."""
        return max(min(self._since_s.values(), default=math.inf), self._asked_s) + self._limit_s
