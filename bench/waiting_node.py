"""A node whose model waits instead of computing, as a host does whose graphics card computes.

    python bench/waiting_node.py SECONDS --config FILE

The family `waiting` has the blocks of `gpt`, with the same parameters, so state, gradients and
updates are of the same size. Its layers compute nothing: a microbatch takes SECONDS of the compute
thread in all of them together, one third in the forward, two in the backward, and the processor is
free meanwhile. Their gradient is zero, but it is added up, averaged and applied like any other.
"""

import sys
import time
from typing import Any

import torch
from torch import Tensor, nn

from p2pswarm.cli import main
from p2pswarm.models.formats.weight_formats import DTYPES
from p2pswarm.models.gpt import Embedding, Head, Layer
from p2pswarm.models.registry import register
from p2pswarm.settings.config import ModelConfig

FAMILY = "waiting"
FORWARD = 1 / 3  # of a microbatch's time: a backward takes twice as long


class _Wait(torch.autograd.Function):
    """What came, later."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, seconds: float) -> Tensor:
        ctx.seconds = seconds
        time.sleep(FORWARD * seconds)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        time.sleep((1 - FORWARD) * ctx.seconds)
        return gradients[0], None


class WaitingLayer(Layer):
    """The parameters of a layer, and its time."""

    def __init__(self, model: ModelConfig, dtype: torch.dtype, seconds: float) -> None:
        super().__init__(model, dtype)
        self._seconds = seconds

    def forward(self, x: Tensor) -> Tensor:
        """Wait; shapes as in `Layer`."""
        waited: Tensor = _Wait.apply(x, self._seconds)  # type: ignore[no-untyped-call]
        return waited


def register_waiting(seconds: float) -> None:
    """Make the family known: a microbatch takes `seconds`."""

    @register(FAMILY)
    def waiting(config: ModelConfig) -> list[nn.Module]:
        dtype, each_s = DTYPES[config.dtype], seconds / config.layers
        layers = [WaitingLayer(config, dtype, each_s) for _ in range(config.layers)]
        return [Embedding(config, dtype), *layers, Head(config, dtype)]


if __name__ == "__main__":
    register_waiting(float(sys.argv[1]))
    sys.exit(main(["node", *sys.argv[2:]]))
