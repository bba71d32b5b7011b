"""One rank's part of a stage: its rows of each microbatch, its shards of weights and sums.

Shapes:  B rows of a microbatch, b of them here; N elements in the stage.
"""
# ruff: noqa: N803, N806, N815  shapes are written at the end of names

import functools
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from p2pswarm.models.base import LONE_KEY, Bundle, Value, bundle_of
from p2pswarm.models.blocks import bare_blocks, stage_blocks
from p2pswarm.models.boundary import boundaries
from p2pswarm.models.compute.autograd_graphs import block_made_again
from p2pswarm.models.compute.base import Key
from p2pswarm.models.compute.bundle_spec import boundary_above
from p2pswarm.models.compute.flat_parameters import block_layout
from p2pswarm.server.devices.microbatch_part import (
    MicrobatchPart,
    RowPart,
    TokenPart,
    with_positions,
)
from p2pswarm.server.devices.rank_base import RankBase
from p2pswarm.server.devices.row_split import Rows, rows_of
from p2pswarm.server.devices.stage_shards import RowShards, StageBlocks, StageShards, TensorShards
from p2pswarm.server.devices.token_exchange import DeviceTokens
from p2pswarm.settings.config import RunConfig
from p2pswarm.settings.node_config import CONTEXT, ROWS, TENSOR


@dataclass(slots=True)
class _KeptRows:
    """A rank's part of one microbatch, between its forward and its backward."""

    tokens_bS: Tensor
    given: Bundle
    made: list[Tensor] | None


@dataclass(frozen=True, slots=True)
class RankOptions:
    """The options of all ranks."""

    by_block: bool = False
    """Make one block's graph at a time (`models/compute/autograd_graphs.py`)."""
    parallel: str = ROWS
    """`serve.parallel`."""


