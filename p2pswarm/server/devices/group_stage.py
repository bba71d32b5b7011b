"""A stage on several devices of this host, as a server has it: one engine.

Errors:  as `TorchStage`; Unusable when a device fails, because its part of the sum is lost then.
"""
# ruff: noqa: D102, N803, N806  `Stage` documents its methods; shapes end the names

import functools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from p2pswarm.base.errors import NotServing, Refused, Unusable
from p2pswarm.models.base import Bundle
from p2pswarm.models.base_weights.base_memory import BaseMemory
from p2pswarm.models.blocks import stage_blocks
from p2pswarm.models.compute.base import BackwardSpec, Engine, Key, LossResult, NotFiniteHere
from p2pswarm.models.compute.bundle_spec import boundary_above, engine_bundles
from p2pswarm.models.compute.flat_parameters import FlatParameters, half_of
from p2pswarm.models.compute.tokens import checked_tokens, targets_in
from p2pswarm.models.compute.torch_device import setting_up
from p2pswarm.models.compute.torch_stage import (
    mean_loss,
    refuse_infinite,
    require_finite,
)
from p2pswarm.models.compute.torch_sums import TorchSums
from p2pswarm.models.compute.torch_weights import TorchWeights
from p2pswarm.server.devices.microbatch_part import require_tokens_apart
from p2pswarm.server.devices.rank_commands import CommandDone, SharedPlace
from p2pswarm.server.devices.rank_processes import DeviceGroup, Ranks
from p2pswarm.server.devices.row_split import REMEDY, require_splittable
from p2pswarm.server.devices.tensor_maps import close_all, shared_zeros
from p2pswarm.server.devices.tensor_split import require_shareable
from p2pswarm.settings.config import INT_GRID, RunConfig
from p2pswarm.settings.node_config import CONTEXT, TENSOR
from p2pswarm.settings.parser import run_to_json
from p2pswarm.tensors.state_tree import PIECE_VALUES

CPU = torch.device("cpu")


@dataclass(slots=True)
class GroupGraphs:
    """The graphs on the devices; with a delay of both halves, which share the room for them."""

    bytes_of: dict[Key, int] = field(default_factory=dict)
    """Of each that is kept, on each device; 0: it is made again."""
    measured_bytes: int | None = None
    """Measured once: all microbatches have one shape."""


class DeviceBase:
    """What is frozen, as the devices have it: of both halves, the same."""

    def __init__(self, ranks: Ranks, base: BaseMemory | None) -> None:
        self._ranks, self._base = ranks, base
        self._there = 0

    def follow(self) -> None:
        """Tell the ranks of what they have not computed with yet."""
        if self._base is not None and self._base.uses != self._there:
            self._ranks.call("take_base")
            self._there = self._base.uses


