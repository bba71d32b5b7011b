"""A stage's weights, gradient sum and optimizer state, each in one contiguous buffer.

Shapes:  N elements in a stage, laid out as `tensors/flat_layout.py` says.
Errors:  Unusable for blocks that cannot be trained.
"""
# ruff: noqa: N803, N806  shapes are written at the end of names

import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar

import torch
from torch import Tensor, nn

from p2pswarm.base.errors import Unusable
from p2pswarm.models.base import WholeBlock
from p2pswarm.models.base_weights.base_memory import BaseMemory, ZerosFor
from p2pswarm.models.blocks import (
    averagings_of,
    bare_blocks,
    block_count,
    draw_blocks,
    make_blocks,
    stage_blocks,
)
from p2pswarm.models.compute.orthonormal import drawn_directions
from p2pswarm.models.compute.torch_device import place_for
from p2pswarm.models.formats.weight_formats import DTYPES
from p2pswarm.models.rounding.stochastic_round import ChanceRounding
from p2pswarm.models.scope import full_name
from p2pswarm.models.weight_tying import shared_name, tied_in
from p2pswarm.run.averaging.shards import Span as Shared
from p2pswarm.settings.config import (
    AVERAGE,
    FACTOR,
    FORMER,
    FORMER_SQUARES,
    INT_GRID,
    LAST_UPDATE,
    POWERSGD,
    RANK_LEAST,
    SQUARES,
    RunConfig,
)
from p2pswarm.tensors.codecs.base import bytes_of
from p2pswarm.tensors.codecs.cuda_device import streams_of, wait_for
from p2pswarm.tensors.codecs.tensor_pool import on_host
from p2pswarm.tensors.flat_layout import (
    FlatLayout,
    FlatTensor,
    Shape,
    Span,
    factor_shape,
    flat_layout,
    greatest_rank,
)
from p2pswarm.tensors.state_tree import (
    PIECE_VALUES,
    base_leaves,
    piece_hash,
    piece_spans,
    root_of,
)

T = TypeVar("T")
ODD_SUM = "odd_sum"  # the buffer of the half of odd steps; that of even ones is `sum`
THREADS = 8  # hash 14 GB/s, about as fast as bytes come from a GPU
CORRECTION = 2.0
"""How often a delay's correction adds what the last update lacked (docs/delay.md). A power of two:
its product is exact, so every processor rounds alike."""
NORM_CHUNK = 1 << 18  # elements widened to float64 at a time: 2 MiB stay in the cache


def named_parameters(
    numbers: range, blocks: Sequence[nn.Module]
) -> Iterator[tuple[str, nn.Parameter]]:
    """The parameters of the blocks `numbers` that train, each once, named as in a file of weights.

    A tied tensor has one name, at whichever end of the model it is.
    """
    for _, name, parameter in placed_parameters(numbers, blocks):
        yield name, parameter


def placed_parameters(
    numbers: range, blocks: Sequence[nn.Module]
) -> Iterator[tuple[int, str, nn.Parameter]]:
    """As `named_parameters`, with the number of the block that has it, the first if two have."""
    seen: set[int] = set()
    for number, block in zip(numbers, blocks, strict=True):
        for name, parameter in block.named_parameters():
            if parameter.requires_grad and id(parameter) not in seen:
                seen.add(id(parameter))
                yield number, full_name(number, block, name), parameter


def layout_of(run: RunConfig, numbers: range) -> FlatLayout:
    """Return how the state of the blocks `numbers` lies flat; no memory is made for it."""
    with torch.device("meta"):
        return block_layout(run, numbers, make_blocks(run, numbers))


def check_low_rank(run: RunConfig) -> None:
    """Raise Unusable if the rank of a run pays for no matrix that it would be for."""
    stages = [s for s in range(run.stages) if run.averaging_of(s) == POWERSGD]
    layouts = [layout_of(run, stage_blocks(run, stage)) for stage in stages]
    if not stages or any(layout.factors for layout in layouts):
        return
    best = max(greatest_rank(t.shape) for layout in layouts for t in layout.parameters)
    lower = f"set it to {best} at most, or " if best >= RANK_LEAST else ""
    raise Unusable(
        f"codecs.averaging_rank {run.codecs.averaging_rank} would halve the bytes of no matrix "
        f'that is averaged as powersgd: {lower}set codecs.averaging to "raw"'
    )


