"""The reference: all blocks in one process, in an ordinary training loop.

Shapes:  tokens_BS has S = T + 1 tokens in a row: T inputs, and the targets one place further.
"""
# ruff: noqa: N803, N806  shapes are written at the end of names

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, cast

import torch
from torch import Tensor

from p2pswarm.models.base import LONE_KEY, Value, bundle_of
from p2pswarm.models.blocks import averagings_of, block_count
from p2pswarm.models.boundary import boundaries
from p2pswarm.models.compute.base import NotFiniteHere, Update
from p2pswarm.models.compute.bundle_spec import (
    block_above,
    boundary_above,
    boundary_codecs,
    bundle_spec,
)
from p2pswarm.models.compute.flat_parameters import FlatParameters, half_of, squared_norm
from p2pswarm.models.compute.low_rank import low_rank_of
from p2pswarm.models.compute.optimizer import optimizer_of
from p2pswarm.models.compute.precision import FullPrecision, Precision, precision_of
from p2pswarm.models.compute.tokens import (
    first_value,
    ids_of,
    labels_of,
    references_in,
    targets_in,
)
from p2pswarm.models.compute.torch_stage import (
    refuse_infinite,
    require_finite,
    squares_of,
    waited_for,
)
from p2pswarm.models.dropout import RunBlock, at_once, dropout_seeds, nothing_drawn
from p2pswarm.models.losses.objective import objective_of
from p2pswarm.models.losses.preference import log_probabilities
from p2pswarm.models.rounding.gradient_grid import GradientGrid, grid_of
from p2pswarm.run.schedule import sum_scale, tokens_per_target
from p2pswarm.settings.config import AVERAGE, FORMER, INT_GRID, RunConfig
from p2pswarm.tensors.codecs.base import Unencodable
from p2pswarm.tensors.codecs.codec import CodecKind
from p2pswarm.tensors.codecs.edge_codecs import EdgeCodecs
from p2pswarm.tensors.codecs.registry import named, round_trip

Rounds = Callable[[Tensor], Tensor]
CodecsOfStep = Callable[[int], Sequence[bytes]]
"""Gives the codes above each stage that a record has for a step; none: as the manifest says."""


