"""A stage's weights, gradient sum and optimizer state, each one run of memory.

Parameters are views into one buffer, so averaging, digests, snapshots and the optimizer see plain
numbers and never a tree of tensors. The optimizer uses only operations that IEEE 754 rounds
exactly once, in a fixed order: replicas on different processors stay bit-identical as long as they
are given the same bytes.

Units:   elements of the run's dtype; `nbytes` where bytes are meant.
Shapes:  N all elements of a stage, every parameter starting at a multiple of `ALIGN`.
Errors:  ValueError when a buffer does not fit.
Source:  AdamW, arXiv 1711.05101, as torch.optim.AdamW computes it.
"""
# ruff: noqa: N803, N806  shapes are written at the end of names

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from p2pswarm.compute.digest import digest_of
from p2pswarm.config import RunConfig
from p2pswarm.models.base import DTYPES, Block
from p2pswarm.models.blocks import draw_blocks, make_blocks
from p2pswarm.tensors.codecs.base import bytes_of

ALIGN = 16  # elements: 64 bytes of float32, a cache line
NORM_CHUNK = 1 << 20  # elements widened to float64 at a time: 8 MiB


@dataclass(frozen=True, slots=True)
class Segment:
    """Where one parameter lies."""

    start: int
    stop: int
    decays: bool
    """Weight decay is for matrices; norms and other vectors are left alone."""


class FlatParameters:
    """The blocks `numbers` of a run, and what training them needs."""

    def __init__(self, run: RunConfig, numbers: range, device: torch.device) -> None:
        with torch.device("meta"):
            self.blocks: list[Block] = make_blocks(run, numbers)
        self.numbers = numbers
        self._run = run
        self.segments: list[Segment] = []
        length = 0
        for parameter in self._all_parameters():
            stop = length + parameter.numel()
            self.segments.append(Segment(length, stop, parameter.dim() >= 2))  # noqa: PLR2004
            length = -(-stop // ALIGN) * ALIGN
        dtype = DTYPES[run.model.dtype]

        def zeros() -> Tensor:
            return torch.zeros(length, dtype=dtype, device=device)

        self.params_N, self.exp_avg_N, self.exp_avg_sq_N = zeros(), zeros(), zeros()
        self.sum_N = zeros()
        self.parameters = self._bind()
        self.sums = [
            self.sum_N[s.start : s.stop].view_as(p)
            for s, p in zip(self.segments, self.parameters, strict=True)
        ]

    @property
    def length(self) -> int:
        """N."""
        return self.params_N.numel()

    def draw(self) -> None:
        """Make version 0: first weights, no history."""
        draw_blocks(self._run, self.numbers, self.blocks)
        for state_N in (self.exp_avg_N, self.exp_avg_sq_N, self.sum_N):
            state_N.zero_()

    def digest(self) -> bytes:
        """Of the weights' bytes."""
        return digest_of(self.params_N)

    def state(self) -> tuple[Tensor, Tensor, Tensor]:
        """What a snapshot holds, in its order."""
        return self.params_N, self.exp_avg_N, self.exp_avg_sq_N

    def _all_parameters(self) -> list[nn.Parameter]:
        return [p for block in self.blocks for p in block.parameters()]

    def _bind(self) -> list[nn.Parameter]:
        """Put views of the flat buffer where the blocks have their parameters."""
        spots = [(b, name) for b in self.blocks for name, _ in b.named_parameters()]
        for (block, name), segment in zip(spots, self.segments, strict=True):
            view = self.params_N[segment.start : segment.stop]
            shape = block.get_parameter(name).shape
            setattr(block, name, nn.Parameter(view.view(shape)))
        return self._all_parameters()


def squared_norm(x_N: Tensor) -> float:
    """In float64, in one fixed order."""
    return math.fsum(
        torch.dot(wide, wide).item()
        for wide in (part.double() for part in torch.split(x_N, NORM_CHUNK))
    )


def host_bytes(x_N: Tensor) -> memoryview:
    """The memory of a tensor on the CPU, a copy of one on a GPU."""
    return bytes_of(x_N.detach().cpu())
