"""The reference: all blocks in one process, in an ordinary training loop.

Shapes:  tokens_BS has S = T + 1 tokens in a row: T inputs, and the targets one place further.
"""
# ruff: noqa: N803, N806  shapes are written at the end of names

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from p2pswarm.models.base import LONE_KEY, bundle_of, loss_of
from p2pswarm.models.blocks import block_count
from p2pswarm.models.compute.base import Update
from p2pswarm.models.compute.flat_parameters import FlatParameters, squared_norm
from p2pswarm.models.compute.optimizer import optimizer_of
from p2pswarm.models.compute.precision import FullPrecision, precision_of
from p2pswarm.models.dropout import dropout_seeds, nothing_drawn
from p2pswarm.run.schedule import clip_scale
from p2pswarm.settings.config import RunConfig


class ReferenceTrainer:
    """One process that trains the whole model.

    It uses the same blocks, first weights, microbatches and optimizer as the swarm, and nothing
    else. The weights that a swarm trains must equal its weights, and the swarm's cost is measured
    against it. A microbatch whose loss or gradient is not finite adds nothing, as in a swarm
    (docs/training.md).
    """

    def __init__(self, run: RunConfig, device: torch.device | None = None) -> None:
        self._run = run
        self.flat = FlatParameters(
            run, range(block_count(run.model)), device or torch.device("cpu")
        )
        self.flat.draw()
        self._precision = precision_of(run, self.flat)
        self._optimizer = optimizer_of(run.optimizer, self.flat)
        if isinstance(self._precision, FullPrecision):
            for parameter, total in zip(self.flat.parameters, self.flat.sums, strict=True):
                parameter.grad = total
        self.version = 0

    def loss(self, tokens_BS: Tensor) -> Tensor:
        """Mean nats per token of one microbatch."""
        tokens_BS = tokens_BS.to(self.flat.params_N.device, torch.int64)
        flat = self.flat
        dropout = dropout_seeds(self._run.seed, flat.numbers, flat.blocks, tokens_BS)
        value = bundle_of(self._precision.run(tokens_BS[:, :-1], dropout))
        return loss_of(value[LONE_KEY], tokens_BS[:, 1:])

    def add(self, tokens_BS: Tensor) -> float:
        """Add one microbatch's gradient to the sum; returns its loss."""
        loss = self.loss(tokens_BS)
        share = loss / self._run.batch.microbatches
        if isinstance(self._precision, FullPrecision):
            share.backward()  # type: ignore[no-untyped-call]  # adds in place
        else:
            leaves = self._precision.parameters
            self._add_parts(torch.autograd.grad(share, leaves, materialize_grads=True))
        return loss.item()

    def add_all(self, microbatches: Sequence[Tensor]) -> list[float]:
        """Add a step's microbatches, but for those that are not finite; the others' losses."""
        losses = [self.add(tokens_BS) for tokens_BS in microbatches]
        if math.isfinite(squared_norm(self.flat.sum_N)):  # then each of them was: no need to look
            return losses
        self.flat.sum_N.zero_()
        return [loss for x in microbatches if (loss := self._add_finite(x)) is not None]

    def _add_finite(self, tokens_BS: Tensor) -> float | None:
        """Add one microbatch's gradient and return its loss; None if either is not finite."""
        loss = self.loss(tokens_BS)
        share = loss / self._run.batch.microbatches
        found = torch.autograd.grad(share, self._precision.parameters, materialize_grads=True)
        if not all(math.isfinite(torch.dot(x.reshape(-1), x.reshape(-1)).item()) for x in found):
            return None
        self._add_parts(found)
        return loss.item()

    def _add_parts(self, found: Sequence[Tensor]) -> None:
        for total, part in zip(self._precision.sums, found, strict=True):
            total.add_(part)

    def commit(self, learning_rate: float) -> float:
        """Clip, update, empty the sum; returns the gradient's norm before clipping."""
        norm = math.sqrt(squared_norm(self.flat.sum_N))
        self.apply(clip_scale(self._run.optimizer, norm), learning_rate)
        return norm

    def apply(self, scale: float, learning_rate: float) -> None:
        """Update with the sum times `scale`, and empty it."""
        self.version += 1
        self._optimizer.step(self.flat.sum_N, Update(self.version, scale, learning_rate))
        self.flat.sum_N.zero_()

    @torch.no_grad()
    def evaluate(self, tokens_BS: Tensor) -> float:
        """Mean nats per token of one microbatch; no graph is kept."""
        with nothing_drawn(self.flat.blocks):
            return self.loss(tokens_BS).item()
