"""Optimizers on flat memory: AdamW and Muon, with the same bits on every processor.

Shapes:  N elements in a stage, C elements in a span or chunk; B row blocks of R rows and C columns.
Errors:  ValueError when a gradient does not fit.
Source:  AdamW, arXiv 1711.05101, as torch.optim.AdamW computes it; Keller Jordan et al., Muon
         (2024); its scale beside AdamW: arXiv 2502.16982, 2.2.
"""
# ruff: noqa: N803, N806  shapes are written at the end of names

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from p2pswarm.models.compute.base import Update
from p2pswarm.models.compute.flat_parameters import FlatParameters
from p2pswarm.models.compute.orthogonal import orthogonal
from p2pswarm.settings.config import OptimizerConfig
from p2pswarm.tensors.flat_layout import Span, row_blocks

CHUNK_VALUES = 1 << 17  # elements at a time: 0.5 MiB of float32, and few calls
GPU_CHUNK_VALUES = 1 << 24  # 64 MiB: a GPU wants large launches
RMS = 0.2  # of an update of Muon, as AdamW's is: both take the same rate and decay
BATCH_VALUES = 1 << 22  # on a GPU: 16 MiB of float32, and five matrices of that size at a time


class Optimizer(Protocol):
    """Changes weights and moments: by the same bits on every processor, piece by piece or whole.

    They use only operations that IEEE 754 rounds exactly once, in a fixed order: replicas on
    different processors stay bit-identical as long as they are given the same bytes. Weights that
    are kept in bfloat16 are changed in float32, a chunk at a time, and then rounded
    (`stochastic_round.py`).

    Muon makes the momentum of a matrix orthogonal before it is applied, by Newton-Schulz steps, a
    chain of matrix products. Two things differ here from the published one:

    * It works on row blocks (`tensors/flat_layout.py`): a matrix of at most 524,288 elements is
      one, a larger one is several. So each piece of a state can follow a commit alone.
    * All products are exact (`orthogonal.py`): so replicas on unlike processors agree in every
      bit.
    """

    def step(self, gradient_C: Tensor, update: Update, span: Span | None = None) -> None:
        """Apply a reduced gradient, or its part for a span of whole pieces."""
        ...


def optimizer_of(config: OptimizerConfig, flat: FlatParameters) -> Optimizer:
    """The optimizer of a run, on flat memory."""
    found = Muon(config, flat) if config.name == "muon" else AdamW(config, flat)
    return WithFactors(found, flat) if flat.layout.factors else found


def _fitting(gradient_C: Tensor, flat: FlatParameters, span: Span | None) -> Span:
    """The elements that a gradient is for."""
    start, stop = span or (0, flat.length)
    if len(gradient_C) != stop - start:
        raise ValueError(f"a gradient of {len(gradient_C)} for {stop - start} weights")
    return start, stop


class AdamW:
    """Decoupled weight decay, on flat memory."""

    def __init__(
        self, config: OptimizerConfig, flat: FlatParameters, chunk_values: int | None = None
    ) -> None:
        """`chunk_values`: elements at a time; None: as the device likes it."""
        self._config = config
        self._flat = flat
        device = flat.params_N.device
        liked = CHUNK_VALUES if device.type == "cpu" else GPU_CHUNK_VALUES
        self._chunk = chunk = min(chunk_values or liked, max(1, flat.length))
        self._decay_N = torch.zeros_like(flat.params_N, dtype=torch.bool)
        for segment in flat.segments:
            self._decay_N[segment.start : segment.stop] = segment.decays
        self._work_2C = torch.empty(2, chunk, dtype=flat.sum_N.dtype, device=device)

    @torch.no_grad()
    def step(self, gradient_C: Tensor, update: Update, span: Span | None = None) -> None:
        """See `Optimizer`."""
        start, stop = _fitting(gradient_C, self._flat, span)
        if update.scale == 0.0:
            self._flat.carry_over(start, stop)
            return
        for i in range(start, stop, self._chunk):
            end = min(i + self._chunk, stop)
            self._step_chunk(gradient_C[i - start : end - start], update, i, end)

    def _step_chunk(self, gradient_C: Tensor, update: Update, start: int, stop: int) -> None:
        """Update one chunk, with operations that every processor rounds alike.

        So there is no fused multiply-add, no lerp, and no division by a number: a GPU multiplies by
        the reciprocal where a CPU divides.
        """
        config, flat = self._config, self._flat
        param = flat.before_update(start, stop)
        mean, square = flat.exp_avg_N[start:stop], flat.squares_before_update(start, stop)
        grad, work = self._work_2C[:, : stop - start]
        torch.mul(gradient_C, update.scale, out=grad)
        mean.mul_(config.beta1)
        mean.add_(torch.mul(grad, 1.0 - config.beta1, out=work))
        torch.mul(grad, grad, out=work)
        square.mul_(config.beta2)
        square.add_(work.mul_(1.0 - config.beta2))
        decayed = 1.0 - update.learning_rate * config.weight_decay
        torch.mul(param, decayed, out=work)
        torch.where(self._decay_N[start:stop], work, param, out=param)
        correction = 1.0 / math.sqrt(1.0 - config.beta2**update.count)
        square_root(square, work)
        work.mul_(correction).add_(config.epsilon)
        torch.div(mean, work, out=work)
        param.sub_(work.mul_(update.learning_rate / (1.0 - config.beta1**update.count)))
        flat.keep(param, start, update.count)
        keep_average(config, flat, start, stop)


