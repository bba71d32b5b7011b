"""Stages without servers: since when, what people are told, and what is done about it.

A stage without servers has lost its weights for now. They may come back: a server that froze, or
lost its link, still holds them. Meanwhile nothing is launched, and all others keep what they have.

Units:   seconds on the caller's clock; versions count commits.
Errors:  none.
"""

from p2pswarm.swarm.view import Incarnation
from p2pswarm.trainer import actions as act
from p2pswarm.trainer.membership import Member

UNSERVED_STAGE_S = 30.0  # how long `on_stage_lost = "end"` waits for a server that rejoins


class UnservedStages:
    """The stages that lack servers now."""

    def __init__(self, on_stage_lost: str, limit_s: float = UNSERVED_STAGE_S) -> None:
        """`on_stage_lost`: "wait" for ever, or "end" the run after `limit_s`."""
        self._patient = on_stage_lost == "wait"
        self._limit_s = limit_s
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
        if tuple(stages) == self._told:
            return []
        self._told = tuple(stages)
        sought = [
            act.WeightsSought(stage, version, *self._last[stage])
            for stage in lost
            if stage in self._last
        ]
        return [act.StagesUnserved(self._told), *sought]

    def hopeless(self, now_s: float) -> int | None:
        """A stage that has waited for too long."""
        due_s = self.next_deadline_s()
        if due_s is None or now_s < due_s:
            return None
        return min(self._since_s, key=lambda stage: self._since_s[stage])

    def next_deadline_s(self) -> float | None:
        """When the first of them has waited for too long; None if it may wait for ever."""
        if self._patient or not self._since_s:
            return None
        return min(self._since_s.values()) + self._limit_s
