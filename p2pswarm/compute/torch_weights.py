"""A stage's weights in torch: the gradient sum for the averaging, updates, snapshots.

Shapes:  N elements in a stage.
Errors:  BadMessage for a snapshot that does not fit.
"""
# ruff: noqa: N806  shapes are written at the end of names

import torch

from p2pswarm.allreduce.base import Sums
from p2pswarm.compute.adamw import AdamW
from p2pswarm.compute.base import Engine, Update
from p2pswarm.compute.bundle_spec import boundary_above, bundle_spec
from p2pswarm.compute.digest import digest_of
from p2pswarm.compute.flat_parameters import FlatParameters, host_bytes, state_of
from p2pswarm.compute.torch_errors import setting_up
from p2pswarm.compute.torch_stage import TorchStage
from p2pswarm.compute.torch_state import TorchState
from p2pswarm.compute.torch_sums import GradientMemory, TorchSums
from p2pswarm.config import RunConfig
from p2pswarm.errors import BadMessage
from p2pswarm.models.partition import stage_blocks


class TorchWeights:
    """Implements `Weights` on flat memory."""

    def __init__(self, run: RunConfig, flat: FlatParameters) -> None:
        self._flat = flat
        self._codec_name = run.codecs.averaging
        self._optimizer = AdamW(run.optimizer, flat)
        self.state = TorchState(flat, self._optimizer)
        self._gradients = GradientMemory(flat.sum_N)

    def reset(self, *, draw: bool) -> None:
        """Empty the sum; with `draw`, everything is as at the run's start."""
        self._flat.sum_N.zero_()
        if draw:
            self._flat.draw()

    def digest(self) -> bytes:
        """Hash weights and moments; it reads them alone, so the stage may compute meanwhile."""
        return self._flat.digest()

    def reduction(self) -> TorchSums:
        """Give memory that nothing else uses: the last one may be on its way to a newcomer."""
        return TorchSums(self._flat.sum_N, self._codec_name, self._gradients)

    def apply(self, reduced: Sums, update: Update) -> None:
        """Do one step of the optimizer."""
        assert isinstance(reduced, TorchSums)
        self._optimizer.step(reduced.reduced_N, update)
        self._flat.sum_N.zero_()

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
    torch_stage = TorchStage(run, stage, flat, keep_bytes)
    return Engine(torch_stage, weights, weights.state, size_bytes, takes, gives)
