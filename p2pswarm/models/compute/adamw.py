"""AdamW on flat memory, with operations that every processor rounds alike.

The optimizer uses only operations that IEEE 754 rounds exactly once, in a fixed order: replicas on
different processors stay bit-identical as long as they are given the same bytes. Weights that are
kept in bfloat16 are changed in float32, a chunk at a time, and then rounded (`rounding.py`).

Units:   elements.
Shapes:  N elements in a stage, C elements in a chunk.
Errors:  ValueError when a gradient does not fit.
Source:  AdamW, arXiv 1711.05101, as torch.optim.AdamW computes it.
"""
# ruff: noqa: N803  shapes are written at the end of names

import math

import torch
from torch import Tensor

from p2pswarm.models.compute.base import Update
from p2pswarm.models.compute.flat_parameters import FlatParameters
from p2pswarm.settings.config import OptimizerConfig

CHUNK_VALUES = 1 << 17  # elements at a time: 0.5 MiB of float32, and few calls
GPU_CHUNK_VALUES = 1 << 24  # 64 MiB: a GPU wants large launches


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
    def step(self, gradient_N: Tensor, update: Update) -> None:
        """Apply one reduced gradient."""
        if gradient_N.shape != self._flat.params_N.shape:
            raise ValueError(f"a gradient of {gradient_N.numel()} for {self._flat.length} weights")
        self.step_span(gradient_N, update, 0, self._flat.length)

    @torch.no_grad()
    def step_span(self, gradient_C: Tensor, update: Update, start: int, stop: int) -> None:
        """Apply one reduced gradient to the elements start..stop-1 alone, as `step` does to all."""
        if update.scale == 0.0:
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
        param = flat.weights(start, stop)
        mean, square = (x[start:stop] for x in (flat.exp_avg_N, flat.exp_avg_sq_N))
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
        correction = 1.0 / math.sqrt(1.0 - config.beta2**update.number)
        torch.sqrt(square, out=work)
        work.mul_(correction).add_(config.epsilon)
        torch.div(mean, work, out=work)
        param.sub_(work.mul_(update.learning_rate / (1.0 - config.beta1**update.number)))
        flat.keep(param, start, update.number)
        keep_average(config, flat, start, stop)


def keep_average(config: OptimizerConfig, flat: FlatParameters, start: int, stop: int) -> None:
    """Let the average of the weights follow the elements start..stop-1, if there is one."""
    if flat.average_N is not None:
        fresh = flat.weights(start, stop) * (1.0 - config.average_decay)
        flat.average_N[start:stop].mul_(config.average_decay).add_(fresh)