class _Crossing(torch.autograd.Function):
    """A tensor that crosses a boundary, and its gradient that comes back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, up: Rounds, down: Rounds) -> Tensor:
        ctx.down = down
        return up(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return ctx.down(gradients[0]), None, None


class BoundaryRounding:
    """Rounds at each cut of a run as its servers do, by the same codecs and keys.

    A codec with a link's memory has no such definition, so its values pass as they are.
    """

    def __init__(self, run: RunConfig, chosen: CodecsOfStep) -> None:
        self._run, self._chosen = run, chosen
        self._boundaries = boundaries(run)
        self._stages = {block_above(run, stage): stage for stage in range(run.stages - 1)}
        """By the first block above a cut."""
        self._edges: dict[tuple[int, bytes], tuple[EdgeCodecs, EdgeCodecs] | None] = {}
        """By stage and codes: the codecs of what goes up, and of what comes down."""

    def around(self, step: int, microbatch: int) -> Callable[[int, RunBlock, Value], Value]:
        """Run blocks, and round what crosses a cut; `microbatch` by its global number."""

        def run_rounded(offset: int, run: RunBlock, value: Value) -> Value:
            made = run(value)
            stage = self._stages.get(offset + 1)
            if stage is None or (edges := self._rounding(stage, step)) is None:
                return made
            return self._crossed(made, offset, edges, (step, microbatch))

        return run_rounded

    def _rounding(self, stage: int, step: int) -> tuple[EdgeCodecs, EdgeCodecs] | None:
        """The codecs above a stage in a step; None if every bit passes."""
        table = self._chosen(step)
        key = stage, table[stage] if table else b""
        if key not in self._edges:
            bundle = bundle_spec(boundary_above(self._run, stage))
            edges = boundary_codecs(self._run, stage, bundle, key[1])
            kinds = {named(name).kind for edge in edges for name in edge.names}
            self._edges[key] = None if kinds == {CodecKind.EXACT} else edges
        return self._edges[key]

    def _crossed(
        self, value: Value, block: int, edges: tuple[EdgeCodecs, EdgeCodecs], of: tuple[int, int]
    ) -> Value:
        boundary = self._boundaries[block]
        up, down = (dict(zip(edge.spec.names, _rounds(edge, of), strict=True)) for edge in edges)
        crossed = {}
        for name, x in boundary.ordered(value).items():
            if name in down:
                crossing = _Crossing.apply(x, up[name], down[name])  # type: ignore[no-untyped-call]
                crossed[name] = cast("Tensor", crossing)
            else:
                crossed[name] = up[name](x)
        return boundary.value(crossed, bundle_of(value))


def _rounds(edge: EdgeCodecs, of: tuple[int, int]) -> list[Rounds]:
    """For each tensor of a bundle, the values that arrive of it."""

    def rounds(codec: str, key: bytes) -> Rounds:
        kept = CodecKind.EXACT, CodecKind.LINKED
        return (
            (lambda x: x)
            if named(codec).kind in kept
            else (lambda x: round_trip(x, codec, key=key))
        )

    return [rounds(codec, key) for codec, key in zip(edge.names, edge.keys(*of), strict=True)]


class ReferenceTrainer:
    """One process that trains the whole model.

    It uses the same blocks, first weights, microbatches and optimizer as the swarm, and nothing
    else. The weights that a swarm trains must equal its weights, and the swarm's cost is measured
    against it. What crosses a cut is rounded by the same codecs and keys (docs/codecs.md). A
    microbatch whose loss or gradient is not finite adds nothing, as in a swarm (docs/training.md).
    With a delay it keeps two versions of the weights (docs/delay.md).
    """

    def __init__(
        self,
        run: RunConfig,
        device: torch.device | None = None,
        *,
        rounded: bool = True,
        codecs: CodecsOfStep = lambda _step: (),
    ) -> None:
        """`rounded`: as the run's codecs round; false: as a loop that knows of no cuts.

        `codecs`: what holds in a step, as `run.chain.chain.Chain.codecs` gives it.
        """
        self._run, self._objective = run, objective_of(run)
        self._rounding = BoundaryRounding(run, codecs) if rounded else None
        self._whole = FlatParameters(
            run, range(block_count(run.model)), device or torch.device("cpu")
        )
        self._whole.draw()
        self._precisions = [precision_of(run, half) for half in self._whole.halves]
        self._grids = [
            grid_of(run, half.numbers, half.layout, half.exp_avg_sq_N) if rounded else None
            for half in self._whole.halves
        ]
        averagings = averagings_of(run, self._whole.numbers)
        self._on_grid = {n for n, name in enumerate(averagings) if name == INT_GRID}
        """The blocks whose sums are whole numbers, if there is a grid."""
        whole = self._whole
        self._low_rank = low_rank_of(run, whole.layout, whole.exp_avg_N) if rounded else None
        self._optimizers = [optimizer_of(run.optimizer, half) for half in self._whole.halves]
        for precision in self._precisions:
            if isinstance(precision, FullPrecision):
                for leaf, total in zip(precision.parameters, precision.sums, strict=True):
                    leaf.grad = total
        self.version = 0
        self._updates_before = 0

    @torch.no_grad()
    def begin_from(self, other: "ReferenceTrainer", *, moments: bool = True) -> None:
        """Take the newest weights of a loop for version 0; with its moments and their count, or as
        if they were the first weights.
        """
        own, there = self.flat, other.flat
        begin = own.layout.factors_start
        for kind, buffer_N in own.buffers.items():
            weights = kind in ("", AVERAGE, FORMER) and (not moments or kind not in there.buffers)
            if weights:
                buffer_N.copy_(there.params_N)
            elif moments:
                buffer_N.copy_(there.buffers[kind])
            else:
                buffer_N.zero_()
        if not moments:
            own.exp_avg_N[begin:].copy_(there.exp_avg_N[begin:])  # factors stay warm
        updates = other._updates_before + other.version  # noqa: SLF001 - another of this class
        self._updates_before = updates if moments else 0
        for grid in self._grids:
            if grid is not None:
                grid.before = self._updates_before

    @property
    def flat(self) -> FlatParameters:
        """The newest weights."""
        return self._whole.newest(self.version)

    @property
    def _computing(self) -> FlatParameters:
        """The weights that the step is computed with, and its sum."""
        return self._whole.of_step(self.version)

    @property
    def _precision(self) -> Precision:
        return half_of(self._precisions, self.version)

    @property
    def _grid(self) -> GradientGrid | None:
        return half_of(self._grids, self.version)

    def total(self, tokens_BS: Tensor, number: int) -> Tensor:
        """The loss of one microbatch's targets or pairs together; `number`: its own in the run."""
        return self._total(*self._scored(tokens_BS, number, self._precision))

    def _total(self, scores_BTV: Tensor, tokens_BS: Tensor) -> Tensor:
        labels_BT, references_B = labels_of(tokens_BS), references_in(tokens_BS, self._run)
        return self._objective.total(scores_BTV, labels_BT, references_B)

    def _scored(
        self, tokens_BS: Tensor, number: int, precision: Precision
    ) -> tuple[Tensor, Tensor]:
        """The scores of a microbatch, and its tokens where they are."""
        tokens_BS = tokens_BS.to(self._whole.params_N.device, torch.int64)
        flat, ids_BS = self._whole, ids_of(tokens_BS)
        dropout = dropout_seeds(self._run.seed, flat.numbers, flat.blocks, ids_BS)
        around = self._rounding.around(self.version, number) if self._rounding else at_once
        first = first_value(tokens_BS[:, :-1], self._run.model)
        run = self._run
        weight = targets_in(tokens_BS) * run.share_of_token if run.model.router_loss else 0.0
        value = bundle_of(precision.run(first, dropout, around, weight))
        return value[LONE_KEY], tokens_BS

    def add(self, tokens_BS: Tensor, number: int) -> float:
        """Add one microbatch's gradient to the sum; returns its loss, nats per target."""
        if self._grid is not None or not isinstance(self._precision, FullPrecision):
            loss, found = self._differentiated(tokens_BS, number)
            self._add_parts(found, number, targets_in(tokens_BS))
            return loss
        total = self.total(tokens_BS, number)
        share = total * self._objective.share
        share.backward()  # type: ignore[no-untyped-call]  # adds in place
        return self._mean(total, tokens_BS)

    def _mean(self, total: Tensor, tokens_BS: Tensor) -> float:
        """The loss of a microbatch, nats per target or pair; 0 without any."""
        return total.item() / max(1, self._objective.count(len(tokens_BS), targets_in(tokens_BS)))

    def add_all(self, microbatches: Sequence[Tensor]) -> list[float]:
        """Add a step's microbatches, but for those that are not finite; the others' losses."""
        first = self.version * self._run.batch.microbatches
        with suppress(Unencodable, NotFiniteHere):
            losses = [self.add(x, number) for number, x in enumerate(microbatches, first)]
            if math.isfinite(squared_norm(self._computing.sum_N)):  # then each was: no need to look
                return losses
        self._computing.sum_N.zero_()
        each = [self._add_finite(x, number) for number, x in enumerate(microbatches, first)]
        return [loss for loss in each if loss is not None]

    def _add_finite(self, tokens_BS: Tensor, number: int) -> float | None:
        """Add one microbatch's gradient and return its loss; None if either is not finite."""
        try:
            loss, found = self._differentiated(tokens_BS, number)
            require_finite(found, "a gradient")
        except (Unencodable, NotFiniteHere):
            return None
        self._add_parts(found, number, targets_in(tokens_BS))
        return loss

    def _differentiated(self, tokens_BS: Tensor, number: int) -> tuple[float, Sequence[Tensor]]:
        """The loss of a microbatch, and the gradients of its share of the step's."""
        total = self.total(tokens_BS, number)
        share = total * self._objective.share
        leaves = self._precision.parameters
        found = torch.autograd.grad(share, leaves, materialize_grads=True)
        return self._mean(total, tokens_BS), found

    def _add_parts(self, found: Sequence[Tensor], number: int, targets: int) -> None:
        precision, grid = self._precision, self._grid
        if grid is None:
            for total, part in zip(precision.sums, found, strict=True):
                total.add_(part)
            return
        (squares,) = waited_for(squares_of(found))
        refuse_infinite(squares, "a gradient")
        given = list(zip(precision.leaves, found, precision.sums, squares, strict=True))
        rounded = [each for each in given if each[0].block in self._on_grid]
        if rounded:  # of such a stage all may be frozen
            leaves, parts, totals, norms = zip(*rounded, strict=True)
            grid.add(leaves, parts, totals, norms, (self.version, number), targets)
        for leaf, part, total, _ in given:
            if leaf.block not in self._on_grid:
                total.add_(part)

    def commit(self, learning_rate: float, targets: int | None = None) -> float:
        """Clip, update, empty the sum; returns the gradient's norm before clipping.

        `targets`: of the step; None: every token.
        """
        self._average()
        flat = self._computing
        summed = math.sqrt(squared_norm(flat.sum_N[: flat.layout.factors_start]))
        per_target = 1.0 if targets is None else tokens_per_target(self._run, targets)
        norm, scale = sum_scale(self._run.optimizer, summed, per_target)
        self._update(scale, learning_rate)
        return norm

    def apply(self, scale: float, learning_rate: float) -> None:
        """Update with the sum times `scale`, and empty it."""
        self._average()
        self._update(scale, learning_rate)

    @torch.no_grad()
    def _average(self) -> None:
        """Make of the sum what the averaging within stages makes of it."""
        if self._low_rank is not None:
            self._low_rank.reduce_whole(self._computing.sum_N)

    def _update(self, scale: float, learning_rate: float) -> None:
        sum_N, before = self._computing.sum_N, self._updates_before
        update = Update(self.version + 1, scale, learning_rate, before)
        half_of(self._optimizers, self.version).step(sum_N, update)
        sum_N.zero_()
        self.version += 1

    @torch.no_grad()
    def evaluate(self, tokens_BS: Tensor, number: int = 0) -> float:
        """Mean nats per target or pair of one microbatch; no graph is kept."""
        return self._mean(self._total(*self._newest(tokens_BS, number)), tokens_BS)

    @torch.no_grad()
    def log_probabilities(self, tokens_BS: Tensor, number: int = 0) -> Tensor:
        """Of each row's targets together, as the references of pairs are."""
        scores_BTV, tokens_BS = self._newest(tokens_BS, number)
        return log_probabilities(scores_BTV, labels_of(tokens_BS))

    def _newest(self, tokens_BS: Tensor, number: int) -> tuple[Tensor, Tensor]:
        with nothing_drawn(self.flat.blocks):
            newest = half_of(self._precisions, self.version + 1)
            return self._scored(tokens_BS, number, newest)
