"""Muon on row blocks of matrices, with the same bits on every processor; AdamW for all else.

Muon makes the momentum of a matrix orthogonal before it is applied, by Newton-Schulz steps, a chain
of matrix products. Two things differ here from the published one:

* It works on row blocks (`tensors/flat_layout.py`): a matrix of at most 524,288 elements is one, a
  larger one is several. So each piece of a state can follow a commit alone.
* All products are exact (`orthogonal.py`): so replicas on unlike processors agree in every bit.

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

from p2pswarm.models.compute.adamw import AdamW, keep_average
from p2pswarm.models.compute.base import Update
from p2pswarm.models.compute.flat_parameters import FlatParameters
from p2pswarm.models.compute.orthogonal import orthogonal
from p2pswarm.settings.config import OptimizerConfig
from p2pswarm.tensors.flat_layout import row_blocks

RMS = 0.2  # of an update, as AdamW's is: both take the same rate and decay
BATCH_VALUES = 1 << 22  # on a GPU: 16 MiB of float32, and five matrices of that size at a time


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
        direction_BRC = orthogonal(torch.stack(wanted))
        rate = update.learning_rate * RMS * math.sqrt(max(blocks[0].shape))
        decayed = 1.0 - update.learning_rate * config.weight_decay
        for block, direction_RC in zip(blocks, direction_BRC, strict=True):
            param = flat.weights(block.start, block.stop)
            if block.decays:
                param.mul_(decayed)
            param.sub_((direction_RC.to(param.dtype) * rate).to(param.device).reshape(-1))
            flat.keep(param, block.start, update.number)
            keep_average(config, flat, block.start, block.stop)
