"""Muon on row blocks of matrices, with the same bits on every processor; AdamW for all else.

Muon makes the momentum of a matrix orthogonal before it is applied, by five Newton-Schulz steps, a
chain of matrix products. Two things differ here from the published one:

* It works on row blocks (`tensors/flat_layout.py`): a matrix of at most 524,288 elements is one, a
  larger one is several. So each piece of a state can follow a commit alone.
* Processors add the products of a matrix product up in different orders, and round differently.
  Here the factors are whole numbers, and every sum that can come up is below 2**53: float64 has it
  exactly, in whatever order, fused or not. What is rounded is rounded element by element.

Why it is below: a factor is a matrix in units of 2**-25. Its largest singular value is at most 1 at
the start, and 1.21 after any step, because the polynomial maps 0..1.21 into itself. A part of a sum
of products is at most the product of two rows' norms (Cauchy-Schwarz), so of the largest singular
values: 3.4 times 2**50 at most.

Units:   elements; `units`: whole numbers that count 2**-25.
Shapes:  B row blocks of R rows and C columns; N elements in a stage.
Errors:  ValueError when a gradient does not fit.
Source:  Keller Jordan et al., Muon (2024); its scale beside AdamW: arXiv 2502.16982, 2.2.
"""
# ruff: noqa: N803, N806  shapes are written at the end of names

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from p2pswarm.compute.adamw import AdamW, keep_average
from p2pswarm.compute.base import Update
from p2pswarm.compute.device_dtypes import place_for
from p2pswarm.compute.flat_parameters import FlatParameters
from p2pswarm.config import OptimizerConfig
from p2pswarm.tensors.flat_layout import row_blocks

UNIT_BITS = 25
STEPS = 5
FIRST, THIRD, FIFTH = 3.4445, -4.7750, 2.0315  # of the odd polynomial that each step applies
NORM_BITS = 16  # squares of so many bits, 2**20 of them: their sum is exact
NORM_MARGIN = 1.02  # rounding to so many bits takes 1.1 % from the norm at most
TINY = 1e-100  # a block whose elements are all smaller does not move
RMS = 0.2  # of an update, as AdamW's is: both take the same rate and decay
BATCH_VALUES = 1 << 22  # on a GPU: 32 MiB of float64, and five matrices of that size at a time


@dataclass(frozen=True, slots=True)
class RowBlock:
    """A part of a matrix whose update is made orthogonal by itself."""

    start: int
    stop: int
    columns: int
    decays: bool

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return (self.stop - self.start) // self.columns, self.columns


