"""What every model family is made of: blocks, and the loss of the last one.

Shapes:  B rows, T tokens a row, V vocabulary.
"""
# ruff: noqa: N803  shapes are written at the end of names

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  everybody's name for it

DTYPES = {"float32": torch.float32, "float64": torch.float64}


class Block(nn.Module, ABC):
    """One entry of the list; `forward` takes what the block before it made."""

    @abstractmethod
    def draw(self, generator: torch.Generator) -> None:
        """Fill the parameters with their first values."""


def loss_of(scores_BTV: Tensor, targets_BT: Tensor) -> Tensor:
    """Mean nats per token."""
    return F.cross_entropy(scores_BTV.flatten(0, 1), targets_BT.flatten())