def shared_in(run: RunConfig, numbers: range) -> str | None:
    """The full name of the tensor that these blocks have in common with another stage, if any."""
    with torch.device("meta"):
        return shared_name(make_blocks(run, numbers))


def digest_of(
    tensors: Sequence[Tensor], spans: Sequence[Span], base: Sequence[bytes] = ()
) -> bytes:
    """The digest of contiguous tensors of one length, on any device.

    `spans`: its pieces'; `base`: the leaf of the frozen weights under it, if there are some.
    """
    return root_of([*piece_hashes(tensors, spans), *base])


def piece_hashes(tensors: Sequence[Tensor], spans: Sequence[Span]) -> list[bytes]:
    """The hash of each piece of contiguous tensors of one length, on any device."""
    device = tensors[0].device
    streams = streams_of(device)
    wait_for(device)  # streams aside do not wait for the update that is to be hashed

    def hashed(span: Span) -> bytes:
        start, stop = span
        parts = streams.aside(lambda: [on_host(x[start:stop]) for x in tensors])
        return piece_hash(bytes_of(part) for part in parts)

    if len(spans) == 1:  # no thread for a small stage
        return [hashed(spans[0])]
    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(hashed, spans))


@dataclass(frozen=True, slots=True)
class Segment:
    """The place of one parameter in the flat buffers."""

    start: int
    stop: int
    decays: bool
    """True if weight decay applies, as `OptimizerConfig.decays` says."""
    inner: bool
    """It is of a block that is neither the first nor the last."""


