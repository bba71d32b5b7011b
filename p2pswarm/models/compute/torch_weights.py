"""A stage's weights in torch: the gradient sum for the averaging, and updates.

Shapes:  N elements in a stage.
Errors:  Unusable where the stage cannot be set up.
"""

import torch

from p2pswarm.models.compute.base import Engine, Update
from p2pswarm.models.compute.bundle_spec import boundary_above, bundle_spec
from p2pswarm.models.compute.compiling import compiled_precision
from p2pswarm.models.compute.digest import piece_hashes
from p2pswarm.models.compute.flat_parameters import FlatParameters
from p2pswarm.models.compute.graph_budget import GraphLimits
from p2pswarm.models.compute.optimizer import optimizer_of
from p2pswarm.models.compute.torch_errors import setting_up
from p2pswarm.models.compute.torch_stage import TorchStage
from p2pswarm.models.compute.torch_state import TorchState
from p2pswarm.models.compute.torch_sums import GradientMemory, TorchSums, keyed_digest
from p2pswarm.models.partition import stage_blocks
from p2pswarm.run.averaging.base import Sums
from p2pswarm.settings.config import RunConfig
from p2pswarm.tensors.state_tree import PIECE_VALUES

TIED_KEY = b"p2pswarm tied 01"


class TorchWeights:
    """Implements `Weights` on flat memory."""

    spread = False

    def __init__(self, run: RunConfig, flat: FlatParameters, piece_values: int) -> None:
        self._spans = flat.spans(piece_values)
        self._flat = flat
        self._codec_name = run.codecs.averaging
        self._optimizer = optimizer_of(run.optimizer, flat)
        self.state = TorchState(flat, self._optimizer, piece_values)
        self._gradients = GradientMemory(flat.sum_N)

    def reset(self, *, draw: bool) -> None:
        """Empty the sum; with `draw`, everything is as at the run's start."""
        self._flat.sum_N.zero_()
        if draw:
            self._flat.draw()

    def hashes(self) -> tuple[bytes, ...]:
        """Hash weights and moments; it reads them alone, so the stage may compute meanwhile."""
        return tuple(piece_hashes(self._flat.state(), self._spans))

    def tied_digest(self) -> bytes:
        """See `Weights`; the key is known to all, because it is faults that it looks for."""
        if (tied := self._flat.tied) is None:
            return b""
        parts = [x_N.detach()[tied.start : tied.stop] for x_N in self._flat.state()]
        return keyed_digest(TIED_KEY, parts)

    def reduction(self) -> TorchSums:
        """Give memory that nothing else uses: the last one may be on its way to a newcomer."""
        flat = self._flat
        return TorchSums(flat.sum_N, self._codec_name, self._gradients, tied=flat.tied)

    def apply(self, reduced: Sums, update: Update) -> None:
        """Do one step of the optimizer."""
        assert isinstance(reduced, TorchSums)
        self._optimizer.step(reduced.reduced_N, update)
        self._flat.sum_N.zero_()


def torch_engine(
    run: RunConfig,
    stage: int,
    device: torch.device,
    graphs: int | GraphLimits,
    piece_values: int = PIECE_VALUES,
    *,
    compiles: bool = False,
) -> Engine:
    """Stage `stage` of a run on `device`; `graphs`: what they may take, as `TorchStage` has it.

    All servers of a run need the same `piece_values`. `compiles`: run the blocks compiled.
    """
    takes = bundle_spec(boundary_above(run, stage - 1))
    gives = bundle_spec(boundary_above(run, stage))
    with setting_up(stage):
        flat = FlatParameters(run, stage_blocks(run, stage), device)
        weights = TorchWeights(run, flat, piece_values)
    precision = compiled_precision(run, stage, flat) if compiles else None
    torch_stage = TorchStage(run, stage, flat, graphs, precision)
    return Engine(torch_stage, weights, weights.state, takes, gives)
