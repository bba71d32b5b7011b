"""The graphs that a stage keeps between forward and backward, and what it does without memory.

A graph is made whole, or block by block. The second is torch's checkpoint round each block: of a
block only what it was given is held, and when the backward comes to it, it is computed again up to
the last tensor that the backward needs. The order in which gradients are added is that of the whole
graph. So the bits are the same, also of weights that several blocks share and of tensors that pass
through a block. What a block draws is seeded inside what is done again (`models/dropout.py`).

What is kept of a microbatch is the first of these that there is room for: its whole graph, what
passes between its blocks, its input. The second costs a little less than a forward more, and the
third a whole one, or two where the graph made from the input is made block by block as well.

A graph's size is found by making it. One that passes the limit is broken off and made block by
block; from then on that shape of tokens is. When the device has no memory left, all graphs are
given up and fewer are kept from then on. If that is not enough, graphs are made block by block from
then on; and only then it is an error.

Errors:  NotServing when nothing is kept for a key; when there is no memory torch's own, or Refused
         where a setting would help.
Source:  Chen et al., "Training Deep Nets with Sublinear Memory Cost" (2016), as
         torch.utils.checkpoint without reentrance has it.
"""
# ruff: noqa: N815  shapes are written at the end of names

import functools
import logging
import math
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import TypeVar, cast

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from p2pswarm.base.errors import NotServing, Refused
from p2pswarm.models.base import Bundle, Value
from p2pswarm.models.compute.base import Key
from p2pswarm.models.compute.torch_device import first_line, out_of_memory
from p2pswarm.models.dropout import Around, RunBlock, at_once

MIB = 1 << 20
BLOCK_REMEDY = (
    'out of memory: set serve.recompute = "block" here, or lower run.batch.rows, or raise '
    "run.stages ({})"
)

T = TypeVar("T")
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class GraphLimits:
    """What graphs may take of a device."""

    keep_bytes: int
    """All that are kept between forward and backward."""
    room_bytes: float = math.inf
    """One that is made for a backward at once."""
    recompute: str = "auto"
    """`serve.recompute`: auto, stage or block."""


class GraphKind(Enum):
    """How a graph is made."""

    WHOLE = "whole"
    BLOCKS = "block by block"