class GroupStage:
    """Implements `Stage`.

    Weights, optimizer and the averaging's sum are this process's, in the host's memory, exactly as
    for one device: so all replicas of a stage have the same bits, whatever they compute on. The
    devices hold shards of a copy of the weights, shards of the sum, and graphs. Whether a graph is
    kept is decided here, because all ranks have to gather weights at the same time.

    With a delay there are two of these, and two parts in each rank: for even steps, and for odd
    ones (`FlatParameters`).
    """

    def __init__(
        self,
        run: RunConfig,
        stage: int,
        ranks: Ranks,
        memory: dict[str, Tensor],
        flat: FlatParameters,
        half: int,
        graphs: GroupGraphs,
        base: DeviceBase,
    ) -> None:
        """`memory`: shared with the ranks; `half`: of `flat`, its place among its halves."""
        self._ranks = ranks
        self._call = functools.partial(ranks.call, half=half)
        self._halves = range(len(flat.halves))
        self._memory = memory
        self._flat = flat
        self._shape = run.batch.rows, run.model.sequence_length + 1
        self._run = run
        self._below, self._above = boundary_above(run, stage - 1), boundary_above(run, stage)
        self._returned = self._below.differentiable if self._below else ()
        self._due = self._above.differentiable if self._above else ()
        self._made = tuple(each.key for each in self._above.tensors) if self._above else ()
        self._keep_bytes = ranks.keep_bytes
        self._graphs, self._base = graphs, base
        self._weights_there = self._sum_there = -1
        """The changes of weights and sum of which the ranks were told."""
        self.recomputed = 0
        self.gradient_norm = 0.0

    def forward(self, key: Key, tokens_BS: Tensor, given: Bundle) -> Bundle:
        self._give(tokens_BS, given)
        graphs = self._graphs
        room = self._keep_bytes - sum(graphs.bytes_of.values())
        keep = graphs.measured_bytes is None or graphs.measured_bytes <= room
        answers = self._call("forward", key=key, keep=keep)
        size_bytes = max(answer.graph_bytes for answer in answers)
        if graphs.measured_bytes is None:
            graphs.measured_bytes = size_bytes
            if size_bytes > room:
                self._call("forget_graphs", keys=(key,))
                size_bytes = 0
        graphs.bytes_of[key] = size_bytes
        return self._copies("made", self._made)

    def backward(self, key: Key, gradient: Bundle, spec: BackwardSpec) -> Bundle:
        graph_bytes = self._graphs.bytes_of.pop(key, None)
        if graph_bytes is None:
            raise NotServing(f"nothing is kept for microbatch {key[0]}, attempt {key[1]}")
        try:
            gradients = {name: gradient[name].to(CPU) for name in self._due}
            require_finite(list(gradients.values()), "the gradient that came")
        except NotFiniteHere:
            self._call("forget", keys=(key,))
            raise
        for name, x in gradients.items():
            self._memory[f"gradient.{name}"].copy_(x)
        self.recomputed += not graph_bytes
        self._follow()
        return self._settled(self._call("backward", key=key), spec)

    def finish(self, tokens_BS: Tensor, given: Bundle, spec: BackwardSpec) -> LossResult:
        self._give(tokens_BS, given)
        wanted = spec.counting or spec.returning
        answers = self._call("last", differentiate=wanted)
        try:
            loss = self._loss(answers)
        except NotFiniteHere:
            self._call("settle", add=False)
            raise
        if not wanted:
            return LossResult(loss, {})
        return LossResult(loss, self._settled(answers, spec))

    def evaluate(
        self, tokens_BS: Tensor, given: Bundle, *, training: bool = False
    ) -> Bundle | float:
        del training  # nothing is drawn here
        self._give(tokens_BS, given)
        answers = self._call("once")
        return self._copies("made", self._made) if self._above else self._loss(answers)

    def drop(self, keys: Iterable[Key] | None) -> None:
        there = self._graphs.bytes_of
        kept = tuple(key for key in list(keys or there) if key in there)
        for key in kept:
            del there[key]
        for half in self._halves if kept else ():
            self._ranks.call("forget", half, keys=kept)

    def collect(self) -> None:
        """Bring the sum up to date in this process's memory."""
        self._follow()
        self._call("give_sums")

    def _settled(self, answers: Sequence[CommandDone], spec: BackwardSpec) -> Bundle:
        """Add the gradients of the weights or let them go; that of what was given."""
        returned, own = (sum(answer.values[place] for answer in answers) for place in (-2, -1))
        finite = math.isfinite(returned) and math.isfinite(own)
        self.gradient_norm = math.sqrt(own) if finite and spec.counting else 0.0
        self._call("settle", add=finite and spec.may_add())
        refuse_infinite((returned, own), "a gradient")
        return self._copies("returned", self._returned) if spec.returning else {}

    def _loss(self, answers: Sequence[CommandDone]) -> float:
        """The mean over all ranks' targets; NotFiniteHere if it is no number."""
        nats = sum(answer.values[0] for answer in answers)
        return mean_loss(nats, targets_in(self._memory["tokens"]))

    def _give(self, tokens_BS: Tensor, given: Bundle) -> None:
        """Put what is to be computed where the ranks read it."""
        tokens_BS = checked_tokens(tokens_BS, CPU, self._run)
        if tokens_BS.shape != self._shape:
            raise Refused(f"tokens of shape {tuple(tokens_BS.shape)}; {self._shape} are due")
        self._memory["tokens"].copy_(tokens_BS)
        for name, x in given.items():
            self._memory[f"given.{name}"].copy_(x.detach())
        self._follow()

    def _copies(self, kind: str, names: Iterable[str]) -> Bundle:
        """Copy a bundle that the ranks have made: the next one will lie in its place."""
        return {name: self._memory[f"{kind}.{name}"].clone() for name in names}

    def _follow(self) -> None:
        """Tell the ranks of weights and of a sum that have changed here since."""
        self._base.follow()
        weights, summed = self._flat.params_N._version, self._flat.sum_N._version  # noqa: SLF001
        if weights != self._weights_there:
            self._call("take_weights")
            self._weights_there = weights
        if summed != self._sum_there:
            self._call("empty_sums")
            self._sum_there = summed