class FlatParameters:
    """The blocks `numbers` of a run, and the buffers that training them needs.

    Parameters are views into one buffer. So averaging, digests, snapshots and the optimizer work
    on one flat tensor. Weights may be kept in bfloat16 (`stochastic_round.py`); all else has the
    model's dtype.

    The digest is the root of the tree of `tensors/state_tree.py`: the same for the same bytes, on
    whatever device. One thread hashes 1.8 GB/s, and a GPU would wait for it after every step of a
    large stage. So threads hash the pieces side by side. Each copies its pieces from a GPU itself,
    so that few of them are on the host at a time.

    With a delay there are two of these, the `halves`: one for even steps and one for odd ones. Each
    has blocks, weights and a sum of its own; moments and all else are common. The half of step t
    has the weights of version t-1. The update of step t makes version t+1 in it, out of the other
    half's version t: so the graphs of step t+1 are not touched. Nor is its grid, if sums are on
    one: then each half has second moments of its own, too, those of its weights' version.
    """

    def __init__(
        self,
        run: RunConfig,
        numbers: range,
        device: torch.device,
        zeros_for: ZerosFor | None = None,
        even: "FlatParameters | None" = None,
        *,
        fills: bool = True,
    ) -> None:
        """`zeros_for`: makes the buffer of a name, dtype and length elsewhere than on `device`.

        `even`: the half of even steps, if this is that of odd ones. `fills`: make what is frozen.
        """
        self.blocks = bare_blocks(run, numbers, device)
        self.numbers = numbers
        self.keeps_squares = INT_GRID in averagings_of(run, numbers)
        """Whether second moments are kept of all parameters, also where the optimizer needs none:
        the grid of sums is read from them."""
        self._run = run
        self.base = self._base(device, zeros_for, even, fills=fills)
        """What is frozen; with a delay both halves have the same."""
        self.layout = layout = block_layout(run, numbers, self.blocks)
        self.segments = self._segments(frozen := frozen_names(self.blocks))
        self.tied = self._tied()
        """The place of a tensor that the stage at the other end of a tied model has as well."""

        def zeros(name: str, dtype: str) -> Tensor:
            if zeros_for is None:
                return zero_buffer(layout, dtype, device)
            return zeros_for(name, DTYPES[dtype], layout.length)

        if even is None:
            names = (kind.removesuffix(".") or "params" for kind in layout.kinds)
            buffers = dict(zip(layout.kinds, map(zeros, names, layout.dtypes), strict=True))
        else:
            others = {"": FORMER, FORMER: "", SQUARES: FORMER_SQUARES, FORMER_SQUARES: SQUARES}
            swapped = {kind: other for kind, other in others.items() if other in even.buffers}
            buffers = {kind: even.buffers[swapped.get(kind, kind)] for kind in even.buffers}
        self.buffers: dict[str, Tensor] = buffers
        self.params_N, self.exp_avg_N, self.exp_avg_sq_N, *_ = buffers.values()
        self.average_N = buffers.get(AVERAGE)
        """An average of the weights over time, if the run has one."""
        self.former_N = buffers.get(FORMER)
        """With a delay, the weights of the other half."""
        self.former_sq_N = buffers.get(FORMER_SQUARES)
        """With a delay and sums on a grid, the second moments of the other half."""
        self.last_update_N = buffers.get(LAST_UPDATE)
        """With a delay and its correction, what the last update was without that."""
        self.sum_N = zeros("sum" if even is None else ODD_SUM, run.model.dtype)
        bf16 = run.weight_storage == "bf16"
        self._rounding = ChanceRounding(run.seed, layout.tensors, self.params_N) if bf16 else None
        self.parameters = bind(self.blocks, layout, self.params_N)
        self.sums = [
            torch.zeros_like(p) if t.name in frozen else self.sum_N[t.start : t.stop].view_as(p)
            for t, p in zip(layout.parameters, self.parameters, strict=True)
        ]
        """A view of the sum for each parameter; for a frozen one, memory that nobody reads."""
        self.halves: tuple[FlatParameters, ...] = (self,)
        """With a delay: that of even steps, and that of odd ones."""
        if even is not None:
            self.halves = even, self
        elif self.former_N is not None:
            self.halves = FlatParameters(run, numbers, device, zeros_for, self).halves

    def _base(
        self,
        device: torch.device,
        zeros_for: ZerosFor | None,
        even: "FlatParameters | None",
        *,
        fills: bool,
    ) -> BaseMemory | None:
        if not self._run.has_base:
            return None
        if even is None or even.base is None:
            base = BaseMemory(self._run, self.numbers, self.blocks, device, zeros_for)
            if fills:
                base.fill()
            elif not base.pieces:
                base.use()
            return base
        even.base.bind(self.blocks)
        return even.base

    def _tied(self) -> Shared | None:
        shared = shared_name(self.blocks)
        places = (Shared(t.start, t.stop) for t in self.layout.tensors if t.name == shared)
        return next(places, None)

    def _segments(self, frozen: set[str]) -> list[Segment]:
        rule, last = self._run.optimizer.decays, block_count(self._run.model) - 1
        tables = full_names(self.blocks, lambda block: block.tables)
        inner = (
            0 < number < last and name not in tables
            for number, name, _ in placed_parameters(self.numbers, self.blocks)
        )
        return [
            Segment(t.start, t.stop, decays=False, inner=False)
            if t.name in frozen
            else Segment(t.start, t.stop, decays(rule, len(t.shape), inner=within), within)
            for t, within in zip(self.layout.parameters, inner, strict=True)
        ]

    @property
    def state(self) -> tuple[Tensor, ...]:
        """The buffers that a snapshot holds and the digest covers, in their order.

        With a delay, of the version of which this half has the weights.
        """
        return tuple(self.buffers.values())

    def of_step(self, step: int) -> "FlatParameters":
        """The half that computes a step, and has its sum."""
        return half_of(self.halves, step)

    def newest(self, version: int) -> "FlatParameters":
        """The half that has the weights of a version, where no later one is here."""
        return self.of_step(version + 1)

    @property
    def length(self) -> int:
        """The number of elements, N."""
        return self.params_N.numel()

    def draw(self) -> None:
        """Make version 0: first weights, also as their average; zero moments, an empty sum."""
        if self._rounding is None:
            draw_blocks(self._run, self.numbers, self.blocks)
        else:
            start = 0
            for part_N in first_weights(self._run, self.numbers):
                self.params_N[start : start + len(part_N)].copy_(part_N)  # rounded to the nearest
                start += len(part_N)
        if self.average_N is not None:
            self.average_N.copy_(self.params_N)
        sums = [half.sum_N for half in self.halves]
        for state_N in (self.exp_avg_N, self.exp_avg_sq_N, *sums):
            state_N.zero_()
        if self.former_N is not None:
            self.former_N.copy_(self.params_N)
        for late_N in (self.last_update_N, self.former_sq_N):
            if late_N is not None:
                late_N.zero_()
        for factor, drawn in first_factors(self._run, self.layout):
            self.exp_avg_N[factor.start : factor.stop].copy_(drawn.view(-1))

    @property
    def base_roots(self) -> tuple[bytes, ...]:
        """The roots of the blocks' frozen weights, if the run has some."""
        return () if self.base is None else self.base.roots

    def digest(self) -> bytes:
        """The digest of weights, moments and average, and of what is frozen."""
        return digest_of(self.state, self.spans(), base_leaves(self.base_roots))

    def spans(self, piece_values: int = PIECE_VALUES) -> list[Span]:
        """The spans of the state's pieces."""
        return piece_spans(self.length, piece_values, self.layout.row_blocks())

    def weights(self, start: int, stop: int) -> Tensor:
        """The weights start..stop-1 in the dtype of the sum."""
        return self.params_N[start:stop].to(self.sum_N.dtype)

    def before_update(self, start: int, stop: int) -> Tensor:
        """As `weights`, of the version that an update begins with, to be changed and kept."""
        if self.former_N is not None:
            self.params_N[start:stop].copy_(self.former_N[start:stop])
        return self.weights(start, stop)

    def squares_before_update(self, start: int, stop: int) -> Tensor:
        """The second moments that an update begins with, to be changed in place."""
        square_C = self.exp_avg_sq_N[start:stop]
        if self.former_sq_N is not None:
            square_C.copy_(self.former_sq_N[start:stop])
        return square_C

    def carry_over(self, start: int, stop: int) -> None:
        """Make the next version without a change."""
        self.before_update(start, stop)
        self.squares_before_update(start, stop)

    def keep(self, weights_C: Tensor, start: int, number: int) -> None:
        """Keep the weights from `start` on, as update `number` has made them."""
        if self.last_update_N is not None:
            self._correct(weights_C, start, number)
        if self._rounding is not None:
            self._rounding.store(weights_C, start, number)

    def _correct(self, weights_C: Tensor, start: int, number: int) -> None:
        """Add what the last update lacked; the first was computed with the newest weights."""
        assert self.former_N is not None, "a correction comes with a delay"
        assert self.last_update_N is not None, "a correction comes with a delay"
        place = slice(start, start + len(weights_C))
        update_C = weights_C - self.former_N[place].to(weights_C.dtype)
        last_C = self.last_update_N[place]
        if number > 1:
            weights_C.add_((update_C - last_C).mul_(CORRECTION))
        last_C.copy_(update_C)


