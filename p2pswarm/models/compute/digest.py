"""The digest of a stage's numbers: the same for the same bytes, on whatever device they are.

The digest is the root of the tree of `tensors/state_tree.py`. One thread hashes 1.8 GB/s, and a GPU
would wait for it after every step of a large stage. So threads hash the pieces side by side, each
as soon as it is on the host.

Shapes:  N elements of one dtype in each tensor.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from torch import Tensor

from p2pswarm.tensors.codecs.base import bytes_of
from p2pswarm.tensors.flat_layout import Span
from p2pswarm.tensors.state_tree import piece_hash, root_of

THREADS = 8  # 14 GB/s, about as fast as bytes come from a GPU


def digest_of(tensors: Sequence[Tensor], spans: Sequence[Span]) -> bytes:
    """The digest of contiguous tensors of one length, on any device; `spans`: its pieces'."""
    return root_of(piece_hashes(tensors, spans))


def piece_hashes(tensors: Sequence[Tensor], spans: Sequence[Span]) -> list[bytes]:
    """The hash of each piece of contiguous tensors of one length, on any device."""
    pieces = ([x.detach()[start:stop].cpu() for x in tensors] for start, stop in spans)
    if len(spans) == 1:  # no thread for a small stage
        return [_hash(next(pieces))]
    with ThreadPoolExecutor(THREADS) as pool:
        hashes = [pool.submit(_hash, piece) for piece in pieces]
        return [each.result() for each in hashes]


def _hash(parts: Sequence[Tensor]) -> bytes:
    return piece_hash(bytes_of(part) for part in parts)
