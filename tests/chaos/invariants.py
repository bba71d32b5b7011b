"""What holds in every run, whatever goes wrong: rules that are told what happens.

Units:   virtual seconds; microbatches by their global number.
Errors:  none; a breach is a text.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from p2pswarm.swarm.view import Incarnation


class Contributions:
    """Who holds which microbatch in its sum: of the living, at most one in each stage."""

    def __init__(self) -> None:
        self._holders: dict[tuple[int, int], list[Incarnation]] = {}

    def counted(
        self,
        stage: int,
        microbatch: int,
        by: Incarnation,
        alive: Callable[[Incarnation], bool],
    ) -> str | None:
        """A member adds a microbatch; returns the breach if another living one holds it."""
        holders = self._holders.setdefault((stage, microbatch), [])
        living = [holder for holder in holders if holder != by and alive(holder)]
        again = by in holders
        holders.append(by)
        if not alive(by):
            return None
        if living:
            return f"microbatch {microbatch}, stage {stage}: held by {living[0]} and by {by}"
        if again:
            return f"microbatch {microbatch}, stage {stage}: {by} counts it twice"
        return None

    def forget(self, before: int) -> None:
        """Forget microbatches before this one: their steps are over."""
        self._holders = {key: held for key, held in self._holders.items() if key[1] >= before}


class Digests:
    """Every replica of one stage and version has one digest."""

    def __init__(self) -> None:
        self._seen: dict[tuple[int, int], bytes] = {}

    def seen(self, stage: int, version: int, digest: bytes) -> str | None:
        """A server holds weights; returns the breach if others of that version differ."""
        if self._seen.setdefault((stage, version), digest) != digest:
            return f"stage {stage}, version {version}: two replicas differ"
        return None


@dataclass(slots=True)
class Stalls:
    """How long no step was done while every stage had a server that could be reached."""

    longest_s: float = 0.0
    ends_s: list[float] = field(default_factory=list)
    """When the run began and when each step was done."""
    _dark: bool = False
    _was_dark: bool = False

    def reachable(self, every_stage: bool) -> None:
        """Whether the trainer runs and reaches a living server of every stage, from now on."""
        self._dark = not every_stage
        self._was_dark = self._was_dark or self._dark

    def step_done(self, now_s: float) -> None:
        """A step is done, or the first one begins."""
        if self.ends_s and not self._was_dark:
            self.longest_s = max(self.longest_s, now_s - self.ends_s[-1])
        self.ends_s.append(now_s)
        self._was_dark = self._dark
