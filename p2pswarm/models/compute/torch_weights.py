"""A stage's weights in torch: its state piece by piece, its gradient sum, and updates.

Shapes:  N elements in a stage; a piece is elements start..stop-1 of weights and moments.
Errors:  Unusable where the stage cannot be set up; BadMessage for a piece of another size.
"""
# ruff: noqa: D102, N806  the protocols document the methods; shapes end the names

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from p2pswarm.base.errors import BadMessage
from p2pswarm.checkpoint.digests import StateHasher, zeros
from p2pswarm.models.base_weights.base_layout import base_roots
from p2pswarm.models.blocks import averagings_of, stage_blocks
from p2pswarm.models.compute.autograd_graphs import GraphLimits
from p2pswarm.models.compute.base import Engine, Update, part_sizes
from p2pswarm.models.compute.bundle_spec import engine_bundles
from p2pswarm.models.compute.compiler import compiled_precision
from p2pswarm.models.compute.flat_parameters import (
    FlatParameters,
    first_factors,
    first_weights,
    half_of,
    layout_of,
    piece_hashes,
)
from p2pswarm.models.compute.low_rank import low_rank_of
from p2pswarm.models.compute.optimizer import Optimizer, optimizer_of
from p2pswarm.models.compute.precision import precision_of
from p2pswarm.models.compute.torch_device import setting_up
from p2pswarm.models.compute.torch_stage import TorchStage, kept_graphs
from p2pswarm.models.compute.torch_sums import GradientMemory, TorchSums, keyed_digest
from p2pswarm.models.formats.weight_formats import DTYPES
from p2pswarm.run.averaging.base import Sums
from p2pswarm.settings.config import (
    AVERAGE,
    FORMER,
    FORMER_SQUARES,
    LAST_UPDATE,
    POWERSGD,
    RunConfig,
)
from p2pswarm.tensors.codecs.base import bytes_of
from p2pswarm.tensors.codecs.tensor_pool import on_host
from p2pswarm.tensors.flat_layout import STATE_TENSORS
from p2pswarm.tensors.state_tree import PIECE_VALUES, base_leaves

RAW = "raw"  # how vectors and factors travel
TIED_KEY = b"p2pswarm tied 01"  # known to all, because it is faults that the digest looks for


class TorchState:
    """Implements `StateMemory` on flat memory."""

    def __init__(
        self,
        flat: FlatParameters,
        optimizers: Sequence[Optimizer],
        piece_values: int = PIECE_VALUES,
    ) -> None:
        """`optimizers`: of each half."""
        self._flat = flat
        self.tensors = len(flat.state)
        self._optimizers = optimizers
        self._spans = flat.spans(piece_values)
        self.pieces = len(self._spans)
        self._versions = [0] * self.pieces
        """With a delay a piece's version says in which half its weights are."""

    @property
    def version(self) -> int:
        """The version of the first piece, and of all once they are here."""
        return self._versions[0] if self._versions else 0

    def become(self, version: int) -> None:
        """All pieces are of a version now."""
        self._versions = [version] * self.pieces

    def part_bytes(self, tensor: int, piece: int) -> int:
        start, stop = self._spans[piece]
        return (stop - start) * self._flat.layout.item_bytes[tensor]

    def read(self, tensor: int, piece: int) -> memoryview:
        start, stop = self._spans[piece]
        part = self._state(piece)[tensor].detach()[start:stop]
        return bytes_of(_copy_on_host(part))

    @torch.no_grad()
    def write(self, piece: int, parts: Sequence[memoryview], version: int = 0) -> None:
        start, stop = self._spans[piece]
        sizes = [part.nbytes for part in parts]
        if sizes != part_sizes(self, piece):
            raise BadMessage(f"parts of {sizes} bytes are no piece {piece}")
        self._versions[piece] = version
        for x_N, part in zip(self._state(piece), parts, strict=True):
            if part.nbytes:  # as bytes: a part of four a value may follow one of two, at any place
                x_N[start:stop].view(torch.uint8).copy_(torch.frombuffer(part, dtype=torch.uint8))

    def gradient(self, reduced: Sums, piece: int) -> Tensor:
        assert isinstance(reduced, TorchSums)
        start, stop = self._spans[piece]
        part = reduced.reduced_N[start:stop]
        return _copy_on_host(part)

    def follow(self, piece: int, gradient: Tensor, update: Update) -> None:
        there = gradient.to(self._flat.params_N.device)
        half_of(self._optimizers, update.number - 1).step(there, update, self._spans[piece])
        self._versions[piece] = update.number

    def _state(self, piece: int) -> tuple[Tensor, ...]:
        return self._flat.newest(self._versions[piece]).state


def _copy_on_host(part: Tensor) -> Tensor:
    """A copy that stays as it is, whatever happens to the part."""
    return part.clone() if part.device.type == "cpu" else on_host(part)


