"""Codec keys: the chance with which one tensor is rounded on its way over a boundary.

A key depends on the run, the step, the microbatch, the place in the model, the direction and the
tensor's name. It depends on no peer, attempt, incarnation or time. So a replay, a neighbour's
copy, a second server of the stage and a plain loop round the same values to the same bytes.

The place is the number of the first block above the cut, not the number of the stage: another cut
elsewhere does not change it.
"""

import hashlib

from p2pswarm.tensors.codecs.base import TensorUse

KEY_BYTES = 8
TAG = b"p2pswarm-codec-key-1"
WAYS = {TensorUse.ACTIVATION: b"up", TensorUse.GRADIENT: b"down"}


def codec_key(
    seed: int, step: int, microbatch: int, block: int, use: TensorUse, name: str
) -> bytes:
    """The key of one tensor: `microbatch` by its global number, `block` the first above the cut."""
    numbers = b"".join(each.to_bytes(8) for each in (seed, step, microbatch, block))
    return hashlib.sha256(TAG + numbers + WAYS[use] + name.encode()).digest()[:KEY_BYTES]
