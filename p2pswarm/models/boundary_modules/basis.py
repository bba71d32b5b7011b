"""Columns that are orthogonal to each other, with the same bits on every processor.

They are of a Hadamard matrix whose rows have signs drawn from a seed: of one matrix where the rows
are a power of two, else of several along the diagonal. So no QR is needed, whose last bits are the
library's. Each column has the norm 1, but for the rounding of one root.

All cuts of a run have the same columns, so what passed the first one passes all.

Shapes:  D rows, K columns.
"""
# ruff: noqa: N806  shapes are written at the end of names

import hashlib

import torch
from torch import Tensor

TAG = "p2pswarm-basis-1"  # another way to draw is another tag


def orthonormal_columns(seed: int, rows: int, columns: int, dtype: torch.dtype) -> Tensor:
    """The first `columns` of them, column by column: a model's matrix may be large."""
    side = rows & -rows  # the largest power of two that divides it
    parts = rows // side
    signs_D = _signs(seed, rows).to(torch.float64) * side**-0.5
    place = torch.arange(side)
    found_DK = torch.zeros(rows, columns, dtype=dtype)
    for column in range(columns):
        same = torch.bitwise_and(place, column // parts)
        for shift in (16, 8, 4, 2, 1):  # the parity of its bits
            same = same ^ (same >> shift)
        part = slice(column % parts * side, (column % parts + 1) * side)
        found_DK[part, column] = (1 - 2 * (same & 1)) * signs_D[part]
    return found_DK


def _signs(seed: int, count: int) -> Tensor:
    drawn = hashlib.shake_128(f"{TAG}:{seed}".encode()).digest(count)
    return torch.tensor([1 - 2 * (byte & 1) for byte in drawn])
