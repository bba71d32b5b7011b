"""A range of blocks on torch: forward, and backward from a graph that is kept or made again.

Shapes:  as `base.py`. Shapes of bundles are checked when they are announced
         (`tensors/codecs/bundle.py`).
Errors:  NotFiniteHere when a loss or a gradient is not finite; Refused when torch has no memory;
         NotServing when nothing is kept for a key; Unusable when a block gives another bundle than
         when traced, or the sum is spoilt.
"""
# ruff: noqa: D102, N803, N806  `Stage` documents its methods; shapes end the names

import contextlib
import functools
import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from p2pswarm.base.errors import Unusable
from p2pswarm.models.base import LONE_KEY, Bundle, Value, bundle_of
from p2pswarm.models.compute.autograd_graphs import GraphLimits, Kept, KeptGraphs
from p2pswarm.models.compute.base import BackwardSpec, HeldOutResult, Key, LossResult, NotFiniteHere
from p2pswarm.models.compute.bundle_spec import boundary_above
from p2pswarm.models.compute.flat_parameters import FlatParameters
from p2pswarm.models.compute.precision import Precision, precision_of
from p2pswarm.models.compute.tokens import (
    beside_blocks,
    checked_tokens,
    first_value,
    ids_of,
    labels_of,
    references_in,
    targets_in,
)
from p2pswarm.models.compute.torch_device import computing
from p2pswarm.models.dropout import Around, at_once, dropout_seeds, nothing_drawn
from p2pswarm.models.losses.objective import objective_of
from p2pswarm.models.rounding.gradient_grid import grid_of
from p2pswarm.settings.config import RunConfig
from p2pswarm.tensors.codecs.cuda_device import wait_for

CAME = "the gradient that came"


