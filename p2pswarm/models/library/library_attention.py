"""One attention for every family of `transformers` that asks the library's interface for it.

The library lets a program register an attention and the masks that it wants. Ours wants no mask: it
knows the documents of the row that is computed, and what else a family's attention does comes as
arguments. What the library would have put into a mask is told by `LayerMask`. A family that makes
masks of its own gives them as tensors, of which each document takes its part.

Shapes:  as `models/attention/document_attention.py`.
Errors:  Unusable for an argument or a mask that is not known here.
"""
# ruff: noqa: N803, N815  shapes are written at the end of names

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, nn

from p2pswarm.base.errors import Unusable
from p2pswarm.models.attention.document_attention import (
    AttentionRule,
    TokenGroup,
)
from p2pswarm.models.library.hf_library import library, library_module

ATTENTION = "p2pswarm"
OWN_MASKS = frozenset({"axk2", "deepseek_v32"})
"""Families whose layers change the masks that the library makes: these stay the library's."""
WINDOW, CHUNK = "sliding_window", "attention_chunk_size"
"""The settings of a config that the library's masks read."""
JOINED = 'leave run.model.documents out, or set it to "joined"'
HARMLESS = frozenset(
    {"position_ids", "use_cache", "output_attentions", "output_hidden_states", "return_dict"}
)
"""What a family passes on and an attention does not read."""


@dataclass(frozen=True, slots=True)
class RowDocuments:
    """The documents of the rows that are computed."""

    position_BT: Tensor
    group: TokenGroup


@dataclass(frozen=True, slots=True)
class LayerMask:
    """What the library asks of a mask: nothing, or that a token sees some before it only."""

    window: int | None = None
    chunk: int | None = None


_documents: ContextVar[RowDocuments | None] = ContextVar("_documents", default=None)


@contextmanager
def documents_of(position_BT: Tensor | None, group: TokenGroup) -> Iterator[None]:
    """Inside, attention keeps to these documents; None: nobody asks, they are joined."""
    if position_BT is None:
        yield
        return
    before = _documents.set(RowDocuments(position_BT, group))
    try:
        yield
    finally:
        _documents.reset(before)


def attention_for(config: Any) -> str | None:
    """The name of our attention, of which the library is told; None for a family without it."""
    names = library_module("models.auto.modeling_auto").MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    made: Any = getattr(library(), names[config.model_type])
    if config.model_type in OWN_MASKS or not made._can_set_attn_implementation():  # noqa: SLF001
        return None
    library().AttentionInterface.register(ATTENTION, _attention)
    library().AttentionMaskInterface.register(ATTENTION, _mask)
    return ATTENTION


def _mask(
    *, config: Any, local_size: int | None = None, use_vmap: bool = False, **also: Any
) -> LayerMask | Tensor:
    """A `LayerMask`; what a family adds to the library's masks is made as the library makes it."""
    if use_vmap:
        made: Tensor = library_module("masking_utils").sdpa_mask(
            config=config, local_size=local_size, use_vmap=True, **also
        )
        return made
    if local_size is None:
        return LayerMask()
    # the library says how large it is, and not which of the two it was made of
    window, chunk = (getattr(config, name, None) == local_size for name in (WINDOW, CHUNK))
    if window == chunk:
        raise Unusable(
            f"{config.model_type}: whether {local_size} tokens are a window or a chunk cannot be "
            f"told from {WINDOW} and {CHUNK}, {JOINED}"
        )
    return LayerMask(window=local_size) if window else LayerMask(chunk=local_size)


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: LayerMask | Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,  # noqa: FBT001  the library's interface
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **also: object,
) -> tuple[Tensor, None]:
    """As the library's interface has it; (B, T, H, V)."""
    for name, given in {**also, "is_causal": None if is_causal else is_causal}.items():
        if given is not None and name not in HARMLESS:
            raise Unusable(
                f"{type(module).__name__} of transformers gives its attention {name}, which is not "
                f"known where documents are attended one by one: {JOINED}"
            )
    documents = _documents.get()
    assert documents is not None, "whoever runs a block says of which documents"
    rule = AttentionRule(scale=scaling, softcap=softcap, sinks_H=s_aux, dropout=dropout)
    match attention_mask:
        case None:
            rule = replace(rule, window=sliding_window)
        case LayerMask(window=window, chunk=chunk):
            rule = replace(rule, window=window, chunk=chunk)
        case _:
            rule = replace(rule, mask_BHTT=attention_mask)
    made = documents.group.attend(query, key, value, documents.position_BT, rule)
    return made.transpose(1, 2).contiguous(), None
