"""Attention of rows whose documents do not see each other: one after another, each in itself.

A document is computed by torch's causal kernel, which holds nothing of T x T. Documents of some
words that lie side by side are one band (`band_attention.py`), and so is a row whose attention has
a window, a soft cap or sinks. What is done for a row follows from the row alone: not from those
beside it, and not from what was computed before.

Shapes:  B rows, H heads of queries, G of keys, T tokens a row, K features of a key, V of a value.
Errors:  Unusable for what is not computed by document.
"""
# ruff: noqa: D102, N803, N806, N815  `TokenGroup` documents methods; shapes end the names

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812  torch's own name for it
from torch.utils.weak import WeakTensorKeyDictionary

from p2pswarm.base.errors import Unusable
from p2pswarm.models.attention.band_attention import Band, band_attention

SHORT = 64  # tokens: a kernel's call costs as much as attention of so many


@dataclass(frozen=True, slots=True)
class AttentionRule:
    """What an attention does besides keeping to the past."""

    scale: float | None = None
    """Of scores; None: the root of the features, inverse."""
    window: int | None = None
    """A token sees so many, itself and those before it."""
    chunk: int | None = None
    """A document is cut into so many tokens each, which do not see each other."""
    softcap: float | None = None
    sinks_H: Tensor | None = None
    dropout: float = 0.0
    mask_BHTT: Tensor | None = None
    """Made by the model itself, of which each document takes its part; none of the others then."""

    def of_kernel(self, longest: int) -> bool:
        """Return whether a causal kernel computes documents of up to so many tokens."""
        local = min(self.window or longest, self.chunk or longest)
        return local >= longest and self.softcap is None and self.sinks_H is None


class TokenGroup(Protocol):
    """The devices that share a row's tokens, as a block's attention asks them."""

    def attend(
        self,
        q_BHTK: Tensor,
        k_BGTK: Tensor,
        v_BGTV: Tensor,
        position_BT: Tensor,
        rule: AttentionRule,
    ) -> Tensor:
        """What each token here reads of its document; (B, H, T, V)."""
        ...


class WholeRows:
    """Implements `TokenGroup` where this device has all tokens of its rows."""

    def attend(
        self,
        q_BHTK: Tensor,
        k_BGTK: Tensor,
        v_BGTV: Tensor,
        position_BT: Tensor,
        rule: AttentionRule,
    ) -> Tensor:
        split = (torch.split(x, 1) for x in in_autocast(q_BHTK, k_BGTK, v_BGTV))
        made = []
        for number, (lengths, q, k, v) in enumerate(
            zip(lengths_of(position_BT), *split, strict=True)
        ):
            if rule.mask_BHTT is None:
                made.append(attend_row(lengths, q, k, v, rule))
            else:
                mask_BHTT = rule.mask_BHTT.expand(len(q_BHTK), -1, -1, -1)
                made.append(_masked_row(lengths, q, k, v, rule, mask_BHTT[number : number + 1]))
        return _joined(made, 0)


WHOLE_ROWS = WholeRows()
_lengths: WeakTensorKeyDictionary = WeakTensorKeyDictionary()
"""Of positions that were seen: every layer asks, and a GPU is waited for once."""


def lengths_of(position_BT: Tensor) -> list[list[int]]:
    """The lengths of the documents of each row; one begins where a row does."""
    found: list[list[int]] | None = _lengths.get(position_BT)  # type: ignore[no-untyped-call]
    if found is None:
        rows, tokens = position_BT.shape
        if position_BT.is_meta:  # it has no numbers, and any documents give the same shape
            return [[tokens]] * rows
        begins = [row.nonzero().flatten().tolist() for row in (position_BT == 0).cpu()]
        found = [[b - a for a, b in pairwise(sorted({0, *row, tokens}))] for row in begins]
        _lengths[position_BT] = found
    return found


def in_autocast(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Tensors in the dtype that torch's autocast has attention computed in."""
    kind = tensors[0].device.type
    if not (torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)):
        return tensors
    return tuple(x.to(torch.get_autocast_dtype(kind)) for x in tensors)


def _joined(parts: list[Tensor], dim: int) -> Tensor:
    """The parts one after another; a copy only where there are several."""
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim)


