"""Subspace networks: below the last cut all that is added to a row lies in one subspace.

A row begins as a fixed vector of its token, F. Whatever a block below the last cut adds is `U c`,
with k orthonormal columns U. So `c = (x - F) U` has all of a row that its token does not say, and
nothing is lost. Matrices that write have k rows instead of the model's width: no step has to
project them back. F and U are the same in all stages.

Source:  Subspace Networks, arXiv 2506.01260; PluralisResearch/ProtocolNanoGPT, for the matrices of
         k rows. There F is normal.
"""
# ruff: noqa: D102, N803  `Half` documents draw and forward; shapes end the names

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  torch's own name for it

from p2pswarm.models.boundary_modules.base import CutSizes, Half
from p2pswarm.models.boundary_modules.token_signs import TokenSigns


class Subspace(nn.Module):
    """U, and how rows come from what lies in the subspace."""

    def __init__(self, sizes: CutSizes) -> None:
        super().__init__()
        self._sizes = sizes
        self._columns: tuple[Tensor, ...] = ()
        """U where it was used last; no buffer, so that each device makes its own."""

    def widened(self, c_BTK: Tensor) -> Tensor:
        """The rows of the model's width that c stands for."""
        return F.linear(c_BTK, self._there(c_BTK))

    def narrowed(self, x_BTD: Tensor) -> Tensor:
        """What lies in the subspace of rows."""
        return F.linear(x_BTD, self._there(x_BTD).T)

    def _there(self, like: Tensor) -> Tensor:
        if not self._columns or self._columns[0].device != like.device:
            self._columns = (self._sizes.columns_DK().to(like.device),)
        return self._columns[0]


class SubspaceHalf(Half):
    """What the halves have in common."""

    def __init__(self, sizes: CutSizes) -> None:
        super().__init__()
        self.subspace, self.signs = Subspace(sizes), TokenSigns(sizes)

    def draw(self, generator: torch.Generator) -> None:
        del generator


class SubspaceSender(SubspaceHalf):
    """Takes the token's vector away, and gives what is left in the subspace: all of it."""

    def forward(self, value: Tensor, tokens_BT: Tensor | None) -> Tensor:
        assert tokens_BT is not None, "the pair asks for tokens"
        return self.subspace.narrowed(value - self.signs(tokens_BT))


class SubspaceReceiver(SubspaceHalf):
    """Makes the row again."""

    def forward(self, value: Tensor, tokens_BT: Tensor | None) -> Tensor:
        assert tokens_BT is not None, "the pair asks for tokens"
        made: Tensor = self.subspace.widened(value) + self.signs(tokens_BT)
        return made
