"""What both halves of a module at a cut are.

Shapes:  x_BTD are rows of the model's width, z_BTK what crosses; tokens_BT are their tokens.
"""
# ruff: noqa: N802, N803  shapes are written at the end of names

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from p2pswarm.models.boundary_modules.basis import orthonormal_columns


@dataclass(frozen=True, slots=True)
class CutSizes:
    """The sizes that a cut's modules are made of."""

    width: int
    """Of the model."""
    narrow: int
    """The values that cross for each token."""
    vocabulary: int
    dtype: torch.dtype
    seed: int
    """Of the run."""
    signs: bool = False
    """True if rows begin with their token's fixed signs (`token_signs.py`)."""

    def columns_DK(self) -> Tensor:
        """Orthonormal columns: as many as there are values that cross."""
        return orthonormal_columns(self.seed, self.width, self.narrow, self.dtype)

    def empty(self, *shape: int) -> nn.Parameter:
        """A parameter without a value."""
        return nn.Parameter(torch.empty(*shape, dtype=self.dtype))


class Half(nn.Module, ABC):
    """The sender's half, or the receiver's."""

    tables: tuple[str, ...] = ()
    """Parameters with a row for each token: AdamW's also where matrices are Muon's."""

    @abstractmethod
    def draw(self, generator: torch.Generator) -> None:
        """Fill the parameters, as `models.base.Block` does."""

    @abstractmethod
    def forward(self, value: Tensor, tokens_BT: Tensor | None) -> Tensor:
        """Make z_BTK of x_BTD, or x_BTD of z_BTK; tokens where the pair asks for them."""