def segments_of(lengths: Sequence[int], rule: AttentionRule) -> list[list[int]]:
    """Documents that are computed together, by their lengths: short ones that lie side by side.

    All of a row that no kernel computes.
    """
    if not rule.of_kernel(max(lengths)):
        return [list(lengths)]
    segments: list[list[int]] = []
    for length in lengths:
        if segments and length < SHORT and segments[-1][-1] < SHORT and not rule.dropout:
            segments[-1].append(length)
        else:
            segments.append([length])
    return segments


def lows_of(lengths: Sequence[int], rule: AttentionRule) -> Tensor:
    """The first token that each token of documents sees, which lie one after another."""
    length_D = torch.tensor(lengths)
    begin_T = (length_D.cumsum(0) - length_D).repeat_interleave(length_D)
    own_T = torch.arange(len(begin_T))
    low_T = begin_T
    if rule.window is not None:
        low_T = torch.maximum(low_T, own_T - rule.window + 1)
    if rule.chunk is not None:
        low_T = torch.maximum(low_T, own_T - (own_T - begin_T) % rule.chunk)
    return low_T


def scale_of(q_BHTK: Tensor, rule: AttentionRule) -> float:
    """The factor of scores."""
    return 1 / math.sqrt(q_BHTK.shape[-1]) if rule.scale is None else rule.scale


def in_band(
    q_BHTK: Tensor, k_BGSK: Tensor, v_BGSV: Tensor, band: Band, rule: AttentionRule
) -> Tensor:
    """Attention that no kernel of torch has."""
    if rule.dropout:
        raise Unusable(
            "the model draws dropout in an attention with a window, a soft cap or sinks, which "
            "documents apart do not have: set attention_dropout to 0 in its config.json"
        )
    scale = scale_of(q_BHTK, rule)
    return band_attention(q_BHTK, k_BGSK, v_BGSV, band, scale, rule.softcap, rule.sinks_H)


def of_document(q_BHTK: Tensor, k_BGTK: Tensor, v_BGTV: Tensor, rule: AttentionRule) -> Tensor:
    """Causal attention of one document by torch's kernel."""
    scale, values = scale_of(q_BHTK, rule), v_BGTV.shape[-1]
    # kernels take keys and values of one width; what is added is zero and reads nothing
    width = max(q_BHTK.shape[-1], values)
    q, k, v = (F.pad(x, (0, width - x.shape[-1])) for x in (q_BHTK, k_BGTK, v_BGTV))
    grouped = q.shape[1] != k.shape[1]
    made: Tensor = F.scaled_dot_product_attention(
        q, k, v, dropout_p=rule.dropout, is_causal=True, scale=scale, enable_gqa=grouped
    )
    return made[..., :values]


def attend_row(
    lengths: Sequence[int], q_1HTK: Tensor, k_1GTK: Tensor, v_1GTV: Tensor, rule: AttentionRule
) -> Tensor:
    """Attention of one row, whose documents have these lengths."""
    segments, made = segments_of(lengths, rule), []
    sizes = [sum(each) for each in segments]
    parts = (torch.split(x, sizes, dim=2) for x in (q_1HTK, k_1GTK, v_1GTV))
    for segment, q, k, v in zip(segments, *parts, strict=True):
        if len(segment) == 1 and rule.of_kernel(segment[0]):
            made.append(of_document(q, k, v, rule))
        else:
            made.append(in_band(q, k, v, Band(lows_of(segment, rule)), rule))
    return _joined(made, 2)


def _masked_row(
    lengths: list[int],
    q_1HTK: Tensor,
    k_1GTK: Tensor,
    v_1GTV: Tensor,
    rule: AttentionRule,
    mask_1HTT: Tensor,
) -> Tensor:
    if rule.softcap is not None or rule.sinks_H is not None:
        raise Unusable(
            "the model makes a mask of its own beside a soft cap or sinks, which is not known if "
            'documents are apart: leave run.model.documents out, or set it to "joined"'
        )
    made, begin, scale = [], 0, scale_of(q_1HTK, rule)
    parts = (torch.split(x, lengths, dim=2) for x in (q_1HTK, k_1GTK, v_1GTV))
    for q, k, v in zip(*parts, strict=True):
        stop = begin + q.shape[2]
        mask = mask_1HTT[:, :, begin:stop, begin:stop]
        grouped = q.shape[1] != k.shape[1]
        made.append(
            F.scaled_dot_product_attention(
                q, k, v, mask, rule.dropout, scale=scale, enable_gqa=grouped
            )
        )
        begin = stop
    return _joined(made, 2)
