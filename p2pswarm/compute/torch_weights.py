"""A stage's weights in torch: the gradient sum for the averaging, updates, snapshots.

Shapes:  N elements in a stage.
Errors:  BadMessage for a shard or a snapshot that does not fit.
"""
# ruff: noqa: N803, N806  shapes are written at the end of names

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from p2pswarm.allreduce.base import AveragedGradient, Sums
from p2pswarm.allreduce.plan import Span
from p2pswarm.compute.adamw import AdamW
from p2pswarm.compute.base import Engine, Update
from p2pswarm.compute.bundle_spec import boundary_above, bundle_spec
from p2pswarm.compute.digest import digest_of
from p2pswarm.compute.flat_parameters import (
    FlatParameters,
    host_bytes,
    squared_norm,
    state_of,
)
from p2pswarm.compute.torch_errors import setting_up
from p2pswarm.compute.torch_stage import TorchStage
from p2pswarm.config import RunConfig
from p2pswarm.errors import BadMessage
from p2pswarm.models.partition import stage_blocks
from p2pswarm.tensors.codecs.registry import EncodedTensor, decoder, encode
from p2pswarm.tensors.codecs.tensor_pool import TensorPool


class TorchSums:
    """Implements `Sums`: reads `sum_N`, writes `reduced_N`."""

    def __init__(self, sum_N: Tensor, codec_name: str) -> None:
        self._sum_N = sum_N
        self.reduced_N = torch.empty_like(sum_N)
        self._codec_name = codec_name

    @property
    def length(self) -> int:
        """The number of elements, N."""
        return self._sum_N.numel()

    def part(self, span: Span) -> EncodedTensor:
        """Encode our part; for the raw codec on the CPU it is the sum's own memory."""
        return encode(self._sum_N[span.start : span.stop], self._codec_name)

    def reduce(self, span: Span, parts: Sequence[Tensor | None]) -> EncodedTensor:
        """Add in the given order and in the sum's dtype; keep what the encoding decodes to."""
        mine = self._sum_N[span.start : span.stop]
        place = self.reduced_N[span.start : span.stop]
        for number, part in enumerate(parts):
            term = mine if part is None else self._checked(part, span)
            if number:
                place.add_(term)
            else:
                place.copy_(term)
        encoded_tensor = encode(place, self._codec_name)
        if self._codec_name != "raw":
            received = decoder(encoded_tensor.meta, TensorPool(place.device, keep_bytes=0))
            received.buffer[:] = encoded_tensor.data
            place.copy_(received.finish())
        return encoded_tensor

    def place(self, span: Span, shard: Tensor) -> None:
        """Keep a reduced shard."""
        self.reduced_N[span.start : span.stop].copy_(self._checked(shard, span))

    def outcome(self) -> AveragedGradient:
        """The digest and the squared norm of the reduced gradient."""
        norm = squared_norm(self.reduced_N)
        return AveragedGradient(digest_of(self.reduced_N), norm if math.isfinite(norm) else None)

    def _checked(self, shard: Tensor, span: Span) -> Tensor:
        if shard.shape != (span.length,) or shard.dtype != self._sum_N.dtype:
            raise BadMessage(f"a shard of {shard.dtype} {tuple(shard.shape)} for {span}")
        return shard


class TorchWeights:
    """Implements `Weights` on flat memory."""

    def __init__(self, run: RunConfig, flat: FlatParameters) -> None:
        self._flat = flat
        self._codec_name = run.codecs.averaging
        self._optimizer = AdamW(run.optimizer, flat)

    def reset(self, *, draw: bool) -> bytes:
        """Empty the sum; with `draw`, everything is as at the run's start."""
        self._flat.sum_N.zero_()
        if draw:
            self._flat.draw()
        return self._flat.digest()

    def reduction(self) -> TorchSums:
        """Give new memory each time: the last one may still be on its way to a slow newcomer."""
        return TorchSums(self._flat.sum_N, self._codec_name)

    def apply(self, reduced: Sums, update: Update) -> bytes:
        """Do one step of the optimizer."""
        assert isinstance(reduced, TorchSums)
        self._optimizer.step(reduced.reduced_N, update)
        self._flat.sum_N.zero_()
        return self._flat.digest()

    def snapshot(self) -> memoryview:
        """Copy weights, first and second moments, one after another."""
        state = self._flat.state()
        copy_N = torch.empty(len(state) * self._flat.length, dtype=state[0].dtype)
        for place_N, x_N in zip(copy_N.chunk(len(state)), state, strict=True):
            place_N.copy_(x_N)  # one by one: a GPU may lack memory for a second state
        return host_bytes(copy_N)

    def install(self, snapshot: memoryview, digest: bytes) -> bool:
        """Overwrite weights and moments, if they are whole; the sum is emptied."""
        state = self._flat.state()
        if snapshot.nbytes != sum(x_N.nbytes for x_N in state):
            raise BadMessage(f"a snapshot of {snapshot.nbytes} bytes does not fit this stage")
        parts = state_of(snapshot, self._flat.params_N.dtype)
        if digest_of(*parts) != digest:
            return False
        with torch.no_grad():
            for x_N, part in zip(state, parts, strict=True):
                x_N.copy_(part)
            self._flat.sum_N.zero_()
        return True


def torch_engine(run: RunConfig, stage: int, device: torch.device, keep_bytes: int) -> Engine:
    """Stage `stage` of a run on `device`, with `keep_bytes` for autograd graphs."""
    takes = bundle_spec(boundary_above(run, stage - 1))
    gives = bundle_spec(boundary_above(run, stage))
    with setting_up(stage):
        flat = FlatParameters(run, stage_blocks(run, stage), device)
        weights = TorchWeights(run, flat)
    size_bytes = sum(x_N.nbytes for x_N in flat.state())
    return Engine(TorchStage(run, stage, flat, keep_bytes), weights, size_bytes, takes, gives)
