"""Attention in which a query sees the keys of one band: from a first one, which it says, to itself.

A document, a sliding window and a chunk are bands, and so are documents that lie side by side.
Torch's kernels have no such thing without a mask of T x S. Here a block of queries is computed at a
time, and again in the backward, so the graph holds what a kernel's would: queries, keys, values,
the outcome, and a number for each query. Soft caps and sinks go in, which no kernel of torch takes.

The sums are made in float32 at least. Their order follows from the shapes and the band.

Shapes:  B rows, H heads of queries, G of keys, R = H / G of them to one of keys; T queries, S keys;
         b queries and s keys of a block; K features of a key, V of a value.
Source:  Dao et al., "FlashAttention" (arXiv 2205.14135), 3.1: the sum of exponentials is kept.
"""
# ruff: noqa: N803, N806, N815  shapes are written at the end of names

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

SCORES_MAX = 1 << 25  # of a block, 128 MiB in float32: a forward holds some such tensors
QUERIES_MIN, QUERIES_MAX = 16, 256  # of a block: fewer are no work for a matrix product


@dataclass(frozen=True, slots=True)
class Band:
    """The keys that queries see. Query t is key `first + t`; it sees `low_T[t]` to itself."""

    low_T: Tensor
    """On the host; no entry is less than the one before."""
    first: int = 0


@dataclass(frozen=True, slots=True)
class _QueryBlock:
    """Some queries, and the keys that any of them sees."""

    queries: slice
    keys: slice
    hidden_bs: Tensor
    """True where a query does not see a key."""


def band_attention(
    q_BHTK: Tensor,
    k_BGSK: Tensor,
    v_BGSV: Tensor,
    band: Band,
    scale: float,
    softcap: float | None = None,
    sinks_H: Tensor | None = None,
) -> Tensor:
    """What each query reads of the values of its keys; (B, H, T, V).

    `softcap`: scores are bent to less than that. `sinks_H`: a score of each head that takes part in
    the sum of exponentials and has no value.
    """
    return cast(
        "Tensor",
        _BandFunction.apply(q_BHTK, k_BGSK, v_BGSV, sinks_H, band, scale, softcap),  # type: ignore[no-untyped-call]
    )


class _BandFunction(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        q_BHTK: Tensor,
        k_BGSK: Tensor,
        v_BGSV: Tensor,
        sinks_H: Tensor | None,
        band: Band,
        scale: float,
        softcap: float | None,
    ) -> Tensor:
        ctx.band, ctx.scale, ctx.softcap = band, scale, softcap
        made_BHTV = q_BHTK.new_empty((*q_BHTK.shape[:3], v_BGSV.shape[-1]))
        sum_BHT = q_BHTK.new_empty(q_BHTK.shape[:3], dtype=_wide(q_BHTK))
        groups = k_BGSK.shape[1]
        with torch.autocast(q_BHTK.device.type, enabled=False):
            for block in _blocks(q_BHTK, k_BGSK, band):
                scores, _ = _scores(q_BHTK[:, :, block.queries], k_BGSK, block, scale, softcap)
                sums = scores.logsumexp(-1)
                if sinks_H is not None:
                    sums = torch.logaddexp(sums, _by_group(sinks_H, groups).to(sums))
                weights = (scores - sums.unsqueeze(-1)).exp().to(v_BGSV.dtype)
                read = weights.flatten(2, 3) @ v_BGSV[:, :, block.keys]
                made_BHTV[:, :, block.queries] = read.view(*weights.shape[:4], -1).flatten(1, 2)
                sum_BHT[:, :, block.queries] = sums.flatten(1, 2)
        ctx.save_for_backward(q_BHTK, k_BGSK, v_BGSV, sinks_H, made_BHTV, sum_BHT)
        return made_BHTV

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        q_BHTK, k_BGSK, v_BGSV, sinks_H, made_BHTV, sum_BHT = ctx.saved_tensors
        back_BHTV, wide = gradients[0], sum_BHT.dtype
        groups = k_BGSK.shape[1]
        dot_BHT = (back_BHTV.to(wide) * made_BHTV.to(wide)).sum(-1)
        dq_BHTK = torch.empty_like(q_BHTK)
        dk_BGSK = torch.zeros_like(k_BGSK, dtype=wide)
        dv_BGSV = torch.zeros_like(v_BGSV, dtype=wide)
        for block in _blocks(q_BHTK, k_BGSK, ctx.band):
            at, keys = block.queries, block.keys
            scores, slope = _scores(q_BHTK[:, :, at], k_BGSK, block, ctx.scale, ctx.softcap)
            weights = (scores - _grouped(sum_BHT[:, :, at], groups).unsqueeze(-1)).exp()
            back = _grouped(back_BHTV[:, :, at], groups).flatten(2, 3)
            dv_BGSV[:, :, keys] += weights.to(back.dtype).flatten(2, 3).mT @ back
            read = (back @ v_BGSV[:, :, keys].mT).to(wide).view_as(weights)
            ds = weights * (read - _grouped(dot_BHT[:, :, at], groups).unsqueeze(-1))
            ds = ds if slope is None else ds * slope
            ds = (ds * ctx.scale).to(q_BHTK.dtype).flatten(2, 3)
            dq = (ds @ k_BGSK[:, :, keys]).view(*weights.shape[:4], -1)
            dq_BHTK[:, :, at] = dq.flatten(1, 2)
            dk_BGSK[:, :, keys] += ds.mT @ _grouped(q_BHTK[:, :, at], groups).flatten(2, 3)
        dsinks_H = None
        if sinks_H is not None:
            shares = (sinks_H.to(wide).view(1, -1, 1) - sum_BHT).exp()
            dsinks_H = -(shares * dot_BHT).sum((0, 2)).to(sinks_H.dtype)
        found = (dq_BHTK, dk_BGSK.to(k_BGSK.dtype), dv_BGSV.to(v_BGSV.dtype), dsinks_H)
        return (*found, None, None, None)


