"""GradientGrid: each microbatch's gradient as whole multiples of a step, so that sums are exact.

Additions of whole multiples of one power of two are exact in float32 as long as the sum stays
below 2^24 of them. So a sum has the same bits in any order and any grouping, whoever counted what.

A block of 256 values of a parameter has one step, a power of two below `NOISE` of the block's
usual gradient. What is usual is in the optimizer's second moments. So the grid is a function of
the state of a version: a newcomer, a checkpoint and a plain loop have it.

Moments are of gradients of the mean over a step's targets. What is rounded is weighed as if every
token were a target, because it is computed before the targets of the step are counted. So a
microbatch takes the step times the share of targets among its own tokens, as a power of two. This
share follows from its tokens, which whoever computes it has.

A value becomes one of its two neighbours on the grid, each as often as the other is far. The
chance depends on the run's seed, the step, the microbatch, the block of the model and the
parameter's name. It depends on no stage, peer or attempt.

Means are sums by halving, elementwise, and steps are made of bits: so every processor has the
same grid for the same state.

Shapes:  N elements in a stage, C of a chunk; S elements of a parameter, in B blocks.
Source:  Mishchenko et al., "IntSGD: Adaptive Floatless Compression" (arXiv 2102.08374).
"""
# ruff: noqa: N803, N806  shapes are written at the end of names

import functools
import hashlib
import logging
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import ModuleType

import numpy as np
import torch
from torch import Tensor

from p2pswarm.kernels import loader
from p2pswarm.models.blocks import averagings_of
from p2pswarm.settings.config import INT_GRID, BatchConfig, RunConfig
from p2pswarm.tensors.flat_layout import FlatLayout, FlatTensor, flat_layout

log = logging.getLogger(__name__)

BLOCK = 256  # values of one step
NOISE = 0.05  # what all roundings of a step add to a value, over its usual gradient, at the most
LOWER_MAX = 5  # powers of two: of less than 1 target in 32 tokens the step is that of 1 in 32
UNITS_LEAST = 1 << 13  # steps that any microbatch may add: some 1,000 times its usual gradient
FINEST = 2.0**-6  # a block's usual gradient counts as at least this share of its parameter's
UNKNOWN_POWER = -20  # of two: the step where no gradient was seen; a sum then reaches 8
SUM_UNITS = 1 << 23  # the most steps in a stage's sum: two ends of a tied model add to one
PERIOD = 16_381  # draws of chance, used again and again: a prime, so that columns meet them all
DRAW_BYTES = 2
CHUNK_BLOCKS = 256  # at a time: 256 KiB of float32 stay in a core's cache
GPU_CHUNK_BLOCKS = 1 << 14  # 16 MiB: a GPU wants large launches
CLAMPED_MAX = 1e-4  # the share of values beyond the grid that is worth a word
TAG = b"p2pswarm-grid-1"  # another way to draw is another tag
FRACTION_BITS, EXPONENT_BIAS = 23, 127  # of a float32
LEAST, MOST = 2.0**-126, 2.0**126  # of a squared step: it is a normal float32, and no sum overflows


@dataclass(frozen=True, slots=True)
class Leaf:
    """Where a gradient belongs: the parameter of a stage, and the block that it was used in."""

    block: int
    parameter: int
    """The place of the parameter in the stage's layout."""


