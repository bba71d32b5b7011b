"""Tokens as a stage computes on them: ids to look up, and labels of those that are targets.

Shapes:  tokens_BS has B rows of S = T + 1 tokens, with marks (`data/samples/target_marks.py`) where
         rows tell their targets; ids_BS; labels_BT are one place further, NO_LABEL where no target
         stands.
"""
# ruff: noqa: N803, N806  shapes are written at the end of names

import torch
from torch import Tensor

from p2pswarm.base.errors import BadMessage
from p2pswarm.data.samples.target_marks import BEGIN, IDS, NO_TARGET
from p2pswarm.models.base import LONE_KEY, Value
from p2pswarm.models.document_positions import MARKED, POSITION_KEY, marked_positions
from p2pswarm.models.losses.cross_entropy import NO_LABEL
from p2pswarm.settings.config import ModelConfig


def checked_tokens(
    tokens_BS: Tensor, device: torch.device, vocabulary: int, *, marked: bool
) -> Tensor:
    """Tokens from a peer, checked, on the device and as int64; `marked`: rows have marks."""
    low, high = torch.stack(tokens_BS.aminmax()).tolist()
    if marked and 0 <= low <= high <= BEGIN | NO_TARGET | IDS:
        tokens_BS = tokens_BS.to(torch.int64)
        high = int(ids_of(tokens_BS).max())
    if low < 0 or high >= vocabulary:
        raise BadMessage(f"tokens {low}..{high}, the vocabulary has {vocabulary}")
    return tokens_BS.to(device, torch.int64, non_blocking=True)  # the GPU waits, and not we


def ids_of(tokens_BS: Tensor) -> Tensor:
    """Tokens without their marks."""
    return tokens_BS & IDS


def first_value(tokens_BT: Tensor, model: ModelConfig) -> Value:
    """What the first block is given: ids, and positions where rows tell where documents begin."""
    ids_BT = ids_of(tokens_BT)
    if model.documents != MARKED:
        return ids_BT
    return {LONE_KEY: ids_BT, POSITION_KEY: marked_positions(tokens_BT)}


def labels_of(tokens_BS: Tensor) -> Tensor:
    """What each place of a row is to predict; NO_LABEL: nothing."""
    next_BT = tokens_BS[:, 1:]
    return torch.where(next_BT & NO_TARGET == 0, next_BT, NO_LABEL)


def targets_in(tokens_BS: Tensor) -> int:
    """How many targets there are; on the host, lest a GPU be waited for."""
    next_BT = tokens_BS[:, 1:]
    if next_BT.dtype == torch.uint8:
        return next_BT.numel()
    return int((next_BT & NO_TARGET == 0).count_nonzero())
