"""Marks in rows of tokens: which are targets of training, and which a model only reads.

A token that is no target has a bit above all ids; the first of a document has another besides. So
marks travel where tokens travel, cost nothing, and every member of a run sees the same ones. The
first token of a row is no target of its row, with or without a mark: nothing stands before it.

A number of a row, as the reference of an answer, travels the same way: its 64 bits stand above the
marks of the row's first tokens, 7 in each.

Shapes:  tokens_BS as `corpus.py`; rows with marks are int32.
"""
# ruff: noqa: N803, N806  shapes are written at the end of names

import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.integer[Any]]

NO_TARGET = 1 << 22  # no vocabulary is so large
BEGIN = 1 << 23
IDS = NO_TARGET - 1
MARKS = BEGIN | NO_TARGET
NUMBER_SHIFT, NUMBER_BITS = 24, 7  # the sign's bit stays free: int32 is as the wire has it
NUMBER_MASK = (1 << NUMBER_BITS) - 1
NUMBER_TOKENS = 10  # of 7 bits each, for the 64 of a double


def with_marks(tokens: Integers, targets: NDArray[np.bool_]) -> NDArray[np.int32]:
    """Tokens with marks on all but `targets`; both of one shape."""
    ids = tokens.astype(np.int32)
    return np.where(targets, ids, ids | NO_TARGET)


def marked_document(tokens: Integers, targets: NDArray[np.bool_]) -> NDArray[np.int32]:
    """A document as it is stored: its first token is no target, because nothing stands before."""
    document = with_marks(tokens, targets)
    document[0] |= NO_TARGET | BEGIN
    return document


def with_number(tokens: NDArray[np.int32], number: float) -> NDArray[np.int32]:
    """A row of `NUMBER_TOKENS` tokens or more, with a number."""
    bits = int.from_bytes(np.float64(number).tobytes(), sys.byteorder)
    parts = [bits >> NUMBER_BITS * place & NUMBER_MASK for place in range(NUMBER_TOKENS)]
    row = tokens.copy()
    row[:NUMBER_TOKENS] |= np.array(parts, dtype=np.int32) << NUMBER_SHIFT
    return row


def targets_in(tokens_BS: Integers) -> int:
    """How many targets rows have, each row but for its first token."""
    targets_BT = tokens_BS[:, 1:]
    if targets_BT.dtype == np.uint8:
        return targets_BT.size
    return int(np.count_nonzero(targets_BT & NO_TARGET == 0))
