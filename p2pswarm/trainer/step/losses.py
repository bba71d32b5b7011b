"""Losses of a step's microbatches, and how many targets each of them is a mean over.

A step's gradient is that of the sum over all its targets, divided by their number. Servers divide
by the number of tokens instead, which the manifest fixes, because a microbatch is computed before
anybody has to know the step's number. The commit makes up for it (`StepLosses.tokens_per_target`).
So documents, chats and masks of any length weigh as in one large batch, whoever dies.

Errors:  BadMessage for scores of a batch that cannot be.
Source:  docs/training.md, "Targets".
"""

import math
from collections.abc import Collection, Iterable, Mapping

from p2pswarm.base.errors import BadMessage
from p2pswarm.run.messages.microbatch import Evaluated
from p2pswarm.run.schedule import tokens_per_target
from p2pswarm.settings.config import RunConfig
from p2pswarm.trainer.reports.actions import CountTargets
from p2pswarm.trainer.step.in_flight import EVALUATION_BASE

LOSS_MAX = 1e9  # nats per token; 65,536 microbatches of it still sum to a float
SCORE_MAX = 1e9  # nats, of either sign: as many as a row may carry


def check_scores(run: RunConfig, note: Evaluated) -> None:
    """Raise BadMessage unless a batch of pairs has a number for each row, and another has none."""
    due = run.batch.rows if run.objective.prefers and not run.emulated else 0
    if len(note.scores) != due or not all(abs(score) <= SCORE_MAX for score in note.scores):
        raise BadMessage(f"{len(note.scores)} scores of a batch where {due} finite ones are due")


class StepLosses:
    """What servers tell of a step's losses, and the counts that weigh them.

    Where rows tell their targets, whoever coordinates counts them in its own text: a server could
    say anything, and a fence tells of microbatches that no note tells of.
    """

    def __init__(self, step: int, config: RunConfig, microbatches: Iterable[int]) -> None:
        """`microbatches`: those to train on."""
        self._step = step
        self._config = config
        self._marked = config.counts_targets
        self._train = frozenset(microbatches)
        self._uncounted = set(self._train) if self._marked else set()
        self._asked: set[int] = set()
        self._targets: dict[int, int] = {}
        self._losses: dict[int, float] = {}

    def expect(self, held_out: Iterable[int]) -> None:
        """The step measures these as well."""
        if self._marked:
            self._uncounted.update(held_out)

    def to_count(self) -> list[CountTargets]:
        """What the text is to be asked, if anything; drained by reading."""
        asked = self._uncounted - self._asked
        self._asked |= asked
        return [CountTargets(self._step, tuple(sorted(asked)))] if asked else []

    def on_targets(self, targets: Mapping[int, int]) -> None:
        """The text has so many targets in these microbatches."""
        self._targets.update(targets)
        self._uncounted.difference_update(targets)

    @property
    def counted(self) -> bool:
        """True if nothing is left to count."""
        return not self._uncounted

    @property
    def targets(self) -> int | None:
        """Of the step; None: every token is one."""
        return sum(map(self._of, self._train)) if self._marked else None

    @property
    def tokens_per_target(self) -> float:
        """The factor by which the step's gradient is larger than what servers have summed.

        0 if there is no target: then the gradient is zeros, and changes nothing.
        """
        targets = self.targets
        return 1.0 if targets is None else tokens_per_target(self._config, targets)

    def add(self, losses: Mapping[int, float]) -> None:
        """Servers tell the mean over the targets of these microbatches."""
        self._losses.update(losses)

    def inherit(self, losses: Mapping[int, float]) -> None:
        """The same, of what nobody told before."""
        self._losses = {**losses, **self._losses}

    def mean(self, aside: Collection[int]) -> float:
        """Nats per target of the microbatches whose loss was told; NaN if none was.

        A fence may tell of a microbatch that no note tells of; its loss is then unknown.
        """
        losses = self._losses
        return self._mean([m for m in losses if m < EVALUATION_BASE and m not in aside])

    def held_out(self, aside: Collection[int]) -> float | None:
        """Nats per target of the held-out batches; None without any, NaN if one is `aside`."""
        told = [m for m in self._losses if m >= EVALUATION_BASE]
        if any(m >= EVALUATION_BASE for m in aside):
            return math.nan
        return self._mean(told) if told else None

    def _of(self, microbatch: int) -> int:
        return (
            self._targets.get(microbatch, 0) if self._marked else self._config.tokens_per_microbatch
        )

    def _mean(self, microbatches: list[int]) -> float:
        told = [(self._losses[m], self._of(m)) for m in microbatches]
        targets = sum(count for _, count in told)
        if not targets or any(not abs(loss) <= LOSS_MAX for loss, _ in told):
            return math.nan
        return math.fsum(loss * count for loss, count in told) / targets
