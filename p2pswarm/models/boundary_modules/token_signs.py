"""Fixed vectors of signs, one for each token, the same in all stages and kept in none.

A row is the sum of what its token says by itself and of what blocks have added. Where the first is
in part fixed, it need not cross a cut: the receiver makes it again. Each sign is a bit of a hash of
run, token and place, so no stage holds a table as large as an embedding.

Shapes:  tokens_BT; the vectors are of the model's width, +1 and -1.
"""
# ruff: noqa: D102, N803  torch knows forward; shapes end the names

import hashlib

import torch
from torch import Tensor, nn

from p2pswarm.models.boundary_modules.base import CutSizes

TAG = "p2pswarm-token-signs-1"  # another way to draw is another tag
GAMMA = 0x9E3779B97F4A7C15 - (1 << 64)
MIXES = ((30, 0xBF58476D1CE4E5B9 - (1 << 64)), (27, 0x94D049BB133111EB - (1 << 64)))
LAST_SHIFT = 31
WORD = 64  # signs of one hash


class TokenSigns(nn.Module):
    """The vectors of a run's tokens."""

    def __init__(self, sizes: CutSizes) -> None:
        super().__init__()
        self._width, self._dtype = sizes.width, sizes.dtype
        hashed = hashlib.sha256(f"{TAG}:{sizes.seed}".encode()).digest()
        self._key = int.from_bytes(hashed[:8], "little", signed=True)

    def forward(self, tokens_BT: Tensor) -> Tensor:
        words = -(-self._width // WORD)
        place = torch.arange(words, device=tokens_BT.device)
        word = tokens_BT.long().unsqueeze(-1) * words + place + 1
        word = word * GAMMA + self._key
        for shift, factor in MIXES:
            word = (word ^ _shifted(word, shift)) * factor
        word = word ^ _shifted(word, LAST_SHIFT)
        bit = torch.arange(WORD, device=tokens_BT.device)
        signs = 1 - 2 * ((word.unsqueeze(-1) >> bit) & 1)
        return signs.flatten(-2)[..., : self._width].to(self._dtype)


def _shifted(word: Tensor, bits: int) -> Tensor:
    """Shifted to the right as a word without a sign."""
    return (word >> bits) & ((1 << (64 - bits)) - 1)