class Muon:
    """Muon for matrices between the first and the last block, AdamW for the rest."""

    def __init__(self, config: OptimizerConfig, flat: FlatParameters) -> None:
        self._config, self._flat = config, flat
        self._others = AdamW(config, flat)
        self._blocks = [
            RowBlock(tensor.start + start, tensor.start + stop, tensor.shape[1], segment.decays)
            for tensor, segment in zip(flat.layout.tensors, flat.segments, strict=True)
            if segment.inner
            for start, stop in row_blocks(tensor.shape)
        ]
        self._starts = [block.start for block in self._blocks]

    @torch.no_grad()
    def step(self, gradient_N: Tensor, update: Update) -> None:
        """Apply one reduced gradient."""
        if gradient_N.shape != self._flat.params_N.shape:
            raise ValueError(f"a gradient of {gradient_N.numel()} for {self._flat.length} weights")
        self.step_span(gradient_N, update, 0, self._flat.length)

    @torch.no_grad()
    def step_span(self, gradient_C: Tensor, update: Update, start: int, stop: int) -> None:
        """Do to the elements start..stop-1 what `step` does to all; no row block lies across."""
        if update.scale == 0.0:
            return
        first, last = bisect_left(self._starts, start), bisect_left(self._starts, stop)
        blocks, end = self._blocks[first:last], start
        for block in (*blocks, RowBlock(stop, stop, 1, decays=False)):
            if block.start > end:
                between = gradient_C[end - start : block.start - start]
                self._others.step_span(between, update, end, block.start)
            end = block.stop
        for batch in self._batches(blocks):
            self._step_blocks(gradient_C, start, batch, update)

    def _batches(self, blocks: Sequence[RowBlock]) -> Iterator[Sequence[RowBlock]]:
        """Blocks of one shape, as many as are computed at a time."""
        alike = defaultdict(list)
        for block in blocks:
            alike[block.shape].append(block)
        on_cpu = self._flat.params_N.device.type == "cpu"
        for (rows, columns), found in alike.items():
            most = 1 if on_cpu else max(1, BATCH_VALUES // (rows * columns))
            yield from (found[i : i + most] for i in range(0, len(found), most))

    def _step_blocks(
        self, gradient_C: Tensor, base: int, blocks: Sequence[RowBlock], update: Update
    ) -> None:
        config, flat = self._config, self._flat
        wanted = []
        for block in blocks:
            mean = flat.exp_avg_N[block.start : block.stop]
            share = gradient_C[block.start - base : block.stop - base] * update.scale
            share.mul_(1.0 - config.momentum)
            mean.mul_(config.momentum).add_(share)
            wanted.append(share.add_(mean * config.momentum).view(block.shape))  # Nesterov's
        units_BRC = orthogonal_units(torch.stack(wanted))
        unit = update.learning_rate * RMS * math.sqrt(max(blocks[0].shape)) / (1 << UNIT_BITS)
        decayed = 1.0 - update.learning_rate * config.weight_decay
        for block, units_RC in zip(blocks, units_BRC, strict=True):
            param = flat.weights(block.start, block.stop)
            if block.decays:
                param.mul_(decayed)
            param.sub_((units_RC * unit).to(param.dtype).to(param.device).reshape(-1))
            flat.keep(param, block.start, update.number)
            keep_average(config, flat, block.start, block.stop)


def orthogonal_units(x_BRC: Tensor) -> Tensor:
    """The matrices with the same singular vectors and singular values near 1, in units of 2**-25.

    float64, on the device of `x_BRC` or, if that has none, on the host; a matrix of zeros stays
    one.
    """
    x_BRC = x_BRC.to(place_for(x_BRC.device, torch.float64)).to(torch.float64)
    tall = x_BRC.shape[1] > x_BRC.shape[2]
    x_BRC = x_BRC.mT if tall else x_BRC
    scales_B = torch.tensor(_scales(x_BRC), dtype=torch.float64, device=x_BRC.device)
    x_BRC = (x_BRC * scales_B[:, None, None]).round_()
    for _ in range(STEPS):
        a_BRR = _product(x_BRC, x_BRC.mT)
        b_BRR = (_product(a_BRR, a_BRR) * FIFTH).add_(a_BRR * THIRD).round_()
        x_BRC = _product(b_BRR, x_BRC).add_((x_BRC * FIRST).round_())
    return x_BRC.mT if tall else x_BRC


def _product(x: Tensor, y: Tensor) -> Tensor:
    """The product of matrices in units, in units: exact, and then rounded once."""
    return torch.bmm(x, y).mul_(2.0**-UNIT_BITS).round_()


def _scales(x_BRC: Tensor) -> list[float]:
    """What brings each matrix to a Frobenius norm just below 1, in units: from an exact sum."""
    peaks = x_BRC.abs().amax((1, 2)).tolist()
    shifts = [math.ldexp(1.0, NORM_BITS - math.frexp(x)[1]) if x > TINY else 0.0 for x in peaks]
    shifts_B = torch.tensor(shifts, dtype=torch.float64, device=x_BRC.device)
    whole_BRC = (x_BRC * shifts_B[:, None, None]).round_()
    squares = whole_BRC.square_().sum((1, 2)).tolist()
    return [
        shift * (1 << UNIT_BITS) / (math.sqrt(square) * NORM_MARGIN) if square else 0.0
        for shift, square in zip(shifts, squares, strict=True)
    ]
