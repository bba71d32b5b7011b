"""What every optimizer can do, and which one a run has.

Shapes:  N elements in a stage, C in a span of it.
Errors:  none.
"""
# ruff: noqa: N803  shapes are written at the end of names

from typing import Protocol

from torch import Tensor

from p2pswarm.models.compute.adamw import AdamW
from p2pswarm.models.compute.base import Update
from p2pswarm.models.compute.flat_parameters import FlatParameters
from p2pswarm.models.compute.muon import Muon
from p2pswarm.settings.config import OptimizerConfig


class Optimizer(Protocol):
    """Changes weights and moments: by the same bits on every processor, piece by piece or whole."""

    def step(self, gradient_N: Tensor, update: Update) -> None:
        """Apply one reduced gradient; raises ValueError if it does not fit."""
        ...

    def step_span(self, gradient_C: Tensor, update: Update, start: int, stop: int) -> None:
        """Do to the elements of one or more pieces, start..stop-1, what `step` does to all."""
        ...


def optimizer_of(config: OptimizerConfig, flat: FlatParameters) -> Optimizer:
    """The optimizer of a run, on flat memory."""
    return Muon(config, flat) if config.name == "muon" else AdamW(config, flat)
