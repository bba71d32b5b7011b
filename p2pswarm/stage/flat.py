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

from p2pswarm.config import OptimizerConfig, RunConfig
from p2pswarm.stage.base import Update
from p2pswarm.stage.digest import digest_of
from p2pswarm.stage.model import DTYPES, Block, draw_blocks, make_blocks
from p2pswarm.tensors.codecs.base import bytes_of

ALIGN = 16  # elements: 64 bytes of float32, a cache line
NORM_CHUNK = 1 << 20  # elements widened to float64 at a time: 8 MiB
CHUNK = 1 << 17  # elements the optimizer works on at a time: 0.5 MiB each, and few calls for them


@dataclass(frozen=True, slots=True)
class Segment:
    """Where one parameter lies."""

    start: int
    stop: int
    decays: bool
    """Weight decay is for matrices; norms and other vectors are left alone."""


class Flat:
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


class AdamW:
    """Decoupled weight decay, on flat memory."""

    def __init__(self, config: OptimizerConfig, flat: Flat) -> None:
        self._config = config
        self._flat = flat
        device = flat.params_N.device
        chunk = CHUNK if device.type == "cpu" else flat.length  # a GPU wants one large launch
        self._chunks = [(i, min(i + chunk, flat.length)) for i in range(0, flat.length, chunk)]
        self._decay_N = torch.zeros_like(flat.params_N, dtype=torch.bool)
        for segment in flat.segments:
            self._decay_N[segment.start : segment.stop] = segment.decays
        self._room_2C = torch.empty(2, chunk, dtype=flat.params_N.dtype, device=device)

    @torch.no_grad()
    def step(self, gradient_N: Tensor, update: Update) -> None:
        """Apply one reduced gradient."""
        if gradient_N.shape != self._flat.params_N.shape:
            raise ValueError(f"a gradient of {gradient_N.numel()} for {self._flat.length} weights")
        if update.scale == 0.0:
            return
        for start, stop in self._chunks:
            self._step_chunk(gradient_N[start:stop], update, start, stop)

    def _step_chunk(self, gradient_C: Tensor, update: Update, start: int, stop: int) -> None:
        """No fused multiply-add, no lerp, no division by a number: not all round those alike.

        (A GPU multiplies by the reciprocal where a CPU divides.)
        """
        config, flat = self._config, self._flat
        param, mean, square = (x[start:stop] for x in flat.state())
        grad, room = self._room_2C[:, : stop - start]
        torch.mul(gradient_C, update.scale, out=grad)
        mean.mul_(config.beta1)
        mean.add_(torch.mul(grad, 1.0 - config.beta1, out=room))
        torch.mul(grad, grad, out=room)
        square.mul_(config.beta2)
        square.add_(room.mul_(1.0 - config.beta2))
        decayed = 1.0 - update.learning_rate * config.weight_decay
        torch.mul(param, decayed, out=room)
        torch.where(self._decay_N[start:stop], room, param, out=param)
        correction = 1.0 / math.sqrt(1.0 - config.beta2**update.number)
        torch.sqrt(square, out=room)
        room.mul_(correction).add_(config.epsilon)
        torch.div(mean, room, out=room)
        param.sub_(room.mul_(update.learning_rate / (1.0 - config.beta1**update.number)))


def squared_norm(x_N: Tensor) -> float:
    """In float64, in one fixed order."""
    return math.fsum(
        torch.dot(wide, wide).item()
        for wide in (part.double() for part in torch.split(x_N, NORM_CHUNK))
    )


def host_bytes(x_N: Tensor) -> memoryview:
    """The memory of a tensor on the CPU, a copy of one on a GPU."""
    return bytes_of(x_N.detach().cpu())
