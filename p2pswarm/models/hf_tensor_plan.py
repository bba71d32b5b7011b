"""How devices share a block of a model of `transformers`: by the plan that its family ships.

A family's plan (`base_model_tp_plan`) names modules of the whole model, with a star for a layer's
number. Embedding and head, which most plans leave out or gather, are shared over the vocabulary.

Errors:  Unusable, naming the family, for a plan that is missing or cannot be followed exactly.
"""

import re
from collections.abc import Iterator
from typing import Any

from torch import nn

from p2pswarm.base.errors import Unusable
from p2pswarm.models.tensor_plan import Style, TensorShare

BY_ROWS = 'set serve.parallel to "rows"'
KV_HEADS = frozenset({"k_proj", "v_proj"})
HEADS = frozenset({"q_proj", "o_proj", "query_key_value", "dense"})
"""Matrices of attention that lie head by head. One that packs `q`, `k` and `v` one after the other
does not: the library's plans gather what it gives."""
CUT_TO_THE_END = frozenset({Style.COLWISE, Style.PACKED_COLWISE})
"""Styles whose features stay apart inside of a module."""


def library_plan(inner: Any, *, first: bool, last: bool) -> dict[str, TensorShare]:
    """The plan of one block, by names in it; `inner` as `models/sliced.py` has it."""
    config, base = inner.base_model.config, inner.base_model
    kind = str(config.model_type)
    shipped = dict(config.base_model_tp_plan or {})
    plan = {} if first or last else dict(_layer_plan(kind, base, shipped))
    named = {f"{inner.base_model_prefix}.{name}": share for name, share in plan.items()}
    if first and isinstance(table := inner.get_input_embeddings(), nn.Embedding):
        named[_name_of(inner, table)] = TensorShare(Style.EMBEDDING)
    if last and isinstance(head := inner.get_output_embeddings(), nn.Linear):
        named[_name_of(inner, head)] = TensorShare(Style.COLWISE)
    return named


def _name_of(inner: Any, module: nn.Module) -> str:
    return str(next(name for name, each in inner.named_modules() if each is module))


def _layer_plan(kind: str, base: Any, shipped: dict[str, str]) -> Iterator[tuple[str, TensorShare]]:
    """The shares of a layer's modules and parameters; Unusable if there are none."""
    places = [*(n for n, _ in base.named_modules()), *(n for n, _ in base.named_parameters())]
    found = {
        name: _style(kind, name, shipped[generic])
        for name in places
        if (generic := re.sub(r"\.\d+(?=\.|$)", ".*", name)) in shipped
        and shipped[generic] != Style.EMBEDDING  # it is of the first block, whatever stands for it
    }
    if not any(style is not Style.OWN_FEATURES for style in found.values()):
        raise Unusable(f"{kind} ships no plan to share a layer's tensors: {BY_ROWS}")
    _require_all_named(kind, base, found)
    for name, style in found.items():
        yield name, TensorShare(style, _units(kind, base, name, style))


def _style(kind: str, name: str, style: str) -> Style:
    if style in set(Style):
        return Style(style)
    raise Unusable(f"{kind} shares {name} as {style!r}, which is not known here: {BY_ROWS}")


def _require_all_named(kind: str, base: Any, found: dict[str, Style]) -> None:
    """Raise Unusable for a parameter between features that are apart, of which nothing is said.

    It may belong to features of other devices, as a norm with a weight for each head does.
    """
    for name, style in found.items():
        if style not in CUT_TO_THE_END:
            continue
        parent, _, _ = name.rpartition(".")
        for own, _ in base.get_submodule(parent).named_parameters():
            full = f"{parent}.{own}"
            if full not in found and full.rpartition(".")[0] not in found:
                raise Unusable(
                    f"{kind} ships a plan that does not say how {full} is shared: {BY_ROWS}"
                )


def _units(kind: str, base: Any, name: str, style: Style) -> int:
    """How many heads a matrix has that is cut by heads."""
    parent, _, leaf = name.rpartition(".")
    owner, config = base.get_submodule(parent), base.config
    by_heads = hasattr(owner, "head_dim") or hasattr(owner, "head_size")
    if not by_heads or style not in {Style.COLWISE, Style.ROWWISE}:
        return 0
    heads = int(config.num_attention_heads)
    if leaf in KV_HEADS:
        return int(getattr(config, "num_key_value_heads", None) or heads)
    if leaf in HEADS:
        return heads
    raise Unusable(f"{kind} has heads in {name}, of which the order is not known here: {BY_ROWS}")
