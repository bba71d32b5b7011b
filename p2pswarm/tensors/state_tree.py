"""The hash tree of a stage's state: so that one piece of it can be checked alone.

The state is a list of tensors of one length: the weights, and the first and second moments of the
optimizer. A piece is the same elements of each of them: what one part of a commit changes lies in
one piece. It has P elements, or fewer where the next row block (`flat_layout.py`) would lie across
its end, or up to an eighth more. The hash of a piece is the SHA-256 of its bytes, tensor after
tensor. The digest of the state is the SHA-256 of the hashes of its pieces, one after another.

Digests can be compared only if they were made with the same P.

Of a run that freezes some of its model, the list of hashes has one more at its end, the leaf of the
stage's frozen weights: they are no piece, because they never change. So a digest tells on which
base a state stands, and whoever has the hashes of a stage knows what its base should be.

Units:   elements, whatever their dtype.
"""

import hashlib
import itertools
from collections.abc import Iterable

from p2pswarm.tensors.flat_layout import Span

PIECE_VALUES = 1 << 19  # 6 MiB of float32 in three tensors: 0.25 s at 200 Mbit/s, 3 ms of hashing

BASE_TAG = b"p2pswarm-base-1:"  # another order or format of frozen weights is another tag
SLACK = 8  # an eighth: a norm's weights between two matrices make no piece of their own


def piece_spans(
    length: int, piece_values: int = PIECE_VALUES, whole: Iterable[Span] = ()
) -> list[Span]:
    """Return where the pieces of a state lie; an empty state has one piece.

    `whole`: in their order, spans that lie in one piece each. A piece is longer by an eighth where
    that keeps such a span beside the few elements before it, and by more for one that is longer.
    """
    starts, bound = [0], 0
    for start, stop in (*whole, (length, length)):
        # From `bound` to `start` a piece may end anywhere.
        while start > (end := max(starts[-1] + piece_values, bound)):
            starts.append(end)
        if stop > starts[-1] + piece_values + piece_values // SLACK and start > starts[-1]:
            starts.append(start)
        bound = stop
    return list(itertools.pairwise((*starts, length)))


def piece_hash(parts: Iterable[memoryview]) -> bytes:
    """The hash of one piece: its part of each tensor, in order."""
    hashed = hashlib.sha256()
    for part in parts:
        hashed.update(part)
    return hashed.digest()


def base_leaves(roots: Iterable[bytes]) -> tuple[bytes, ...]:
    """The leaf of a stage whose blocks have frozen weights with these roots; none without any."""
    joined = b"".join(roots)
    return (hashlib.sha256(BASE_TAG + joined).digest(),) if joined else ()


def root_of(hashes: Iterable[bytes]) -> bytes:
    """The digest of a state whose pieces have these hashes."""
    return hashlib.sha256(b"".join(hashes)).digest()