class TorchStage:
    """Implements `Stage`.

    Gradients are taken with `torch.autograd.grad` and added to the sum only after all of them were
    found finite, so an error never leaves a microbatch half counted. A graph is kept while the
    memory limit allows, whole or block by block. This changes only the speed: a graph made again
    gives the same bits. So when the device has no memory left, what failed is tried again with
    less of them (`autograd_graphs.py`).

    On a GPU a thread that asks for a number waits until all that was launched is done. So each
    call waits once, at its end: there it is asked whether the gradient that came, the loss and the
    gradients are finite. A forward waits as well, because servers are judged by how long each call
    takes, and who encodes what it made is not to wait for the next one. Tokens are checked on the
    host.
    """

    def __init__(
        self,
        run: RunConfig,
        stage: int,
        flat: FlatParameters,
        graphs: int | GraphLimits | KeptGraphs,
        precision: Precision | None = None,
        before: int = 0,
    ) -> None:
        """`graphs`: what is kept, their limits, or only `keep_bytes`; `precision`: as the run's.

        `before`: as in `Update`.
        """
        self._flat = flat
        self._precision = precision or precision_of(run, flat)
        self._device = flat.params_N.device
        self._model = run.model
        self._below = boundary_above(run, stage - 1)
        self._above = boundary_above(run, stage)
        self._returned = self._below.differentiable if self._below else ()
        self._due = self._above.differentiable if self._above else ()
        self._seed = run.seed
        of_flat = flat.numbers, flat.layout, flat.exp_avg_sq_N
        self._grid = grid_of(run, *of_flat, compiles=True, before=before)
        self._objective = objective_of(run)
        self._run_config = run
        if isinstance(graphs, int):
            graphs = GraphLimits(graphs)
        if isinstance(graphs, GraphLimits):
            graphs = kept_graphs(flat, [self._precision], graphs)
        self._graphs = graphs
        self.recomputed = 0
        self.gradient_norm = 0.0

    @computing()
    def forward(self, key: Key, tokens_BS: Tensor, given: Bundle) -> Bundle:
        return self._graphs.with_room(lambda: self._forward(key, tokens_BS, given))

    def _forward(self, key: Key, tokens_BS: Tensor, given: Bundle) -> Bundle:
        targets = targets_in(tokens_BS)
        kept = Kept(self._tokens(tokens_BS), targets, self._leaves(given))
        made, with_graph = self._graphs.forward(kept, lambda around: self._made(kept, around))
        if with_graph:
            kept.made = self._ends(made)
        self._graphs.keep(key, kept)
        wait_for(self._device)
        return {name: x.detach() for name, x in made.items()}

    @computing()
    def backward(self, key: Key, gradient: Bundle, spec: BackwardSpec) -> Bundle:
        kept = self._graphs.take(key)
        returned = self._graphs.with_room(lambda: self._backward(kept, gradient, spec), kept)
        self.recomputed += kept.made is None
        return returned

    def _backward(self, kept: Kept, gradient: Bundle, spec: BackwardSpec) -> Bundle:
        gradients = [gradient[name].to(self._device) for name in self._due]
        made = kept.made
        if made is None:
            again = self._graphs.at_once(kept.shape, lambda around: self._made(kept, around))
            made = self._ends(again)
        found = self._differentiate(made, gradients, kept.given, spec)
        came, squares = waited_for(squares_of(gradients), squares_of(found))
        refuse_infinite(came, CAME)
        return self._counted(found, squares, spec, kept.targets)

    @computing()
    def finish(self, tokens_BS: Tensor, given: Bundle, spec: BackwardSpec) -> LossResult:
        return self._graphs.with_room(lambda: self._finish(tokens_BS, given, spec))

    def _finish(self, tokens_BS: Tensor, given: Bundle, spec: BackwardSpec) -> LossResult:
        targets = targets_in(tokens_BS)
        count = self._objective.count(len(tokens_BS), targets)
        tokens_BS, leaves = self._tokens(tokens_BS), self._leaves(given)
        made = self._graphs.at_once(
            tokens_BS.shape, lambda around: self._run(tokens_BS, leaves, around)
        )
        total = self._objective.total(bundle_of(made)[LONE_KEY], *self._due_of(tokens_BS))
        share = torch.full_like(total, self._objective.share)
        found = self._differentiate([total], [share], leaves, spec)
        (value,), squares = waited_for([total], squares_of(found))
        loss = mean_loss(value, count)
        return LossResult(loss, self._counted(found, squares, spec, targets))

    @computing()
    @torch.no_grad()
    def evaluate(
        self, tokens_BS: Tensor, given: Bundle, *, training: bool = False
    ) -> Bundle | float | HeldOutResult:
        count = self._objective.count(len(tokens_BS), targets_in(tokens_BS))
        tokens_BS = self._tokens(tokens_BS)
        there = {name: x.to(self._device) for name, x in given.items()}
        with contextlib.nullcontext() if training else nothing_drawn(self._flat.blocks):
            made = self._run(tokens_BS, there)
        if self._above is None:
            scores = bundle_of(made)[LONE_KEY]
            total, gains = self._objective.measured(scores, *self._due_of(tokens_BS))
            loss = mean_loss(total.item(), count)
            return loss if gains is None else HeldOutResult(loss, finite(gains))
        wait_for(self._device)
        return self._gives(made)

    def drop(self, keys: Iterable[Key] | None) -> None:
        self._graphs.drop(keys)

    def _tokens(self, tokens_BS: Tensor) -> Tensor:
        return checked_tokens(tokens_BS, self._device, self._run_config)

    def _due_of(self, tokens_BS: Tensor) -> tuple[Tensor, Tensor | None]:
        """What the scores of rows are judged by: labels, and references."""
        return labels_of(tokens_BS), references_in(tokens_BS, self._run_config)

    def _leaves(self, given: Bundle) -> Bundle:
        """The tensors where a graph starts, on the device."""
        there = {name: x.detach().to(self._device) for name, x in given.items()}
        for name in self._returned:
            there[name].requires_grad_()
        return there

    def _made(self, kept: Kept, around: Around) -> Bundle:
        return self._gives(self._run(kept.tokens_BS, kept.given, around))

    def _run(self, tokens_BS: Tensor, given: Bundle, around: Around = at_once) -> Value:
        tokens_BT, flat = tokens_BS[:, :-1], self._flat
        if self._below is not None:
            value = self._below.value(given, beside_blocks(tokens_BT, self._model))
        else:
            value = first_value(tokens_BT, self._model)
        dropout = dropout_seeds(self._seed, flat.numbers, flat.blocks, ids_of(tokens_BS))
        weight = targets_in(tokens_BS) * self._objective.share if self._model.router_loss else 0.0
        return self._precision.run(value, dropout, around, weight)

    def _gives(self, value: Value) -> Bundle:
        """The bundle for the next stage."""
        assert self._above is not None, "the last stage has a loss"
        return self._above.ordered(value)

    def _ends(self, made: Bundle) -> list[Tensor]:
        """The tensors that gradients come back for."""
        return [made[name] for name in self._due]

    def _differentiate(
        self, ends: list[Tensor], gradients: list[Tensor], leaves: Bundle, spec: BackwardSpec
    ) -> Sequence[Tensor]:
        """The gradients of the weights, if they count, and of the input, if it is to have some."""
        returned = [leaves[name] for name in self._returned] if spec.returning else []
        wanted = [*self._precision.parameters, *returned] if spec.counting else returned
        if not wanted:
            return ()
        if not ends:  # nothing below the cut trains
            return [torch.zeros_like(x) for x in wanted]
        return torch.autograd.grad(ends, wanted, gradients, materialize_grads=True)

    def _counted(
        self, found: Sequence[Tensor], squares: Sequence[float], spec: BackwardSpec, targets: int
    ) -> Bundle:
        """Add the gradients of the weights, whose sums of squares come too; return the input's.

        `targets`: of the microbatch.
        """
        self.gradient_norm = 0.0
        refuse_infinite(squares, "a gradient")
        names = self._returned if spec.returning else ()
        if spec.counting:
            self.gradient_norm = math.sqrt(sum(squares[: len(found) - len(names)]))
        if spec.may_add():
            self._add(found, squares, spec, targets)
        return dict(zip(names, found[len(found) - len(names) :], strict=True))

    def _add(
        self, found: Sequence[Tensor], squares: Sequence[float], spec: BackwardSpec, targets: int
    ) -> None:
        """Add gradients to the sum: all of them, or the sum is of no use any more."""
        precision = self._precision
        try:
            if self._grid is not None:
                of = spec.step, spec.microbatch
                self._grid.add(precision.leaves, found, precision.sums, squares, of, targets)
                return
            for total, part in zip(precision.sums, found, strict=False):
                total.add_(part)
        except (RuntimeError, MemoryError) as error:
            reason = str(error).partition("\n")[0]
            raise Unusable(
                f"the gradient's sum is spoilt, start this node again: {reason}"
            ) from error


