"""The loss of scores: the cross-entropy of those tokens that are targets.

Shapes:  scores_BTV of B rows, T tokens and V scores; labels_BT.
"""
# ruff: noqa: N803  shapes are written at the end of names

from torch import Tensor
from torch.nn.functional import cross_entropy

NO_LABEL = -100
"""Where no target stands, as torch and transformers have it."""


def nats_of(scores_BTV: Tensor, labels_BT: Tensor) -> Tensor:
    """The cross-entropy of all targets together, in nats; 0 if there are none."""
    rows, labels = scores_BTV.flatten(0, 1), labels_BT.flatten()
    return cross_entropy(rows, labels, reduction="sum", ignore_index=NO_LABEL)
