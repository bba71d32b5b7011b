"""Rounds float32 to bfloat16 by chance: the same bits on every replica and every processor.

A step of the optimizer changes a weight by less than a bfloat16 can tell, and rounding to the
nearest would lose most of it. Here a value becomes one of its two neighbours, each as often as
the other is far: so in the mean of many steps nothing is lost. What has 16 fraction bits of zero
stays.

The chance is a hash of the run's seed, the step, the parameter's full name and the element's
place in the parameter. It knows nothing of stages, pieces, chunks or devices. It is made by
integer arithmetic alone: SHA-256 of seed, step and name seeds SplitMix64, and element e takes 16
bits of its word e // 4. A float32 has 16 bits more than a bfloat16: these are added to them, and
the carry rounds up.

The largest bfloat16 below infinity is 0x7F7F, 3.39e38. What lies above it stays there, whatever
the chance: a carry would make it infinite, and no later step would bring it back. Infinities
stay; NaN becomes the one of 0x7FC0, because processors make others.

Shapes:  C elements from a place of a flat buffer of N.
Source:  Gupta et al., "Deep Learning with Limited Numerical Precision" (2015); SplitMix64:
  Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators" (OOPSLA 2014).
"""

import hashlib
from bisect import bisect_right
from collections.abc import Sequence

import torch
from torch import Tensor

from p2pswarm.tensors.flat_layout import FlatTensor

# ruff: noqa: N803, N806  shapes are written at the end of names

TAG = "p2pswarm-round-1"  # another way to draw is another tag
GAMMA = 0x9E3779B97F4A7C15 - (1 << 64)
MIXES = ((30, 0xBF58476D1CE4E5B9 - (1 << 64)), (27, 0x94D049BB133111EB - (1 << 64)))
LAST_SHIFT = 31
PER_WORD = 4  # chances in a word of 64 bits
DROPPED_BITS = 16  # of a float32 that a bfloat16 does not have
CHANCES = 1 << DROPPED_BITS
EXPONENT = 0x7F800000
NAN = 0x7FC00000
LARGE = 2.0**127


class ChanceRounding:
    """Puts weights where they are kept in bfloat16."""

    def __init__(self, seed: int, tensors: Sequence[FlatTensor], place_N: Tensor) -> None:
        """`seed` of the run; `tensors`: the parameters whose weights `place_N` has, in order."""
        self._seed = seed
        self._tensors = tensors
        self._stops = [tensor.stop for tensor in tensors]
        self._place_N = place_N

    def store(self, value_C: Tensor, start: int, step: int) -> None:
        """Round the float32 values of the elements from `start` on in one step, and keep them."""
        stop = start + len(value_C)
        chance_C = torch.zeros(len(value_C), dtype=torch.int16, device=value_C.device)
        for tensor in self._tensors[bisect_right(self._stops, start) :]:
            if tensor.start >= stop:
                break
            first, last = max(start, tensor.start), min(stop, tensor.stop)
            key = key_of(self._seed, step, tensor.name)
            span = first - tensor.start, last - tensor.start
            chance_C[first - start : last - start] = chances(key, span, value_C.device)
        self._place_N[start:stop] = rounded(value_C, chance_C)


def key_of(seed: int, step: int, name: str) -> int:
    """The seed of a parameter's SplitMix64 in one step, as a signed number of 64 bits."""
    hashed = hashlib.sha256(f"{TAG}:{seed}:{step}:{name}".encode()).digest()
    return int.from_bytes(hashed[:8], "little", signed=True)


def chances(key: int, span: tuple[int, int], device: torch.device) -> Tensor:
    """The chances of some elements of a parameter, of 16 bits each; int16."""
    start, stop = span
    first, last = start // PER_WORD, -(-stop // PER_WORD)
    word_W = torch.arange(first + 1, last + 1, dtype=torch.int64, device=device)
    word_W.mul_(GAMMA).add_(key)
    for shift, factor in MIXES:
        word_W.bitwise_xor_(_shifted(word_W, shift)).mul_(factor)
    word_W.bitwise_xor_(_shifted(word_W, LAST_SHIFT))
    low = start - first * PER_WORD
    return word_W.view(torch.int16)[low : low + stop - start]


def rounded(value_C: Tensor, chance_C: Tensor) -> Tensor:
    """The bfloat16 that float32 values become by chances of 16 bits, as int16."""
    bits_C = value_C.view(torch.int32)
    up_C = (bits_C + chance_C).add_(CHANCES // 2)  # the chance has a sign, this takes it away
    if value_C.device.type != "cpu" or not _far_from_infinity(value_C):
        over_C = (up_C & EXPONENT) == EXPONENT
        up_C = torch.where(over_C, bits_C, up_C).masked_fill_(value_C.isnan(), NAN)
    return (up_C >> DROPPED_BITS).to(torch.int16).view(torch.bfloat16)


def _far_from_infinity(value_C: Tensor) -> bool:
    """Return whether no value is NaN or so large that a carry makes it infinite.

    On a CPU it costs a twentieth of what it saves. A GPU would have to wait for the answer.
    """
    low, high = value_C.aminmax()
    return low.item() > -LARGE and high.item() < LARGE


def _shifted(word_W: Tensor, bits: int) -> Tensor:
    """Shifted to the right as a word without a sign, which torch has not on every device."""
    return (word_W >> bits).bitwise_and_((1 << (64 - bits)) - 1)
