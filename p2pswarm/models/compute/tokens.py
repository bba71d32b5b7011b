"""Tokens as a stage computes on them: ids to look up, and labels of those that are targets.

Shapes:  tokens_BS has B rows of S = T + 1 tokens, with marks (`data/samples/target_marks.py`) where
         rows tell their targets; ids_BS; labels_BT are one place further, NO_LABEL where no target
         stands.
"""
# ruff: noqa: N803, N806  shapes are written at the end of names

import torch
from torch import Tensor

from p2pswarm.base.errors import BadMessage
from p2pswarm.data.samples.target_marks import (
    IDS,
    MARKS,
    NO_TARGET,
    NUMBER_BITS,
    NUMBER_MASK,
    NUMBER_SHIFT,
    NUMBER_TOKENS,
)
from p2pswarm.models.base import LONE_KEY, POSITION_KEY, TOKENS, Bundle, Value
from p2pswarm.models.document_positions import KEPT_APART, MARKED, document_positions
from p2pswarm.models.losses.cross_entropy import NO_LABEL
from p2pswarm.settings.config import ModelConfig, RunConfig

MARKS_AND_IDS = MARKS | IDS


NUMBER_MOST = 1e9  # of either sign: far more nats than a row has


def checked_tokens(tokens_BS: Tensor, device: torch.device, run: RunConfig) -> Tensor:
    """Tokens from a peer, checked, on the device and as int64, with the marks that the run has."""
    low, high = torch.stack(tokens_BS.aminmax()).tolist()
    vocabulary = run.model.vocabulary
    if run.batch.marked and low >= 0:
        tokens_BS = tokens_BS.to(torch.int64)
        if run.objective.refers:
            _check_numbers(tokens_BS)
            high = int((tokens_BS & MARKS_AND_IDS).max())
        if high <= MARKS_AND_IDS:
            high = int(ids_of(tokens_BS).max())
    if low < 0 or high >= vocabulary:
        raise BadMessage(f"tokens {low}..{high}, the vocabulary has {vocabulary}")
    return tokens_BS.to(device, torch.int64, non_blocking=True)  # the GPU waits, and not we


def _check_numbers(tokens_BS: Tensor) -> None:
    """Raise BadMessage unless each row has a number that is one, and no other bits."""
    above_BS = tokens_BS >> NUMBER_SHIFT
    spare = 64 - NUMBER_BITS * (NUMBER_TOKENS - 1)
    if above_BS[:, NUMBER_TOKENS:].any() or (above_BS[:, NUMBER_TOKENS - 1] >> spare).any():
        raise BadMessage("a row with bits that are no reference")
    numbers_B = numbers_in(tokens_BS)
    if not (numbers_B.isfinite() & (numbers_B.abs() <= NUMBER_MOST)).all():
        raise BadMessage(f"references of {numbers_B.tolist()[:4]} nats: all are to be finite")


def numbers_in(tokens_BS: Tensor) -> Tensor:
    """The number that each row carries, as `data/samples/target_marks.py` writes it; float64."""
    parts_BN = tokens_BS[:, :NUMBER_TOKENS] >> NUMBER_SHIFT & NUMBER_MASK
    shifts_N = torch.arange(NUMBER_TOKENS, device=tokens_BS.device) * NUMBER_BITS
    return (parts_BN << shifts_N).sum(1).view(torch.float64)


def references_in(tokens_BS: Tensor, run: RunConfig) -> Tensor | None:
    """What each row carries as its reference; None in a run without any."""
    return numbers_in(tokens_BS) if run.objective.refers else None


def ids_of(tokens_BS: Tensor) -> Tensor:
    """Tokens without their marks."""
    return tokens_BS & IDS


def first_value(tokens_BT: Tensor, model: ModelConfig) -> Value:
    """What the first block is given: ids, and positions where rows tell where documents begin."""
    ids_BT = ids_of(tokens_BT)
    if model.documents != MARKED:
        return ids_BT
    return {LONE_KEY: ids_BT, POSITION_KEY: document_positions(model, tokens_BT)}


def beside_blocks(tokens_BT: Tensor, model: ModelConfig) -> Bundle:
    """What may pass beside a stage's blocks: ids, and positions if documents are kept apart."""
    made = {TOKENS: ids_of(tokens_BT)}
    if model.documents in KEPT_APART:
        made[POSITION_KEY] = document_positions(model, tokens_BT)
    return made


def labels_of(tokens_BS: Tensor) -> Tensor:
    """What each place of a row is to predict; NO_LABEL: nothing."""
    next_BT = tokens_BS[:, 1:]
    return torch.where(next_BT & NO_TARGET == 0, ids_of(next_BT), NO_LABEL)


def targets_in(tokens_BS: Tensor) -> int:
    """How many targets there are; on the host, lest a GPU be waited for."""
    next_BT = tokens_BS[:, 1:]
    if next_BT.dtype == torch.uint8:
        return next_BT.numel()
    return int((next_BT & NO_TARGET == 0).count_nonzero())