class RankStage:
    """The stage as one rank has it.

    Its node calls the methods by their names (`rank.py`). `stage_shards.py` has the parts of a
    rank.
    """

    def __init__(
        self,
        run: RunConfig,
        stage: int,
        rank: tuple[int, int],
        device: torch.device,
        shared: Mapping[str, Tensor],
        options: RankOptions,
        base: RankBase | None = None,
    ) -> None:
        """`rank`: which of how many. `shared`: what all processes of the node map.

        `base`: what is frozen, if another part of this rank has it.
        """
        self._shared = shared
        self._device = device
        self._first = rank[0] == 0
        self._of_step = run.share_of_token
        self._below, self._above = boundary_above(run, stage - 1), boundary_above(run, stage)
        rows = rows_of(*rank, run.batch.rows)
        all_rows = Rows(0, run.batch.rows, run.batch.rows)
        self._part: MicrobatchPart = RowPart(
            run, stage, all_rows if options.parallel == TENSOR else rows
        )
        numbers = stage_blocks(run, stage)
        if options.parallel == CONTEXT:
            group = DeviceTokens()
            self._part = TokenPart(run, stage, rank, group)
            run = with_positions(run)
        blocks = bare_blocks(run, numbers, device)
        for module in (each for block in blocks for each in block.modules()):
            if options.parallel == CONTEXT and hasattr(module, "token_group"):
                setattr(module, "token_group", group)  # noqa: B010  torch types attributes
        if base is not None:
            base.bind(blocks)
        elif run.has_base:
            tensors_of = rank if options.parallel == TENSOR else None
            base = RankBase(run, numbers, blocks, device, shared, tensors_of)
        self.base = base
        layout = block_layout(run, numbers, blocks)
        if options.by_block:
            for block in blocks:  # inside of what gathers its weights, which happens once
                block.forward = functools.partial(block_made_again, block.forward)
        given = boundaries(run)[numbers.start : numbers.stop]
        self._model = StageBlocks(blocks, given, bf16=run.precision == "bf16", kind=device.type)
        self._shards: StageShards
        if options.parallel == TENSOR:
            self._shards = TensorShards(run, rank, self._model, layout, device)
        else:
            share = 1.0 if rows.counted or options.parallel == CONTEXT else 0.0
            self._shards = RowShards(run, stage, rank, self._model, layout, share)
        self._parameters = self._shards.parameters
        self._sums = [torch.zeros_like(self._shards.local(p)) for p in self._parameters]
        self._kept: dict[Key, _KeptRows] = {}

    @torch.no_grad()
    def take_weights(self) -> None:
        """Copy this rank's shards of the shared weights."""
        for number, parameter in enumerate(self._parameters):
            local = self._shards.local(parameter)
            for whole, part in self._shards.pairs(number, self._shared["params"], local):
                part.copy_(whole)

    def take_base(self) -> None:
        """Take what is frozen, as the node has it now."""
        if self.base is not None:
            self.base.take()

    @property
    def weight_bytes(self) -> int:
        """Of what trains on this device, besides what is being gathered."""
        return sum(self._shards.local(p).nbytes for p in self._parameters)

    def empty_sums(self) -> None:
        """Nothing is counted."""
        for total in self._sums:
            total.zero_()

    def give_sums(self) -> None:
        """Write this rank's shards of the gradient sum to the shared memory."""
        for number, total in enumerate(self._sums):
            if self._shards.tells(number):
                for whole, part in self._shards.pairs(number, self._shared["sum"], total):
                    whole.copy_(part)

    def forward(self, key: Key, *, keep: bool) -> int:
        """Compute the rows that lie there; returns the bytes of the graph if it is kept."""
        kept = _KeptRows(self._tokens(), self._given(), None)
        storages: dict[int, int] = {}

        def note(tensor: Tensor) -> Tensor:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in self._gathered():  # they are gathered again
                storages[storage.data_ptr()] = storage.nbytes()
            return tensor

        hooks = torch.autograd.graph.saved_tensors_hooks(note, lambda x: x)
        with torch.set_grad_enabled(keep), hooks if keep else nullcontext():
            made = self._gives(kept)
        if keep:
            kept.made = self._ends(made)
        self._kept[key] = kept
        self._put("made", made, self._shards.split_above)
        return sum(storages.values())

    def backward(self, key: Key) -> list[float]:
        """The gradient of what was given, and of the weights, which waits."""
        kept = self._kept.pop(key)
        assert self._above is not None, "the last stage has a loss"
        self._part.begin(kept.tokens_bS)
        gradients = [self._taken("gradient", name) for name in self._above.differentiable]
        if not self._part.counts:
            gradients = [torch.zeros_like(x) for x in gradients]
        ends = kept.made if kept.made is not None else self._ends(self._gives(kept))
        return self._differentiate(ends, gradients, kept.given)

    def last(self, *, differentiate: bool) -> list[float]:
        """The nats of this rank's targets; and as `backward`, if asked for."""
        tokens_bS, given = self._tokens(), self._given()
        with torch.set_grad_enabled(differentiate):
            nats = self._nats(tokens_bS, given)
        told = nats.item() * self._shards.loss_share
        if not differentiate:
            return [told]
        gradient = torch.full_like(nats, self._shards.gradient_share * self._of_step)
        return [told, *self._differentiate([nats], [gradient], given)]

    @torch.no_grad()
    def once(self) -> list[float]:
        """The bundle, or the nats of its targets in the last stage; nothing is kept."""
        tokens_bS, given = self._tokens(), self._given()
        if self._above is None:
            return [self._nats(tokens_bS, given).item() * self._shards.loss_share]
        self._put("made", self._gives(_KeptRows(tokens_bS, given, None)), self._shards.split_above)
        return []

    @torch.no_grad()
    def settle(self, *, add: bool) -> None:
        """Add the gradient that waits to the sum, or let it go."""
        for parameter, total in zip(self._parameters, self._sums, strict=True):
            if add and parameter.grad is not None:
                total.add_(self._shards.local(parameter.grad))
            parameter.grad = None

    def forget_graphs(self, keys: Iterable[Key]) -> None:
        """Free graphs, and keep what they can be made of again."""
        for key in keys:
            self._kept[key].made = None

    def forget(self, keys: Iterable[Key]) -> None:
        """Keep nothing for these."""
        for key in keys:
            self._kept.pop(key, None)

    def _differentiate(
        self, ends: list[Tensor], gradients: list[Tensor], given: Bundle
    ) -> list[float]:
        """Run the backward; the sums of squares of both gradients."""
        if ends:  # or nothing below the cut trains
            torch.autograd.backward(ends, gradients)
        self._shards.complete()
        returned = {
            name: torch.zeros_like(given[name]) if (x := given[name].grad) is None else x
            for name in (self._below.differentiable if self._below else ())
        }
        for name in returned:
            given[name].grad = None
        self._put("returned", returned, self._shards.split_below)
        own = [
            self._shards.local(p.grad)
            for number, p in enumerate(self._parameters)
            if p.grad is not None and self._shards.tells(number)
        ]
        told = self._first or bool(self._shards.split_below)  # or all would tell of one gradient
        return [_squares(returned.values()) if told else 0.0, _squares(own)]

    def _nats(self, tokens_bS: Tensor, given: Bundle) -> Tensor:
        made = self._run(tokens_bS, given)
        return self._shards.nats(bundle_of(made)[LONE_KEY], self._part.labels(tokens_bS))

    def _gives(self, kept: _KeptRows) -> Bundle:
        assert self._above is not None, "the last stage has a loss"
        return self._part.bundle(self._run(kept.tokens_bS, kept.given))

    def _run(self, tokens_bS: Tensor, given: Bundle) -> Value:
        value = self._part.value(given, tokens_bS)
        made = cast("Value", self._model(value))
        self._shards.forget()
        return made

    def _ends(self, made: Bundle) -> list[Tensor]:
        assert self._above is not None, "the last stage has a loss"
        return [made[name] for name in self._above.differentiable]

    def _tokens(self) -> Tensor:
        """The tokens that lie there, of the microbatch that begins."""
        tokens = self._part.tokens(self._shared["tokens"]).to(self._device, copy=True)
        self._part.begin(tokens)
        return tokens

    def _given(self) -> Bundle:
        """The rows of the bundle from below, as leaves of a graph."""
        if self._below is None:
            return {}
        given = {each.key: self._taken("given", each.key) for each in self._below.tensors}
        for name in self._below.differentiable:
            given[name].requires_grad_()
        return given

    def _taken(self, kind: str, name: str) -> Tensor:
        """This rank's part of a shared tensor, on the device."""
        whole = self._shared[f"{kind}.{name}"]
        split = self._shards.split_above if kind == "gradient" else self._shards.split_below
        part = self._part.take(whole) if name in split else whole
        return part.to(self._device, copy=True)

    def _put(self, kind: str, bundle: Bundle, split: frozenset[str]) -> None:
        """Write this rank's part of a bundle; what belongs to no row is written by the first."""
        for name, x in bundle.items():
            whole = self._shared[f"{kind}.{name}"]
            if name in split:
                self._part.put(whole, x.detach())
            elif self._first:
                whole.copy_(x.detach())

    def _gathered(self) -> set[int]:
        """The places of weights that are whole at the moment: gathered, or frozen."""
        return {
            p.untyped_storage().data_ptr()
            for p in self._model.parameters()
            if not isinstance(p, DTensor)
        }


def _squares(tensors: Iterable[Tensor]) -> float:
    """The sum of squares; not finite if any of them is not."""
    found = [x.reshape(-1) for x in tensors if x.numel()]
    if not found:
        return 0.0
    wide = torch.promote_types(found[0].dtype, torch.float32)
    return float(torch.stack([torch.dot(x, x).to(wide) for x in found]).sum().item())