def _wide(x: Tensor) -> torch.dtype:
    """The dtype of sums."""
    return torch.promote_types(x.dtype, torch.float32)


def _grouped(x: Tensor, groups: int) -> Tensor:
    """(B, H, ...) as (B, G, R, ...): the heads of queries beside their head of keys."""
    return x.reshape(x.shape[0], groups, -1, *x.shape[2:])


def _by_group(sinks_H: Tensor, groups: int) -> Tensor:
    """(G, R, 1)."""
    return sinks_H.view(groups, -1, 1)


def _blocks(q_BHTK: Tensor, k_BGSK: Tensor, band: Band) -> Iterator[_QueryBlock]:
    """All queries, some at a time; of one row, whatever rows lie beside it."""
    heads, queries = q_BHTK.shape[1:3]
    width = int((torch.arange(queries) + band.first + 1 - band.low_T).max()) + QUERIES_MAX
    each = SCORES_MAX // (heads * min(width, k_BGSK.shape[2]))
    each = min(max(each, QUERIES_MIN), QUERIES_MAX)
    device = q_BHTK.device
    lows = band.low_T[::each].tolist()
    low_T = band.low_T.to(device, non_blocking=True)
    for low, start in zip(lows, range(0, queries, each), strict=True):
        stop = min(start + each, queries)
        last = band.first + stop
        key_s = torch.arange(low, last, device=device)
        own_b = torch.arange(band.first + start, last, device=device).unsqueeze(1)
        hidden_bs = (key_s < low_T[start:stop].unsqueeze(1)) | (key_s > own_b)
        yield _QueryBlock(slice(start, stop), slice(low, last), hidden_bs)


def _scores(
    q_BHbK: Tensor, k_BGSK: Tensor, block: _QueryBlock, scale: float, softcap: float | None
) -> tuple[Tensor, Tensor | None]:
    """Scores of a block, (B, G, R, b, s), and the slope of the soft cap, if there is one."""
    q = _grouped(q_BHbK, k_BGSK.shape[1])
    product = q.flatten(2, 3) @ k_BGSK[:, :, block.keys].mT
    scores = product.view(*q.shape[:4], -1).to(_wide(q_BHbK)) * scale
    slope = None
    if softcap is not None:
        bent = (scores / softcap).tanh()
        scores, slope = bent * softcap, 1 - bent.square()
    return scores.masked_fill(block.hidden_bs, -torch.inf), slope
