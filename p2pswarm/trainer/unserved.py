"""Stages without servers: since when, when people are told, when the run is given up.

Units:   seconds on the caller's clock.
Errors:  none.
"""

UNSERVED_STAGE_S = 30.0  # how long a stage without servers may wait for one that rejoins


class UnservedStages:
    """The stages that lack servers now."""

    def __init__(self) -> None:
        self._since_s: dict[int, float] = {}
        self._told: tuple[int, ...] = ()

    def watch(self, stages: list[int], now_s: float, *, counting: bool) -> tuple[int, ...] | None:
        """Note which stages lack servers; returns them if they have changed.

        The time counts only once the run has begun: `counting` is False while servers gather.
        """
        waiting = stages if counting else []
        self._since_s = {stage: self._since_s.get(stage, now_s) for stage in waiting}
        if tuple(stages) == self._told:
            return None
        self._told = tuple(stages)
        return self._told

    def hopeless(self, now_s: float) -> int | None:
        """A stage that has waited for too long."""
        due = (s for s, since_s in self._since_s.items() if now_s >= since_s + UNSERVED_STAGE_S)
        return next(due, None)

    def next_deadline_s(self) -> float | None:
        """When the first of them has waited for too long."""
        if not self._since_s:
            return None
        return min(self._since_s.values()) + UNSERVED_STAGE_S
