"""The learned projector: k orthonormal columns at first, and what a token says by itself.

The sender multiplies by k columns, the receiver by their transpose. Both train by themselves, from
the same columns. Much of a row is what its token alone says, and the receiver has the tokens. So it
adds that itself: fixed signs, where rows begin with them, and a table that trains, in two factors
because a vocabulary is large.

Optimizers move all matrices alike, and these are to move less. So the parameters are the columns
over `STEP`: eight times as large, and an update changes them by an eighth.

Source:  MAPL, arXiv 2606.05484. There both ends share one projector, which stays orthonormal and
         has a rate of a tenth.
"""
# ruff: noqa: D102, N803, N806  `Half` documents draw and forward; shapes end the names

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812  torch's own name for it

from p2pswarm.models.boundary_modules.base import CutSizes, Half
from p2pswarm.models.boundary_modules.token_signs import TokenSigns

STEP = 0.125  # a power of two: so it rounds nothing


class ProjectorSender(Half):
    """Rows, less what their tokens fix, times k columns."""

    def __init__(self, sizes: CutSizes) -> None:
        super().__init__()
        self._sizes = sizes
        self.signs = TokenSigns(sizes) if sizes.signs else None
        self.down = sizes.empty(sizes.narrow, sizes.width)

    def draw(self, generator: torch.Generator) -> None:
        del generator
        self.down.copy_(self._sizes.columns_DK().T / STEP)

    def forward(self, value: Tensor, tokens_BT: Tensor | None) -> Tensor:
        assert tokens_BT is not None, "the pair asks for tokens"
        free_BTD = value if self.signs is None else value - self.signs(tokens_BT)
        return F.linear(free_BTD, self.down) * STEP


class ProjectorReceiver(Half):
    """What came times the transpose, and what the token says."""

    tables = ("anchor_VR",)

    def __init__(self, sizes: CutSizes) -> None:
        super().__init__()
        self._sizes = sizes
        rank = min(sizes.narrow, sizes.vocabulary)
        self.signs = TokenSigns(sizes) if sizes.signs else None
        self.up = sizes.empty(sizes.width, sizes.narrow)
        self.anchor_VR = sizes.empty(sizes.vocabulary, rank)
        self.anchor_up = sizes.empty(sizes.width, rank)

    def draw(self, generator: torch.Generator) -> None:
        self.up.copy_(self._sizes.columns_DK() / STEP)
        self.anchor_VR.normal_(0.0, 1.0, generator=generator)
        self.anchor_up.zero_()

    def forward(self, value: Tensor, tokens_BT: Tensor | None) -> Tensor:
        assert tokens_BT is not None, "the pair asks for tokens"
        anchor_BTD = F.linear(F.embedding(tokens_BT, self.anchor_VR), self.anchor_up)
        made_BTD = F.linear(value, self.up) * STEP + anchor_BTD
        return made_BTD if self.signs is None else made_BTD + self.signs(tokens_BT)
