"""The loss of pairs of answers: DPO, ORPO and SimPO.

With S the log probability of an answer's targets together, n their number, R what S was before any
training, and m the mean S/n; c the chosen answer of a pair, r the rejected one:

    dpo    -log sigmoid(beta ((S_c - R_c) - (S_r - R_r)))
    simpo  -log sigmoid(beta (m_c - m_r) - gamma)
    orpo   -m_c - beta log sigmoid(log odds(m_c) - log odds(m_r)), odds(m) = e^m / (1 - e^m)

Shapes:  scores_BTV, labels_BT; sums_B and counts_B of B rows: rows 2k and 2k + 1 are a pair.
Source:  the papers that `settings/objective.py` names; the functions are those of TRL's trainers of
         DPO, CPO (loss_type "simpo", cpo_alpha 0) and ORPO.
"""
# ruff: noqa: N803, N806  shapes are written at the end of names

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, logsigmoid

from p2pswarm.models.losses.cross_entropy import NO_LABEL
from p2pswarm.settings.objective import SIMPO, ObjectiveConfig

LN_2 = math.log(2)


class PairLosses(NamedTuple):
    """The losses of pairs, and what they are made of."""

    losses: Tensor
    """Of each pair."""
    gains_B: Tensor  # noqa: N815  its shape
    """Of each answer: S - R of dpo, else m; a pair's greater one is preferred."""


def log_probabilities(scores_BTV: Tensor, labels_BT: Tensor) -> Tensor:
    """The log probability of each row's targets together; (B,)."""
    rows, labels = scores_BTV.flatten(0, 1), labels_BT.flatten()
    nats = cross_entropy(rows, labels, reduction="none", ignore_index=NO_LABEL)
    return -nats.view(labels_BT.shape).sum(1)


def pair_losses(
    objective: ObjectiveConfig, sums_B: Tensor, counts_B: Tensor, references_B: Tensor | None
) -> PairLosses:
    """The losses of pairs; `references_B`: R, of dpo."""
    beta = objective.strength
    if objective.refers:
        assert references_B is not None, "rows carry them"
        gains_B = sums_B - references_B.to(sums_B.dtype)
        losses = -logsigmoid(beta * (gains_B[0::2] - gains_B[1::2]))
        return PairLosses(losses, gains_B.detach())
    means_B = sums_B / counts_B.clamp(min=1)
    chosen, rejected = means_B[0::2], means_B[1::2]
    if objective.name == SIMPO:
        losses = -logsigmoid(beta * (chosen - rejected) - objective.gamma)
    else:
        odds = (chosen - rejected) - (log_of_rest(chosen) - log_of_rest(rejected))
        losses = -chosen - beta * logsigmoid(odds)
    return PairLosses(losses, means_B.detach())


def log_of_rest(x: Tensor) -> Tensor:
    """log(1 - e^x) for x below 0; an x of 0, a probability of 1, counts as the least below.

    Source:  Maechler, "Accurately computing log(1 - exp(-|a|))", R package Rmpfr.
    """
    x = x.clamp(max=-torch.finfo(x.dtype).eps)
    near = x > -LN_2
    one, other = (
        x.where(near, -LN_2),
        x.where(~near, -LN_2),
    )  # or the unused branch's gradient is NaN
    return torch.where(near, torch.log(-torch.expm1(one)), torch.log1p(-torch.exp(other)))
