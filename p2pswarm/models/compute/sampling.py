"""The next token, drawn by a model's scores.

Shapes:  scores_V: one for each of V tokens; a higher one is likelier.
Errors:  Unusable for scores that are no numbers.
Source:  top-p: arxiv.org/abs/1904.09751, "nucleus sampling"; top-k as in transformers.
"""
# ruff: noqa: N803, N806  shapes are written at the end of names

from dataclasses import dataclass

import torch
from torch import Tensor

from p2pswarm.base.errors import Unusable


@dataclass(frozen=True, kw_only=True, slots=True)
class Sampling:
    """How a token is drawn."""

    temperature: float = 0.8
    """0: always the likeliest; 1: as likely as in the text that was learnt."""
    top_k: int = 0
    """Only among so many of the likeliest; 0: among all."""
    top_p: float = 1.0
    """Only among the likeliest that have this chance together, one at least."""


def drawn(scores_V: Tensor, how: Sampling, generator: torch.Generator) -> int:
    """A token."""
    if not torch.isfinite(scores_V.max()):  # NaN wins every comparison
        raise Unusable("the model's scores are no numbers: its weights are spoilt")
    if how.temperature == 0:
        return int(scores_V.argmax())
    likeliest_V, tokens_V = scores_V.sort(descending=True, stable=True)
    if how.top_k:
        likeliest_V, tokens_V = likeliest_V[: how.top_k], tokens_V[: how.top_k]
    chances_V = torch.softmax((likeliest_V - likeliest_V[0]) / how.temperature, 0)
    before_V = chances_V.cumsum(0) - chances_V
    before_V[0] = 0.0  # the likeliest stays, whatever rounding says
    chances_V = chances_V.where(before_V < max(how.top_p, torch.finfo(chances_V.dtype).tiny), 0.0)
    return int(tokens_V[torch.multinomial(chances_V, 1, generator=generator)])