class GraphBudget:
    """The limits, what is kept, and the sizes that were measured, by the shape of tokens."""

    def __init__(self, limits: GraphLimits) -> None:
        self.keep_bytes = limits.keep_bytes
        self.room_bytes = limits.room_bytes
        self.kept_bytes = 0
        self._recompute = limits.recompute
        self._short = False
        """True if there was no memory for a whole graph."""
        self._sizes: dict[tuple[Hashable, GraphKind], int] = {}
        self._above: dict[Hashable, float] = {}
        """Whole graphs that were broken off: they take more than that."""

    @property
    def always_by_block(self) -> bool:
        """True if no graph was ever whole: a larger one leaves memory in pieces behind."""
        return self._recompute == "block"

    def kind(self, shape: Hashable, limit_bytes: float) -> GraphKind:
        """Return how to make a graph that may take so much, `keep_bytes` or `room_bytes`."""
        if self._recompute == "stage":
            return GraphKind.WHOLE
        if self.always_by_block or self._short:
            return GraphKind.BLOCKS
        size_bytes = self.size_bytes(shape, GraphKind.WHOLE)
        if size_bytes is None:
            fits = self._above.get(shape, -1) < limit_bytes  # or it is not known yet
        else:
            fits = size_bytes <= limit_bytes
        return GraphKind.WHOLE if fits else GraphKind.BLOCKS

    def most_bytes(self, kind: GraphKind, limit_bytes: float) -> float:
        """The size at which a graph is broken off: a whole one only, and by `auto` only."""
        breaks_off = kind is GraphKind.WHOLE and self._recompute == "auto"
        return limit_bytes if breaks_off else math.inf

    def size_bytes(self, shape: Hashable, kind: GraphKind) -> int | None:
        """The size of a graph; None if it has not been measured."""
        return self._sizes.get((shape, kind))

    def measured(self, shape: Hashable, kind: GraphKind, size_bytes: int) -> None:
        """A graph was made, and is so large."""
        self._sizes[shape, kind] = size_bytes

    def broken_off(self, shape: Hashable, most_bytes: float) -> None:
        """A whole graph takes more than `most_bytes`."""
        self._above[shape] = most_bytes

    def fits(self, size_bytes: int) -> bool:
        """Return whether there is room to keep one more of that size."""
        return self.kept_bytes + size_bytes <= self.keep_bytes

    def given_up(self, held_bytes: int) -> None:
        """There was no memory beside graphs of `held_bytes`, and now none is kept: keep half."""
        self.keep_bytes = min(self.keep_bytes, held_bytes // 2)
        self.kept_bytes = 0

    def make_smaller(self) -> bool:
        """There was no memory for a graph; False if it cannot be made block by block, or was."""
        if self._short or self._recompute != "auto":
            return False
        self._short = True
        return True


@dataclass(slots=True)
class Kept:
    """One microbatch between its forward and its backward."""

    tokens_BS: Tensor
    targets: int
    """How many of the tokens are targets, counted on the host."""
    given: Bundle
    """Its differentiable tensors are leaves of the graph."""
    made: list[Tensor] | None = None
    """The ends of the graph, if there was memory for it."""
    graph_bytes: int = 0

    @property
    def shape(self) -> Hashable:
        """All microbatches of one shape have graphs of one size."""
        return self.tokens_BS.shape


class KeptGraphs:
    """The microbatches whose backwards are due."""

    def __init__(
        self, limits: GraphLimits, device: torch.device, blocks: int, weights: frozenset[int]
    ) -> None:
        """`blocks`: how many the stage has; `weights`: where they lie, no graph holds them."""
        self.budget = GraphBudget(limits)
        self._device = device
        self._last = blocks - 1
        self._weights = weights
        self._kept: dict[Key, Kept] = {}

    def forward(self, kept: Kept, run: Callable[[Around], T]) -> tuple[T, bool]:
        """Return what `run` gives, and whether it comes with a graph that is charged to `kept`."""
        budget, shape = self.budget, kept.shape
        kind = budget.kind(shape, budget.keep_bytes)
        size_bytes = budget.size_bytes(shape, kind)
        if size_bytes is None:
            most_bytes = budget.most_bytes(kind, budget.keep_bytes)
            try:
                made, size_bytes = self._measured(lambda: run(_around(kind)), most_bytes)
            except _TooLargeError:
                self._broken_off(shape, most_bytes)
            else:
                budget.measured(shape, kind, size_bytes)
                return made, self._charged(kept, size_bytes)
            return self.forward(kept, run)  # the other kind now; the graph is freed
        fits = budget.fits(size_bytes)
        with torch.set_grad_enabled(fits):
            return run(_around(kind)), fits and self._charged(kept, size_bytes)

    def at_once(self, shape: Hashable, run: Callable[[Around], T]) -> T:
        """Return what `run` gives, with a graph for the backward that follows."""
        budget = self.budget
        kind = budget.kind(shape, budget.room_bytes)
        around = _around(kind, self._last)
        most_bytes = budget.most_bytes(kind, budget.room_bytes)
        if budget.size_bytes(shape, kind) is not None or most_bytes == math.inf:
            return run(around)
        try:
            made, size_bytes = self._measured(lambda: run(around), most_bytes)
        except _TooLargeError:
            self._broken_off(shape, most_bytes)
        else:
            budget.measured(shape, kind, size_bytes)
            return made
        return self.at_once(shape, run)

    def keep(self, key: Key, kept: Kept) -> None:
        """Keep a microbatch until its backward."""
        self._kept[key] = kept

    def take(self, key: Key) -> Kept:
        """Return what is kept for a key; it is charged no longer."""
        kept = self._kept.pop(key, None)
        if kept is None:
            raise NotServing(f"nothing is kept for microbatch {key[0]}, attempt {key[1]}")
        self.budget.kept_bytes -= kept.graph_bytes
        return kept

    def drop(self, keys: Iterable[Key] | None) -> None:
        """Forget these, or all."""
        for key in list(self._kept) if keys is None else keys:
            if key in self._kept:
                self.take(key)

    def with_room(self, work: Callable[[], T], of: Kept | None = None) -> T:
        """Do some work, `of` a microbatch; again while it finds no memory and more to give up."""
        while True:
            try:
                return work()
            except (RuntimeError, MemoryError) as error:
                if not out_of_memory(error):
                    raise
                if not self._make_room(of):
                    if self.budget.always_by_block:
                        raise
                    raise Refused(BLOCK_REMEDY.format(first_line(error))) from error
            if self._device.type == "cuda":  # outside of `except`, which holds what was made
                torch.cuda.empty_cache()

    def _make_room(self, of: Kept | None) -> bool:
        """Give up graphs, or else go block by block; False if there is nothing more to do."""
        with_graphs = [kept for kept in (*self._kept.values(), of) if kept and kept.made]
        if with_graphs:
            self._give_up(with_graphs)
            return True
        if not self.budget.make_smaller():
            return False
        _log.warning("out of memory without graphs: block by block from now on")
        return True

    def _give_up(self, with_graphs: list[Kept]) -> None:
        """Free the graphs, and keep half as many from now on."""
        held = sum(kept.graph_bytes for kept in with_graphs)
        self.budget.given_up(held)
        _log.warning(
            "out of memory with graphs of %d MiB: %d MiB at most from now on",
            *(held // MIB, self.budget.keep_bytes // MIB),
        )
        for kept in with_graphs:
            kept.made, kept.graph_bytes = None, 0

    def _broken_off(self, shape: Hashable, most_bytes: float) -> None:
        self.budget.broken_off(shape, most_bytes)
        _log.info("a graph takes more than %d MiB: block by block", most_bytes // MIB)

    def _charged(self, kept: Kept, size_bytes: int) -> bool:
        """Charge a graph if there is room for it."""
        if not self.budget.fits(size_bytes):
            return False
        self.budget.kept_bytes += size_bytes
        kept.graph_bytes = size_bytes
        return True

    def _measured(self, run: Callable[[], T], most_bytes: float) -> tuple[T, int]:
        """Run, and measure what the graph holds, weights not counted; break off past a limit."""
        storages: dict[int, int] = {}
        total = 0

        def note(tensor: Tensor) -> Tensor:
            nonlocal total
            storage = tensor.untyped_storage()
            place = storage.data_ptr()
            if place not in self._weights and place not in storages:
                storages[place] = storage.nbytes()
                total += storages[place]
                if total > most_bytes:
                    raise _TooLargeError
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            made = run()
        return made, total


class _TooLargeError(Exception):
    """A graph holds more than it may."""


def _around(kind: GraphKind, at_once_from: float = math.inf) -> Around:
    """How blocks are run for such a graph; those from `at_once_from` on are needed at once."""
    if kind is GraphKind.WHOLE:
        return at_once

    def around(offset: int, run: RunBlock, value: Value) -> Value:
        if offset >= at_once_from:
            return run(value)
        return block_made_again(run, value)

    return around


def block_made_again(run: RunBlock, value: Value) -> Value:
    """Run a block so that its graph holds what it was given, and is made in the backward."""
    if isinstance(value, Tensor):
        return cast("Value", _checkpoint(run, value))
    names = tuple(value)
    return cast(
        "Value",
        _checkpoint(lambda *tensors: run(dict(zip(names, tensors, strict=True))), *value.values()),
    )


# a block seeds what it draws by itself, so torch need not keep its generators' states
_checkpoint = functools.partial(checkpoint, use_reentrant=False, preserve_rng_state=False)
