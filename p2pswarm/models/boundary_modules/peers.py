"""Modules of others' papers, to compare with: a bottleneck, maxout, and ResBM's residual one.

Source:  SWARM, arXiv 2301.11913, for bottleneck and maxout; ResBM, arXiv 2604.11947.
"""
# ruff: noqa: D102, N803  `Half` documents draw and forward; shapes end the names

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812  torch's own name for it

from p2pswarm.base.errors import Unusable
from p2pswarm.models.boundary_modules.base import CutSizes, Half

RESIDUAL_STD = 0.01  # of ResBM's matrices at first: what crosses is then the identity's
HIDDEN_RATIO, HIDDEN_LEAST = 4, 64  # hidden features over those that cross, and the fewest


class LinearHalf(Half):
    """A matrix, at both ends of a bottleneck and behind maxout."""

    def __init__(self, given: int, made: int, sizes: CutSizes) -> None:
        super().__init__()
        self.weight = sizes.empty(made, given)

    def draw(self, generator: torch.Generator) -> None:
        self.weight.normal_(0.0, self.weight.shape[1] ** -0.5, generator=generator)

    def forward(self, value: Tensor, tokens_BT: Tensor | None) -> Tensor:
        del tokens_BT
        return F.linear(value, self.weight)


class MaxoutSender(Half):
    """The largest of each group of features that lie together."""

    def __init__(self, sizes: CutSizes) -> None:
        super().__init__()
        if sizes.width % sizes.narrow:
            raise Unusable(
                f'run.model.boundary = "maxout" takes the largest of groups of one size: set '
                f"run.model.boundary_width to a divisor of {sizes.width}, not {sizes.narrow}"
            )
        self._groups = sizes.narrow

    def draw(self, generator: torch.Generator) -> None:
        del generator

    def forward(self, value: Tensor, tokens_BT: Tensor | None) -> Tensor:
        del tokens_BT
        return value.reshape(*value.shape[:-1], self._groups, -1).amax(-1)


class ResidualHalf(Half):
    """A small MLP beside a rectangular identity, which cuts features off or sets zeros behind."""

    def __init__(self, given: int, made: int, sizes: CutSizes) -> None:
        super().__init__()
        self._made = made
        hidden = max(HIDDEN_RATIO * sizes.narrow, HIDDEN_LEAST)
        self.hidden = sizes.empty(hidden, given)
        self.out = sizes.empty(made, hidden)

    def draw(self, generator: torch.Generator) -> None:
        for weight in (self.hidden, self.out):
            weight.normal_(0.0, RESIDUAL_STD, generator=generator)

    def forward(self, value: Tensor, tokens_BT: Tensor | None) -> Tensor:
        del tokens_BT
        made = F.linear(F.silu(F.linear(value, self.hidden)), self.out)
        return made + F.pad(value, (0, self._made - value.shape[-1]))
