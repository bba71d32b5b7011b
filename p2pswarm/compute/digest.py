"""The digest of a stage's numbers: the same for the same bytes, on whatever device they are.

The digest is the SHA-256 of the SHA-256s of pieces. One thread hashes 1.8 GB/s, and a GPU would
wait for it after every step of a large stage. So threads hash the pieces side by side, each as soon
as it is on the host.

Shapes:  N elements of one dtype.
"""
# ruff: noqa: N803  shapes are written at the end of names

import hashlib
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from p2pswarm.tensors.codecs.base import bytes_of

PIECE_BYTES = 8 << 20  # 5 ms of hashing: starting a thread costs little beside it
THREADS = 8  # 14 GB/s, about as fast as bytes come from a GPU


def digest_of(x_N: Tensor, piece_bytes: int = PIECE_BYTES) -> bytes:
    """The digest of the bytes of a contiguous tensor on any device.

    Digests can be compared only if they were made with the same `piece_bytes`.
    """
    parts = torch.split(x_N.detach(), piece_bytes // x_N.element_size())
    if len(parts) == 1:  # no thread for a small stage
        return hashlib.sha256(_sha256(parts[0].cpu())).digest()
    with ThreadPoolExecutor(THREADS) as pool:
        hashes = [pool.submit(_sha256, part.cpu()) for part in parts]
        return hashlib.sha256(b"".join(each.result() for each in hashes)).digest()


def _sha256(x_N: Tensor) -> bytes:
    return hashlib.sha256(bytes_of(x_N)).digest()
