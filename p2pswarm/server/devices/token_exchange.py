"""Attention of tokens that several devices of one host share, by a plan (`token_plan.py`).

A device has some documents whole, and attends within them as it would alone. Of a document that is
split, each device sends the keys and values of its parts to those whose parts come later. In the
backward the gradients of these return, and are summed in float32 at least, in the order of devices.

All devices must ask for the same, in the same order. So queries pass through the exchange as well:
its backward then is run by a device that reads nothing of what it got.

Shapes:  n tokens of this device, w of them of whole documents, which come first, and s of parts; m
         tokens that were received; H heads of queries, G of keys, K features of a key, V of a
         value.
Errors:  Unusable for an attention that is not computed so; those of torch.
"""
# ruff: noqa: D102, N803, N806  `TokenGroup` documents methods; shapes end the names

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable

from p2pswarm.base.errors import Unusable
from p2pswarm.models.attention.band_attention import Band
from p2pswarm.models.attention.document_attention import (
    AttentionRule,
    attend_row,
    in_autocast,
    in_band,
    lows_of,
)
from p2pswarm.server.devices.token_plan import DocumentPiece, TokenPlan

BY_ROWS = 'set serve.parallel to "rows"'


@dataclass(frozen=True, slots=True)
class PieceKeys:
    """A part of a document here, and where the keys that it sees lie."""

    piece: DocumentPiece
    length: int
    """Of the document."""
    place_k: Tensor
    """Of each token of the document up to the end of the piece: among this device's own tokens of
    parts, or behind them among those that were received."""


@dataclass(frozen=True, slots=True)
class DeviceLayout:
    """The tokens of one device."""

    index_n: Tensor
    """Their places among all tokens of the microbatch."""
    whole: tuple[int, ...]
    """The lengths of the documents that it has whole."""
    pieces: tuple[PieceKeys, ...]
    sends: tuple[Tensor, ...]
    """Of its own tokens of parts, those that each device is sent."""
    receives: tuple[int, ...]
    """How many tokens each device sends."""
    exchanges: bool
    """False where no document is split, on whichever device."""


def layout_of_device(plan: TokenPlan, lengths: Sequence[int], rank: int) -> DeviceLayout:
    """Where the tokens of device `rank` lie; documents are numbered as they follow in the rows."""
    begins = [0]
    for length in lengths:
        begins.append(begins[-1] + length)
    own = plan.split[rank]
    ranges = [(begins[d], begins[d + 1]) for d in plan.whole[rank]]
    ranges += [
        (begins[each.document] + each.start, begins[each.document] + each.stop) for each in own
    ]
    index_n = torch.cat([torch.arange(*each) for each in ranges] or [torch.arange(0)])
    sent = [
        [_wanted(plan.split[giver], plan.split[taker]) for taker in range(len(plan.split))]
        for giver in range(len(plan.split))
    ]
    sends = tuple(_places(own, sent[rank][taker]) for taker in range(len(plan.split)))
    received = [sent[giver][rank] for giver in range(len(plan.split))]
    receives = tuple(sum(_size(each) for each in pieces) for pieces in received)
    there = [*own, *(each for pieces in received for each in pieces)]
    pieces = tuple(PieceKeys(each, lengths[each.document], _keys_of(each, there)) for each in own)
    whole = tuple(lengths[document] for document in plan.whole[rank])
    return DeviceLayout(index_n, whole, pieces, sends, receives, plan.exchanges)


def _size(piece: DocumentPiece) -> int:
    return piece.stop - piece.start


def _wanted(given: Sequence[DocumentPiece], taken: Sequence[DocumentPiece]) -> list[DocumentPiece]:
    """The pieces of a device that another one's pieces see; none of its own."""
    if given is taken:
        return []
    ends: dict[int, int] = {}
    for piece in taken:
        ends[piece.document] = max(piece.stop, ends.get(piece.document, 0))
    return [each for each in given if each.start < ends.get(each.document, 0)]