class WithFactors:
    """An optimizer of a stage that averages matrices in low rank: it keeps their warm factors."""

    def __init__(self, weights: Optimizer, flat: FlatParameters) -> None:
        """`weights`: changes all else."""
        self._weights, self._flat = weights, flat
        self._behind = flat.layout.factors_start

    @torch.no_grad()
    def step(self, gradient_C: Tensor, update: Update, span: Span | None = None) -> None:
        """See `Optimizer`; behind the gradient lie the next factors."""
        start, stop = _fitting(gradient_C, self._flat, span)
        edge = min(max(start, self._behind), stop)
        if start < edge:
            self._weights.step(gradient_C[: edge - start], update, (start, edge))
        if update.scale:
            self._flat.exp_avg_N[edge:stop].copy_(gradient_C[edge - start :])


def square_root(x_C: Tensor, out_C: Tensor) -> None:
    """The square root as IEEE 754 rounds it, of contiguous tensors.

    On a CPU torch takes MKL's, which is a last bit away now and then, not the same on each CPU.
    """
    if x_C.device.type == "cpu":
        np.sqrt(x_C.numpy(), out=out_C.numpy())
    else:
        torch.sqrt(x_C, out=out_C)


def keep_average(config: OptimizerConfig, flat: FlatParameters, start: int, stop: int) -> None:
    """Let the average of the weights follow the elements start..stop-1, if there is one."""
    if flat.average_N is not None:
        fresh = flat.weights(start, stop) * (1.0 - config.average_decay)
        flat.average_N[start:stop].mul_(config.average_decay).add_(fresh)


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
            for tensor, segment in zip(flat.layout.parameters, flat.segments, strict=True)
            if segment.inner
            for start, stop in row_blocks(tensor.shape)
        ]
        self._starts = [block.start for block in self._blocks]

    @torch.no_grad()
    def step(self, gradient_C: Tensor, update: Update, span: Span | None = None) -> None:
        """See `Optimizer`; no row block lies across the ends of the span."""
        start, stop = _fitting(gradient_C, self._flat, span)
        if update.scale == 0.0:
            self._flat.carry_over(start, stop)
            return
        first, last = bisect_left(self._starts, start), bisect_left(self._starts, stop)
        blocks, end = self._blocks[first:last], start
        for block in (*blocks, RowBlock(stop, stop, 1, decays=False)):
            if block.start > end:
                between = gradient_C[end - start : block.start - start]
                self._others.step(between, update, (end, block.start))
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
            if flat.keeps_squares:
                square = flat.squares_before_update(block.start, block.stop)
                square.mul_(config.beta2).add_((share * share).mul_(1.0 - config.beta2))
            share.mul_(1.0 - config.momentum)
            mean.mul_(config.momentum).add_(share)
            wanted.append(share.add_(mean * config.momentum).view(block.shape))  # Nesterov's
        direction_BRC = orthogonal(torch.stack(wanted))
        rate = update.learning_rate * RMS * math.sqrt(max(blocks[0].shape))
        decayed = 1.0 - update.learning_rate * config.weight_decay
        for block, direction_RC in zip(blocks, direction_BRC, strict=True):
            param = flat.before_update(block.start, block.stop)
            if block.decays:
                param.mul_(decayed)
            param.sub_((direction_RC.to(param.dtype) * rate).to(param.device).reshape(-1))
            flat.keep(param, block.start, update.count)
            keep_average(config, flat, block.start, block.stop)