def kept_graphs(
    flat: FlatParameters, precisions: Sequence[Precision], limits: GraphLimits
) -> KeptGraphs:
    """The graphs of a stage; with a delay its two halves share their memory."""
    weights = frozenset().union(*(each.weight_storages for each in precisions))
    return KeptGraphs(limits, flat.params_N.device, len(flat.blocks), weights)


def mean_loss(total: float, count: int) -> float:
    """The loss of so many targets or pairs, 0 for none; NotFiniteHere if it is no number."""
    if not math.isfinite(total):
        raise NotFiniteHere(f"the loss is {total}: lower the learning rate or look at the text")
    return total / max(1, count)


def finite(numbers_B: Tensor) -> tuple[float, ...]:
    """Numbers of rows; NotFiniteHere if one of them is none."""
    numbers = tuple(numbers_B.tolist())
    for number in numbers:
        mean_loss(number, 1)
    return numbers


def squares_of(tensors: Sequence[Tensor]) -> list[Tensor]:
    """The sum of squares of each, not yet waited for: not finite where a value is not, or large.

    They are dot products: they cost 1 % of a backward, a tenth of what norms cost.
    """
    flats = [x.reshape(-1) for x in tensors]
    return [torch.dot(x, x).to(torch.promote_types(x.dtype, torch.float32)) for x in flats]


def waited_for(*groups: Sequence[Tensor]) -> list[list[float]]:
    """The values of scalars, group by group; on a GPU one wait for all."""
    scalars = [x for group in groups for x in group]
    if not scalars:
        return [[] for _ in groups]
    wide = functools.reduce(torch.promote_types, (x.dtype for x in scalars))
    values = iter(torch.stack([x.detach().to(wide) for x in scalars]).tolist())
    return [[next(values) for _ in group] for group in groups]


def require_finite(tensors: Sequence[Tensor], what: str) -> None:
    """Raise NotFiniteHere for NaN, infinities, and values whose squares overflow."""
    (squares,) = waited_for(squares_of(tensors))
    refuse_infinite(squares, what)


def refuse_infinite(squares: Sequence[float], what: str) -> None:
    """Raise NotFiniteHere unless sums of squares are finite."""
    if not all(map(math.isfinite, squares)):
        raise NotFiniteHere(f"{what} is not finite: lower the learning rate or look at the text")
