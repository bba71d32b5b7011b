"""Documents in one row that do not see each other: positions that begin again in each.

The token that ends a document stands at the beginning of the next one, so nothing of a document
reaches another, not even the guess of its first token. A row may begin within a document.

What passes from block to block is each token's position in its document. The rest follows from
it: a document begins where the position is 0. Between stages it does not travel: positions index
tables of angles, and each stage makes them of its own tokens.

Shapes:  B rows, T tokens a row.
"""
# ruff: noqa: N803, N806  shapes are written at the end of names

import torch
from torch import Tensor

from p2pswarm.data.samples.target_marks import BEGIN, IDS
from p2pswarm.models.base import LONE_KEY, POSITION_KEY, Bundle, Value
from p2pswarm.settings.config import ModelConfig

APART, MARKED = "apart", "marked"
"""The settings `run.model.documents` that ask for it: a token ends documents, or rows tell."""
KEPT_APART = frozenset({APART, MARKED})


def positions_of(tokens_BT: Tensor, end: int) -> Tensor:
    """The position of each token in its document; int32. `end`: the token that ends one, or -1."""
    return _positions(tokens_BT == end)


def marked_positions(tokens_BT: Tensor) -> Tensor:
    """The same of tokens whose marks tell where documents begin."""
    return _positions(tokens_BT & BEGIN != 0)


def document_positions(model: ModelConfig, tokens_BT: Tensor) -> Tensor:
    """The same as the model's setting `documents` has it; where they are joined, a row is one."""
    if model.documents == MARKED:
        return marked_positions(tokens_BT)
    if model.documents == APART:
        return positions_of(tokens_BT & IDS, model.document_end)
    place_T = torch.arange(tokens_BT.shape[1], dtype=torch.int32, device=tokens_BT.device)
    return place_T.repeat(len(tokens_BT), 1)


def _positions(begins_BT: Tensor) -> Tensor:
    place_T = torch.arange(begins_BT.shape[1], dtype=torch.int32, device=begins_BT.device)
    begin_BT = torch.where(begins_BT, place_T, torch.zeros_like(place_T))
    return place_T - begin_BT.cummax(dim=1).values


def positions_in(bundle: Bundle) -> Tensor | None:
    """What passes from the block before; None where documents are joined."""
    return bundle.get(POSITION_KEY)


def beside(x_BTD: Tensor, position_BT: Tensor | None) -> Value:
    """Return what travels to the next block; no positions: documents are joined."""
    return x_BTD if position_BT is None else {LONE_KEY: x_BTD, POSITION_KEY: position_BT}