class GroupWeights(TorchWeights):
    """Weights in this process, and a sum that lies in shards on the devices."""

    spread = True

    def __init__(
        self,
        run: RunConfig,
        flat: FlatParameters,
        piece_values: int,
        stages: Sequence[GroupStage],
    ) -> None:
        """`stages`: of each half."""
        super().__init__(run, flat, piece_values)
        self._stages = stages

    def reduction(self, step: int = 0) -> TorchSums:
        half_of(self._stages, step).collect()
        return super().reduction(step)


def group_engine(
    run: RunConfig,
    stage: int,
    group: DeviceGroup,
    piece_values: int = PIECE_VALUES,
    *,
    draws: bool = True,
) -> Engine:
    """Stage `stage` of a run on the devices of `group`.

    All servers of a run need the same `piece_values`. `draws`: as of `torch_engine`.
    """
    if run.averaging_of(stage) == INT_GRID:
        raise Unusable(
            "codecs.averaging int-grid rounds the gradient of a whole microbatch, and devices that "
            f"share a stage have parts of it: {REMEDY}, or set it to raw"
        )
    if group.parallel == TENSOR:
        require_shareable(run, stage, len(group.devices))
    elif group.parallel == CONTEXT:
        require_tokens_apart(run, stage)
    else:
        require_splittable(run, stage)
    places: list[SharedPlace] = []  # until all ranks have mapped them

    def zeros_for(name: str, dtype: torch.dtype, length: int) -> Tensor:
        return shared_zeros(places, name, dtype, (length,))

    try:
        with setting_up(stage):
            flat = FlatParameters(run, stage_blocks(run, stage), CPU, zeros_for, fills=draws)
            memory = _exchange(run, stage, places)
        ranks = Ranks(run_to_json(run), stage, group, places)
    finally:
        close_all(places)
    graphs, base = GroupGraphs(), DeviceBase(ranks, flat.base)
    stages = [
        GroupStage(run, stage, ranks, memory, half, number, graphs, base)
        for number, half in enumerate(flat.halves)
    ]
    weights = GroupWeights(run, flat, piece_values, stages)
    ends = engine_bundles(run, stage)
    return Engine(
        stages[0], weights, weights.state, *ends, *stages[1:], base=flat.base, draws=draws
    )


def _exchange(run: RunConfig, stage: int, places: list[SharedPlace]) -> dict[str, Tensor]:
    """Memory for a microbatch on its way to the ranks and back."""
    shape = run.batch.rows, run.model.sequence_length + 1
    memory = {"tokens": shared_zeros(places, "tokens", torch.int64, shape)}
    below, above = boundary_above(run, stage - 1), boundary_above(run, stage)
    for boundary, forward, back in ((below, "given", "returned"), (above, "made", "gradient")):
        for tensor in boundary.tensors if boundary else ():
            for kind in (forward, back) if tensor.differentiable else (forward,):
                name = f"{kind}.{tensor.key}"
                memory[name] = shared_zeros(places, name, tensor.dtype, tensor.shape)
    return memory