def first_state(run: RunConfig, stage: int) -> Iterator[bytes]:
    """The digest of a stage's state of version 0; it is the last value, after one for each block.

    A trainer tells by it which servers have drawn their first weights right. It may be smaller than
    any of them: it needs the weights of one block, and no moments.
    """
    numbers = stage_blocks(run, stage)
    with setting_up(stage):
        layout = layout_of(run, numbers)
        roots = []
        for root in base_roots(run, numbers) if run.has_base else ():
            roots.append(root)
            yield b""
        hasher = StateHasher(layout, roots)
        kept, *wide = (DTYPES[dtype] for dtype in layout.dtypes)
        start, behind = layout.factors_start, layout.length - layout.factors_start
        first, second = layout.item_bytes[1:STATE_TENSORS]
        for part_N in first_weights(run, numbers):
            hasher.update(bytes_of(part_N.to(kept)))
            yield b""
        _add_zeros(hasher, behind * layout.item_bytes[0] + start * first)
        for factor, drawn in first_factors(run, layout):
            _add_zeros(hasher, (factor.start - start) * first)
            hasher.update(bytes_of(drawn.to(wide[0])))
            start = factor.stop
            yield b""
        _add_zeros(hasher, (layout.length - start) * first + layout.length * second)
        for part_N in first_weights(run, numbers) if run.optimizer.average_decay else ():
            hasher.update(bytes_of(part_N.to(kept).to(wide[1])))  # it begins as they do
            yield b""
        if AVERAGE in layout.kinds:
            _add_zeros(hasher, behind * layout.item_bytes[layout.kinds.index(AVERAGE)])
        for part_N in first_weights(run, numbers) if run.delay else ():
            hasher.update(bytes_of(part_N.to(kept)))
            yield b""
        if FORMER in layout.kinds:
            _add_zeros(hasher, behind * layout.item_bytes[layout.kinds.index(FORMER)])
        for kind in (LAST_UPDATE, FORMER_SQUARES):
            if kind in layout.kinds:
                _add_zeros(hasher, layout.length * layout.item_bytes[layout.kinds.index(kind)])
    yield hasher.digest()


def _add_zeros(hasher: StateHasher, left: int) -> None:
    for part in zeros(left):
        hasher.update(part)


class TorchWeights:
    """Implements `Weights` on flat memory."""

    spread = False

    def __init__(self, run: RunConfig, flat: FlatParameters, piece_values: int) -> None:
        self._spans = flat.spans(piece_values)
        self._flat = flat
        averaging = averagings_of(run, flat.numbers)[0]
        self._codec_name = RAW if averaging == POWERSGD else averaging
        self._low_rank = low_rank_of(run, flat.layout, flat.exp_avg_N, tied=flat.tied)
        self._optimizers = [optimizer_of(run.optimizer, half) for half in flat.halves]
        self.state = TorchState(flat, self._optimizers, piece_values)
        self._gradients = GradientMemory(flat.sum_N)

    def reset(self, *, draw: bool) -> None:
        for half in self._flat.halves:
            half.sum_N.zero_()
        if draw:
            self._flat.draw()
            self.state.become(0)

    @property
    def base_roots(self) -> tuple[bytes, ...]:
        return self._flat.base_roots

    def hashes(self) -> tuple[bytes, ...]:
        state = self._flat.newest(self.state.version).state
        return (*piece_hashes(state, self._spans), *base_leaves(self.base_roots))

    def tied_digest(self) -> bytes:
        if (tied := self._flat.tied) is None:
            return b""
        state = self._flat.newest(self.state.version).state
        parts = [x_N.detach()[tied.start : tied.stop] for x_N in state]
        return keyed_digest(TIED_KEY, parts)

    def reduction(self, step: int = 0) -> TorchSums:
        flat = self._flat.of_step(step)
        return TorchSums(
            flat.sum_N,
            self._codec_name,
            self._gradients,
            tied=flat.tied,
            low_rank=self._low_rank,
        )

    def apply(self, reduced: Sums, update: Update) -> None:
        assert isinstance(reduced, TorchSums)
        step = update.number - 1
        half_of(self._optimizers, step).step(reduced.reduced_N, update)
        self._flat.of_step(step).sum_N.zero_()
        self.state.become(update.number)


def torch_engine(
    run: RunConfig,
    stage: int,
    device: torch.device,
    graphs: int | GraphLimits,
    piece_values: int = PIECE_VALUES,
    *,
    compiles: bool = False,
    draws: bool = True,
    before: int = 0,
) -> Engine:
    """Stage `stage` of a run on `device`; `graphs`: what they may take, as `TorchStage` has it.

    All servers of a run need the same `piece_values`. `compiles`: run the blocks compiled.
    `draws`: version 0 and what is frozen can be made here; else these come from members.
    `before`: as in `Update`.
    """
    takes, gives = engine_bundles(run, stage)
    with setting_up(stage):
        flat = FlatParameters(run, stage_blocks(run, stage), device, fills=draws)
        weights = TorchWeights(run, flat, piece_values)
    precisions = [
        compiled_precision(run, stage, half) if compiles else precision_of(run, half)
        for half in flat.halves
    ]
    limits = GraphLimits(graphs) if isinstance(graphs, int) else graphs
    kept = kept_graphs(flat, precisions, limits)
    stages = [
        TorchStage(run, stage, half, kept, precision, before)
        for half, precision in zip(flat.halves, precisions, strict=True)
    ]
    ends = takes, gives
    return Engine(
        stages[0], weights, weights.state, *ends, *stages[1:], base=flat.base, draws=draws
    )
