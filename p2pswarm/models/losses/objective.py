"""The loss of a microbatch by its run's objective, and what it is a mean of: targets, or pairs.

A step's loss is a sum over all of them, divided by their number. The number of targets differs from
step to step, so each weighs as one of all tokens, and the commit makes up for it. Each microbatch
has as many pairs, so the number of a step's stands in the manifest.

Shapes:  scores_BTV of B rows, T tokens and V scores; labels_BT; references_B, what the rows of dpo
         carry.
"""
# ruff: noqa: D102, N803, N806  `Objective` documents its methods; shapes end the names

from typing import Protocol

from torch import Tensor

from p2pswarm.models.losses.cross_entropy import NO_LABEL, nats_of
from p2pswarm.models.losses.preference import PairLosses, log_probabilities, pair_losses
from p2pswarm.settings.config import RunConfig


class Objective(Protocol):
    """The loss of a run's microbatches."""

    share: float
    """The weight of a target or a pair in the step."""

    def count(self, rows: int, targets: int) -> int:
        """How many targets or pairs a microbatch has."""
        ...

    def total(self, scores_BTV: Tensor, labels_BT: Tensor, references_B: Tensor | None) -> Tensor:
        """The loss of all of them together, in nats."""
        ...

    def measured(
        self, scores_BTV: Tensor, labels_BT: Tensor, references_B: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """The same of a held-out batch; and of pairs what each row gained (`PairLosses`)."""
        ...


def objective_of(run: RunConfig) -> Objective:
    """The loss of a run."""
    return PairObjective(run) if run.objective.prefers else TokenObjective(run)


class TokenObjective:
    """Implements `Objective`: the cross-entropy of targets."""

    def __init__(self, run: RunConfig) -> None:
        self.share = run.share_of_token

    def count(self, rows: int, targets: int) -> int:
        del rows
        return targets

    def total(self, scores_BTV: Tensor, labels_BT: Tensor, references_B: Tensor | None) -> Tensor:
        del references_B
        return nats_of(scores_BTV, labels_BT)

    def measured(
        self, scores_BTV: Tensor, labels_BT: Tensor, references_B: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        return self.total(scores_BTV, labels_BT, references_B), None


class PairObjective:
    """Implements `Objective`: of pairs of answers, each two rows."""

    def __init__(self, run: RunConfig) -> None:
        self._config = run.objective
        self.share = run.share_of_pair

    def count(self, rows: int, targets: int) -> int:
        del targets
        return rows // 2

    def total(self, scores_BTV: Tensor, labels_BT: Tensor, references_B: Tensor | None) -> Tensor:
        return self._pairs(scores_BTV, labels_BT, references_B).losses.sum()

    def measured(
        self, scores_BTV: Tensor, labels_BT: Tensor, references_B: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        losses, gains_B = self._pairs(scores_BTV, labels_BT, references_B)
        return losses.sum(), gains_B

    def _pairs(
        self, scores_BTV: Tensor, labels_BT: Tensor, references_B: Tensor | None
    ) -> PairLosses:
        sums_B, counts_B = log_probabilities(scores_BTV, labels_BT), (labels_BT != NO_LABEL).sum(1)
        return pair_losses(self._config, sums_B, counts_B, references_B)
