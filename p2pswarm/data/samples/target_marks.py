"""Marks in rows of tokens: which are targets of training, and which a model only reads.

A token that is no target has a bit above all ids; the first of a document has another besides. So
marks travel where tokens travel, cost nothing, and every member of a run sees the same ones. The
first token of a row is no target of its row, with or without a mark: nothing stands before it.

Shapes:  tokens_BS as `corpus.py`; rows with marks are int32.
"""
# ruff: noqa: N803, N806  shapes are written at the end of names

from typing import Any

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.integer[Any]]

NO_TARGET = 1 << 22  # no vocabulary is so large
BEGIN = 1 << 23
IDS = NO_TARGET - 1


def with_marks(tokens: Integers, targets: NDArray[np.bool_]) -> NDArray[np.int32]:
    """Tokens with marks on all but `targets`; both of one shape."""
    ids = tokens.astype(np.int32)
    return np.where(targets, ids, ids | NO_TARGET)


def marked_document(tokens: Integers, targets: NDArray[np.bool_]) -> NDArray[np.int32]:
    """A document as it is stored: its first token is no target, because nothing stands before."""
    document = with_marks(tokens, targets)
    document[0] |= NO_TARGET | BEGIN
    return document


def targets_in(tokens_BS: Integers) -> int:
    """How many targets rows have, each row but for its first token."""
    targets_BT = tokens_BS[:, 1:]
    if targets_BT.dtype == np.uint8:
        return targets_BT.size
    return int(np.count_nonzero(targets_BT & NO_TARGET == 0))