def half_of(halves: Sequence[T], step: int) -> T:
    """What computes a step, or belongs to that; with a delay even and odd steps have one each."""
    return halves[step % len(halves)]


def frozen_names(blocks: Sequence[nn.Module]) -> set[str]:
    """The full names of parameters that no gradient trains."""
    return full_names(blocks, lambda block: block.frozen)


def full_names(
    blocks: Sequence[nn.Module], named: Callable[[WholeBlock], frozenset[str]]
) -> set[str]:
    """The full names of parameters that blocks name."""
    whole = (block for block in blocks if isinstance(block, WholeBlock))
    return {block.full_name(name) for block in whole for name in named(block)}


def decays(rule: str, dimensions: int, *, inner: bool) -> bool:
    """Return whether a parameter decays; `inner`: of neither the first nor the last block."""
    matrix = dimensions >= 2  # noqa: PLR2004
    return rule == "all" or (matrix and (rule == "matrices" or inner))


def block_layout(run: RunConfig, numbers: range, blocks: Sequence[nn.Module]) -> FlatLayout:
    """Return how the parameters of these blocks lie flat."""
    placed = [(n, name, tuple(p.shape)) for n, name, p in placed_parameters(numbers, blocks)]
    shapes: list[tuple[str, Shape]] = [(name, shape) for _, name, shape in placed]
    names = dict(zip(numbers, averagings_of(run, numbers), strict=True))
    tied = {ends[1] for block in blocks if (ends := tied_in(block)) is not None}
    for number, name, shape in placed:
        # two stages average a tied tensor in a group of their own: it stays as it is in every cut
        low = names[number] == POWERSGD and name not in tied
        if low and (factor := factor_shape(shape, run.codecs.averaging_rank)) is not None:
            shapes.append((FACTOR + name, factor))
    return flat_layout(run.state_dtypes, shapes, tuple(run.state))


