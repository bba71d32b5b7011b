"""The end of a step: who has reduced, whether all agree, and what is decided.

One `Closing` is one generation of one step's reduction. It is thrown away when a member is lost;
nothing that it knows is needed again, because until the commit no sum has been touched.

Errors:  none; answers of lives that do not belong are ignored.
"""

import math
from collections import Counter
from dataclasses import dataclass

from p2pswarm.config import OptimizerConfig
from p2pswarm.swarm.messages import Reduced
from p2pswarm.swarm.schedule import clip_scale
from p2pswarm.swarm.view import Life
from p2pswarm.train.membership import Member


@dataclass(frozen=True, slots=True)
class Decided:
    """All stages agree: commit with this norm over all of them."""

    gradient_norm: float
    scale: float


@dataclass(frozen=True, slots=True)
class Differ:
    """These members hold other bytes than most of their stage."""

    lives: tuple[Life, ...]


@dataclass(frozen=True, slots=True)
class NotFinite:
    """The reduced gradient of this stage overflowed, the same on every member."""

    stage: int


class Closing:
    """One try to reduce the step's gradients."""

    def __init__(
        self,
        generation: int,
        members: list[Member],
        optimizer: OptimizerConfig,
        deadline_s: float,
    ) -> None:
        self.generation = generation
        self.deadline_s = deadline_s
        self._stage = {m.life: m.stage for m in members}
        self._optimizer = optimizer
        self._answers: dict[Life, Reduced] = {}

    @property
    def silent(self) -> list[Life]:
        """The members that have not answered."""
        return [life for life in self._stage if life not in self._answers]

    def reduced(self, life: Life, answer: Reduced) -> None:
        """A member holds the reduced gradient of its stage."""
        if life in self._stage:
            self._answers[life] = answer

    def verdict(self) -> Decided | Differ | NotFinite | None:
        """What follows, once all have answered; None before."""
        if self.silent:
            return None
        odd = tuple(life for stage in self._stages() for life in self._odd(stage))
        if odd:
            return Differ(odd)
        squares = {stage: self._squared_norm(stage) for stage in self._stages()}
        for stage, square in squares.items():
            if square is None:
                return NotFinite(stage)
        norm = math.sqrt(math.fsum(s for s in squares.values() if s is not None))
        return Decided(norm, clip_scale(self._optimizer, norm))

    def _stages(self) -> list[int]:
        return sorted(set(self._stage.values()))

    def _lives(self, stage: int) -> list[Life]:
        return [life for life, where in self._stage.items() if where == stage]

    def _odd(self, stage: int) -> list[Life]:
        lives = self._lives(stage)
        digests = Counter(self._answers[life].digest for life in lives)
        usual = digests.most_common(1)[0][0]  # of a tie, the first in the group's order
        return [life for life in lives if self._answers[life].digest != usual]

    def _squared_norm(self, stage: int) -> float | None:
        return self._answers[self._lives(stage)[0]].squared_norm