def _places(own: Sequence[DocumentPiece], pieces: Sequence[DocumentPiece]) -> Tensor:
    """The places of some of a device's pieces among its tokens of parts."""
    begin, found = 0, []
    for each in own:
        if each in pieces:
            found.append(torch.arange(begin, begin + _size(each)))
        begin += _size(each)
    return torch.cat(found) if found else torch.arange(0)


def _keys_of(piece: DocumentPiece, there: Sequence[DocumentPiece]) -> Tensor:
    """The places of a document's tokens up to the end of `piece`, in their order."""
    begin, found = 0, []
    for each in there:
        if each.document == piece.document and each.stop <= piece.stop:
            found.append((each.start, begin, _size(each)))
        begin += _size(each)
    return torch.cat([torch.arange(place, place + size) for _, place, size in sorted(found)])


class DeviceTokens:
    """Implements `TokenGroup` for the process of one device."""

    def __init__(self) -> None:
        self.layout: DeviceLayout | None = None
        """Of the microbatch that is computed."""

    def attend(
        self,
        q_BHTK: Tensor,
        k_BGTK: Tensor,
        v_BGTV: Tensor,
        position_BT: Tensor,
        rule: AttentionRule,
    ) -> Tensor:
        del position_BT  # the layout has them
        layout = self.layout
        assert layout is not None, "a microbatch has begun"
        if rule.mask_BHTT is not None:
            raise Unusable(
                f"the model makes a mask of its own, of which a device has no part: {BY_ROWS}"
            )
        if rule.dropout:
            raise Unusable(f"dropout is drawn for a whole row, not for parts of it: {BY_ROWS}")
        q, k, v = in_autocast(q_BHTK, k_BGTK, v_BGTV)
        count, made = sum(layout.whole), []
        if layout.exchanges:
            keys = torch.cat((k, v), dim=3)[0, :, count:].transpose(0, 1)
            q, pool = _exchanged(q, keys, layout)
        if layout.whole:
            own = [x[:, :, :count] for x in (q, k, v)]
            made.append(attend_row(layout.whole, own[0], own[1], own[2], rule))
        for each in layout.pieces:
            size = _size(each.piece)
            there = pool.index_select(0, each.place_k.to(pool.device)).transpose(0, 1).unsqueeze(0)
            read, values = torch.split(there, [k.shape[-1], v.shape[-1]], dim=3)
            low_T = lows_of([each.piece.stop], rule)[each.piece.start :]
            band = Band(low_T, each.piece.start)
            made.append(in_band(q[:, :, count : count + size], read, values, band, rule))
            count += size
        return torch.cat(made, dim=2)


def _exchanged(q: Tensor, keys_sGF: Tensor, layout: DeviceLayout) -> tuple[Tensor, Tensor]:
    """Queries as they are, and keys and values of parts: this device's own, then the received."""
    return cast(
        "tuple[Tensor, Tensor]",
        _KeyExchange.apply(q, keys_sGF, layout),  # type: ignore[no-untyped-call]
    )


class _KeyExchange(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q: Tensor, keys_sGF: Tensor, layout: DeviceLayout
    ) -> tuple[Tensor, Tensor]:
        ctx.layout, ctx.dtype = layout, keys_sGF.dtype
        sends = [each.to(keys_sGF.device) for each in layout.sends]
        sent = torch.cat([keys_sGF.index_select(0, each) for each in sends])
        received = sent.new_empty((sum(layout.receives), *sent.shape[1:]))
        dist.all_to_all_single(received, sent, [*layout.receives], [len(each) for each in sends])
        return q.view_as(q), torch.cat((keys_sGF, received))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        layout: DeviceLayout = ctx.layout
        wide = gradients[1].to(torch.promote_types(ctx.dtype, torch.float32))
        own = len(wide) - sum(layout.receives)
        total, sizes = wide[:own].clone(), [len(each) for each in layout.sends]
        returned = wide.new_empty((sum(sizes), *wide.shape[1:]))
        dist.all_to_all_single(returned, wide[own:].contiguous(), sizes, [*layout.receives])
        for places, part in zip(layout.sends, torch.split(returned, sizes), strict=True):
            total.index_add_(0, places.to(total.device), part)
        return gradients[0], total.to(ctx.dtype), None