class GradientGrid:
    """Rounds gradients to the grid of a version and adds them to the sum."""

    def __init__(
        self,
        run: RunConfig,
        layout: FlatLayout,
        square_N: Tensor,
        kernels: ModuleType | None = None,
        before: int = 0,
    ) -> None:
        """`square_N`: the optimizer's second moments, which the grid is read from.

        With a delay, those of the version that a step is computed with. `kernels`: compiled loops
        (`kernels_for`); `before`: as in `Update`.
        """
        self._seed, self._delay = run.seed, run.delay
        self.before = before
        """Updates before version 0 that the moments have seen."""
        self._beta2 = run.optimizer.beta2
        self._tensors = layout.parameters
        self._square_N = square_N
        self._kernels = kernels
        self._share = grid_share(run.batch.microbatches)
        self.units_max = SUM_UNITS // run.batch.microbatches
        """The most of the least steps that one microbatch adds to a value; more is clamped."""
        self._tokens = run.tokens_per_microbatch if run.counts_targets else 0
        """Of a microbatch, which could be targets; 0 where all are."""
        self._lower = _lower_of(self.units_max) if self._tokens else 0
        """By how many powers of two a microbatch's step may be lower than the grid's."""
        liked = CHUNK_BLOCKS if square_N.device.type == "cpu" else GPU_CHUNK_BLOCKS
        largest = max((tensor.stop - tensor.start for tensor in layout.parameters), default=1)
        self._chunk_blocks = min(liked, -(-largest // BLOCK))
        self._read: tuple[int, int] | None = None
        """The step, and the change of the moments, whose grid is here."""
        self._step_B1: list[Tensor] = []
        self._per_step_B1: list[Tensor] = []
        """Of each parameter."""
        self._greatest: list[float] = []
        """The reciprocal of each parameter's least step."""
        self._offsets: dict[Leaf, int] = {}
        self.values = self.clamped = 0
        """Of the step: how many values were rounded, and how many were beyond the grid."""

    @torch.no_grad()
    def add(
        self,
        leaves: Sequence[Leaf],
        parts: Sequence[Tensor],
        totals: Sequence[Tensor],
        squares: Sequence[float],
        of: tuple[int, int],
        targets: int,
    ) -> None:
        """Round the finite gradients of one microbatch, and add them.

        `squares`: their sums of squares; `of`: the step, and the microbatch by its global number;
        `targets`: how many it has.
        """
        self._follow(of[0])
        power = self._power_of(targets)
        finer, units_max = 2.0**power, self.units_max >> (self._lower + power)
        chance_C = self._chances(*of)
        work_C = torch.empty_like(chance_C[: self._chunk_blocks * BLOCK])
        for leaf, part, total, square in zip(leaves, parts, totals, squares, strict=False):
            number = leaf.parameter
            self.values += part.numel()
            far = math.sqrt(square) * self._greatest[number] >= finer * units_max / 2
            part_S, total_S, offset = part.reshape(-1), total.view(-1), self._offset(leaf)
            per_step_B1, step_B1 = self._per_step_B1[number], self._step_B1[number]
            if power:
                per_step_B1, step_B1 = per_step_B1 / finer, step_B1 * finer
            if self._kernels is not None and part_S.dtype == total_S.dtype:
                self.clamped += self._kernels.add_rounded(
                    *(part_S.detach().numpy(), chance_C.numpy(), offset),
                    *(per_step_B1.view(-1).numpy(), step_B1.view(-1).numpy()),
                    *(units_max, total_S.numpy()),
                )
                continue
            for blocks, places in self._chunks(part.numel()):
                part_C, first = part_S[places], (offset + places.start) % PERIOD
                rounded_C = work_C[: len(part_C)]
                drawn_C = chance_C[first : first + len(part_C)]
                _add_scaled(drawn_C, part_C, per_step_B1[blocks], rounded_C)
                rounded_C.round_()
                if far:
                    self.clamped += int((rounded_C.abs() > units_max).sum().item())
                    rounded_C.clamp_(-units_max, units_max)
                total_C = total_S[places]
                _add_scaled(total_C, rounded_C, step_B1[blocks], total_C)

    def _power_of(self, targets: int) -> int:
        """The power of two at or below the share of targets, no lower than the grid allows."""
        if not targets or not self._tokens:
            return 0
        return max(math.frexp(targets / self._tokens)[1] - 1, -self._lower)

    def _follow(self, step: int) -> None:
        """Read the grid of another version, and tell of clamped values of the one before."""
        read = step, self._square_N._version  # noqa: SLF001  how often it was changed in place
        if read == self._read:
            return
        if self.clamped > CLAMPED_MAX * self.values:
            log.warning(
                "averaging int-grid: %.2g of the gradient's values before step %d were beyond the "
                "grid and were clamped: lower the learning rate, raise optimizer.clip_norm if most "
                "steps are clipped, or set codecs.averaging to raw",
                self.clamped / self.values,
                step,
            )
        self.values = self.clamped = 0
        self._read = read
        count = self.before + max(step - self._delay, 0)
        rise = 1.0 / (1.0 - self._beta2**count) if count else 1.0  # as the optimizer corrects
        powers = [self._powers(tensor, rise) for tensor in self._tensors]
        dtype = self._square_N.dtype
        self._step_B1 = [power_of_two(power_B).to(dtype).unsqueeze(1) for power_B in powers]
        self._per_step_B1 = [power_of_two(-power_B).to(dtype).unsqueeze(1) for power_B in powers]
        least = [power_B.amin() for power_B in powers]
        self._greatest = [2.0**-power for power in torch.stack(least).tolist()] if least else []

    def _powers(self, tensor: FlatTensor, rise: float) -> Tensor:
        """The exponent of the step of each block of a parameter."""
        square_S = self._square_N[tensor.start : tensor.stop]
        size = max(1, len(square_S))
        blocks = max(1, -(-size // BLOCK))
        padded_BC = square_S.new_zeros(blocks, BLOCK)
        padded_BC.view(-1)[: len(square_S)].copy_(square_S)
        sum_B = sum_by_halves(padded_BC)
        count_B = torch.full_like(sum_B, 1.0 / BLOCK)
        count_B[-1] = 1.0 / (size - (blocks - 1) * BLOCK)
        whole = sum_by_halves(sum_B.unsqueeze(0)).mul_(1.0 / size)
        usual_B = torch.maximum(sum_B.mul_(count_B), whole * FINEST**2)
        target_B = usual_B.mul_(rise * self._share**2).clamp_(LEAST, MOST).to(torch.float32)
        unknown = UNKNOWN_POWER + self._lower // 2  # between finer steps and a greater sum
        return torch.where(whole > 0, power_below_root(target_B), unknown)

    def _chances(self, step: int, microbatch: int) -> Tensor:
        """Draws from -1/2 to 1/2 for a microbatch, as many as a chunk at any offset needs."""
        numbers = b"".join(each.to_bytes(8) for each in (self._seed, step, microbatch))
        stream = hashlib.shake_128(TAG + numbers).digest(PERIOD * DRAW_BYTES)
        draw_P = torch.from_numpy(np.frombuffer(stream, "<u2").astype(np.float32))
        chance_P = draw_P.add_(0.5).mul_(2.0**-16).sub_(0.5)
        chance_P = chance_P.to(self._square_N.device, self._square_N.dtype)
        return chance_P.repeat(2 + self._chunk_blocks * BLOCK // PERIOD)

    def _chunks(self, size: int) -> Iterator[tuple[slice, slice]]:
        """The blocks and the places of what is worked on at a time."""
        for first in range(0, -(-size // BLOCK), self._chunk_blocks):
            places = slice(first * BLOCK, min((first + self._chunk_blocks) * BLOCK, size))
            yield slice(first, -(-places.stop // BLOCK)), places

    def _offset(self, leaf: Leaf) -> int:
        """Where a parameter begins among the draws."""
        if leaf not in self._offsets:
            name = self._tensors[leaf.parameter].name.encode()
            hashed = hashlib.sha256(TAG + leaf.block.to_bytes(8) + name).digest()
            self._offsets[leaf] = int.from_bytes(hashed[:8]) % PERIOD
        return self._offsets[leaf]


def grid_of(
    run: RunConfig,
    numbers: range,
    layout: FlatLayout,
    square_N: Tensor,
    *,
    compiles: bool = False,
    before: int = 0,
) -> GradientGrid | None:
    """The grid of the blocks `numbers` of a run, if sums of some are whole numbers.

    `compiles`: it rounds by compiled loops where they do the same as torch. The first one of a
    process takes a second, and where nobody has compiled them some more. `before`: as in `Update`.
    """
    if INT_GRID not in averagings_of(run, numbers):
        return None
    kernels = kernels_for(square_N) if compiles else None
    return GradientGrid(run, layout, square_N, kernels, before)


def kernels_for(square_N: Tensor) -> ModuleType | None:
    """Compiled loops that round as torch does on this CPU; none for other tensors than float32."""
    here = square_N.device.type == "cpu" and square_N.dtype == torch.float32
    return _tried_kernels() if here else None


@functools.cache
def _tried_kernels() -> ModuleType | None:
    kernels = loader.kernels("grid_kernels")
    if kernels is None or torch.equal(_sample_sum(None), _sample_sum(kernels)):
        return kernels
    log.warning("compiled loops round gradients to other bits here: torch rounds them, slower")
    return None


def _sample_sum(kernels: ModuleType | None) -> Tensor:
    """The bits of a sum of gradients, some of which are clamped, and how many were."""
    layout = flat_layout(("float32",) * 3, [("a", (7, 100)), ("b", (70, 300))])
    place_N = torch.arange(layout.length, dtype=torch.int32)
    square_N = (place_N % 1021).to(torch.float32).mul_(2.0**-30)
    run = RunConfig(batch=BatchConfig(samples="whole"))  # with targets: steps are lower for fewer
    grid, sum_N = GradientGrid(run, layout, square_N, kernels), torch.zeros_like(square_N)
    for microbatch in range(4):
        gradient_N = ((place_N * 7919 + microbatch * 101) % 2003 - 1001).to(torch.float32)
        gradient_N.mul_(2.0**-20).div_(1 + place_N % 17)
        gradient_N[5] = 2.0**30
        cut = [slice(each.start, each.stop) for each in layout.tensors]
        parts, totals = [gradient_N[each] for each in cut], [sum_N[each] for each in cut]
        leaves = [Leaf(3, number) for number in range(len(cut))]
        squares = [part.double().square().sum().item() for part in parts]
        targets = run.tokens_per_microbatch >> microbatch
        grid.add(leaves, parts, totals, squares, (2, microbatch), targets)
    return torch.cat([sum_N.view(torch.int32), torch.tensor([grid.clamped], dtype=torch.int32)])


def _lower_of(units_max: int) -> int:
    """How many powers of two a step may be lower, so that all steps still add up exactly."""
    return min(LOWER_MAX, max(0, (units_max // UNITS_LEAST).bit_length() - 1))


def grid_share(microbatches: int) -> float:
    """The step over the usual gradient: a rounding has a sixth of its square as mean square."""
    return NOISE * math.sqrt(6.0 / microbatches)


def power_below_root(x: Tensor) -> Tensor:
    """The greatest exponents of powers of two that are at most the root of float32 values."""
    exponents = (x.view(torch.int32) >> FRACTION_BITS) - EXPONENT_BIAS
    return exponents >> 1  # rounded down, below zero too


def power_of_two(exponents: Tensor) -> Tensor:
    """Powers of two as float32; exponents of whole numbers from -126 to 127."""
    return (exponents.to(torch.int32) + EXPONENT_BIAS << FRACTION_BITS).view(torch.float32)


def sum_by_halves(x_RC: Tensor) -> Tensor:
    """The sums of rows, by adding their second half to the first again and again."""
    while (columns := x_RC.shape[1]) > 1:
        half = -(-columns // 2)
        joined = x_RC[:, :half].clone()
        joined[:, : columns - half] += x_RC[:, half:]
        x_RC = joined
    return x_RC[:, 0]


def _add_scaled(to_C: Tensor, x_C: Tensor, factor_B1: Tensor, out_C: Tensor) -> None:
    """Add the values of each block times its power of two; the last block may be shorter.

    The products are exact, so it does not matter whether a processor fuses them with the addition.
    """
    whole = len(x_C) // BLOCK
    if edge := whole * BLOCK:
        to_BC, x_BC, out_BC = (x[:edge].view(whole, BLOCK) for x in (to_C, x_C, out_C))
        torch.addcmul(to_BC, x_BC, factor_B1[:whole], out=out_BC)
    if edge < len(x_C):
        torch.addcmul(to_C[edge:], x_C[edge:], factor_B1[whole], out=out_C[edge:])
