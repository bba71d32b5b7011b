"""Sketches: sixteen numbers that tell how far apart two tensors are, without the tensors.

Units:   none; sums are taken in float64.
Shapes:  the sketch of a bundle is the sum of its tensors', each with signs of its own. Whole
         numbers count together as long as all else: they are large, and beside their squares a
         difference of an activation would vanish.
Source:  count sketch, Charikar, Chen and Farach-Colton 2002, with one row.
"""
# ruff: noqa: N803, N806  shapes are written at the end of names

import hashlib
import math

import numpy as np
import torch
from torch import Tensor

from p2pswarm.models.base import Bundle
from p2pswarm.models.compute.torch_device import place_for

SKETCH_NUMBERS = 16  # then a distance is within a third of the true one, mostly
SIGNS_TAG = b"p2pswarm-sketch-1:"

Numbers = tuple[float, ...]


class Sketcher:
    """The signs of one run, as many as were needed so far.

    Every element gets a sign that all members derive from one seed. Each of the numbers is the sum
    of every sixteenth element with its sign. This is linear, so the distance of two sketches is
    the sketch of the difference, and its length is on average the length of the difference.
    Servers tell sketches of what they took and gave, and the trainer compares them
    (docs/spot_checks.md).
    """

    def __init__(self, seed: bytes) -> None:
        self._key = int.from_bytes(hashlib.sha256(SIGNS_TAG + seed).digest()[:16])
        self._signs_N = torch.empty(0, dtype=torch.int8)

    def of(self, bundle: Bundle) -> Numbers:
        """The sketch of a bundle; empty if it has no elements, or one that is not finite."""
        begin = 0
        sums: dict[bool, Tensor] = {}
        """Of whole numbers, and of the others."""
        for x in bundle.values():
            part, whole = self._sums(x.detach().reshape(-1), begin), not x.is_floating_point()
            sums[whole] = part if whole not in sums else sums[whole] + part.to(sums[whole].device)
            begin += x.numel()
        if not begin:
            return ()
        numbers = [each.tolist() for each in sums.values()]
        if len(sums) > 1:
            lengths = {whole: _length(bundle, whole=whole) for whole in sums}
            share = lengths[False] / lengths[True] if all(lengths.values()) else 1.0
            pairs = zip(sums[False].tolist(), sums[True].tolist(), strict=True)
            numbers = [[one + share * other for one, other in pairs]]
        (found,) = numbers
        return tuple(found) if all(map(math.isfinite, found)) else ()

    def _sums(self, x_N: Tensor, begin: int) -> Tensor:
        """Sixteen sums of elements with their signs; the first has the number `begin`."""
        end = begin + len(x_N)
        x_N = x_N.to(place_for(x_N.device, torch.float64))
        if len(self._signs_N) < end or self._signs_N.device != x_N.device:
            self._signs_N = self._drawn(max(end, len(self._signs_N))).to(x_N.device)
        signed_N = x_N.to(torch.float64) * self._signs_N[begin:end]
        tail = -len(signed_N) % SKETCH_NUMBERS
        whole = torch.nn.functional.pad(signed_N, (0, tail))
        return whole.view(-1, SKETCH_NUMBERS).sum(0)

    def _drawn(self, count: int) -> Tensor:
        """The first signs, the same on every machine: a generator of numbered bits."""
        raw = np.random.Philox(key=self._key).random_raw(-(-count // 64))
        bits = np.unpackbits(raw.astype("<u8").view(np.uint8), bitorder="little")[:count]
        return torch.from_numpy(bits.astype(np.int8) * 2 - 1)


def _length(bundle: Bundle, *, whole: bool) -> float:
    """The length of the bundle's whole numbers, or of its others, as one vector."""
    own = [x.detach() for x in bundle.values() if x.is_floating_point() is not whole]
    wide = [x.to(place_for(x.device, torch.float64), torch.float64) for x in own]
    return math.hypot(*(x.norm().item() for x in wide))