def first_weights(run: RunConfig, numbers: range) -> Iterator[Tensor]:
    """The weights of version 0 in the model's dtype, on the CPU, block by block, each once."""
    cpu = torch.device("cpu")
    blocks = bare_blocks(run, numbers, cpu)
    apart = shared_name(blocks)  # None also where both ends of a tied model are here
    for number in numbers:
        block, only = blocks.pop(0), range(number, number + 1)
        part = block_layout(run, only, [block])
        params_N = zero_buffer(part, run.model.dtype, cpu)
        bind([block], part, params_N)
        draw_blocks(run, only, [block])
        params_N = params_N[: part.factors_start]
        tied = shared_name([block])
        if tied is None or apart is not None or number == numbers[0]:
            yield params_N
        else:
            yield _without(tied, params_N, part)


def first_factors(run: RunConfig, layout: FlatLayout) -> Iterator[tuple[FlatTensor, Tensor]]:
    """The warm factors of version 0, each with its place in the first moments; on the CPU."""
    for name, factor in layout.factors.items():
        yield factor, drawn_directions(run.seed, name, factor.shape, DTYPES[run.model.dtype])


def _without(name: str, flat_N: Tensor, layout: FlatLayout) -> Tensor:
    """A flat buffer without one tensor and the gap behind it: another block has it."""
    borders = [tensor.start for tensor in layout.parameters]
    spans = zip(layout.parameters, pairwise([*borders, layout.factors_start]), strict=True)
    kept = (flat_N[a:b] for tensor, (a, b) in spans if tensor.name != name)
    return torch.cat([flat_N[:0], *kept])


def zero_buffer(layout: FlatLayout, dtype: str, device: torch.device) -> Tensor:
    """A flat buffer of zeros."""
    return torch.zeros(layout.length, dtype=DTYPES[dtype], device=device)


def bind(blocks: Sequence[nn.Module], layout: FlatLayout, params_N: Tensor) -> list[nn.Parameter]:
    """Put views of a flat buffer where blocks have what trains; returns these, in order."""
    unique = {id(p): p for block in blocks for p in block.parameters() if p.requires_grad}
    parameters = list(unique.values())
    views = {
        parameter: nn.Parameter(params_N[t.start : t.stop].view(parameter.shape))
        for parameter, t in zip(parameters, layout.parameters, strict=True)
    }
    for block in blocks:
        for name, parameter in list(block.named_parameters(remove_duplicate=False)):
            owner, _, last = name.rpartition(".")
            if parameter in views:
                setattr(block.get_submodule(owner), last, views[parameter])
    return list(views.values())


def squared_norm(x_N: Tensor) -> float:
    """The sum of squares, in float64 and in one fixed order."""
    squares = []
    there = place_for(x_N.device, torch.float64)
    wide_N = torch.empty(min(len(x_N), NORM_CHUNK), dtype=torch.float64, device=there)
    for part_N in torch.split(x_N, NORM_CHUNK):
        part64_N = wide_N[: len(part_N)].copy_(part_N)
        squares.append(torch.dot(part64_N, part64_N))
    return sum_of_squares(torch.stack(squares).tolist())  # waits once


def sum_of_squares(squares: Sequence[float]) -> float:
    """The exact sum, rounded once; infinite if it is no float, where `math.fsum` would raise."""
    try:
        return math.fsum(squares)
    except OverflowError:
        return math.inf


def state_of(snapshot: memoryview, run: RunConfig) -> tuple[Tensor, ...]:
    """Weights, first and second moments of a snapshot, perhaps an average; without a copy."""
    dtypes = [DTYPES[dtype] for dtype in run.state_dtypes]
    whole = torch.frombuffer(snapshot, dtype=torch.uint8)
    length = len(whole) // sum(dtype.itemsize for dtype in dtypes)
    parts = torch.split(whole, [length * dtype.itemsize for dtype in dtypes])
    return tuple(part.view(dtype) for part, dtype in zip(parts, dtypes, strict=True))
