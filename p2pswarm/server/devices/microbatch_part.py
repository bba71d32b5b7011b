"""The part of a microbatch that a rank computes: some rows, or some tokens of all rows.

Some tokens are one row to the model: all but attention looks at tokens one by one, and attention
asks for the documents (`token_exchange.py`). Their places in documents go with them.

Shapes:  B rows of T tokens, S = T + 1 with the last target; b rows of a rank, or n tokens of it.
Errors:  Unusable for a model whose tokens devices cannot share.
"""
# ruff: noqa: D102, N803, N806  `MicrobatchPart` documents methods; shapes end the names

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Protocol

import torch
from torch import Tensor

from p2pswarm.base.errors import Unusable
from p2pswarm.models.attention.document_attention import lengths_of
from p2pswarm.models.base import LONE_KEY, POSITION_KEY, TOKENS, Bundle, Value
from p2pswarm.models.blocks import block_costs
from p2pswarm.models.boundary import boundaries
from p2pswarm.models.compute.bundle_spec import boundary_above
from p2pswarm.models.compute.tokens import beside_blocks, first_value, ids_of, labels_of
from p2pswarm.models.document_positions import MARKED, document_positions
from p2pswarm.models.library.hf_library import library_config
from p2pswarm.models.library.library_attention import attention_for
from p2pswarm.models.losses.cross_entropy import NO_LABEL
from p2pswarm.server.devices.row_split import Rows, require_splittable
from p2pswarm.server.devices.token_exchange import (
    BY_ROWS,
    DeviceTokens,
    layout_of_device,
)
from p2pswarm.server.devices.token_plan import TokenCosts, token_plan
from p2pswarm.settings.config import HF, ModelConfig, RunConfig

RECEIVED_PRODUCTS = 6_000.0
"""Of a feature of a key or a value that comes from another device, in products of a forward. A
device makes 3e13 products a second and 3 times a forward's in all; 6 bytes go to and fro, of which
a link carries 1e10 a second: what a card of PCIe 4 is."""
ROPE_OF_ROWS = frozenset({"dynamic", "longrope"})
BACKWARD = 3.5 / 3
"""A pair's products in a forward and a backward over those of a forward, beside matrices' 3."""


class MicrobatchPart(Protocol):
    """What a rank takes of the tensors that all ranks map, and what it gives."""

    @property
    def counts(self) -> bool:
        """False where this rank has nothing to do, and computes something for the others' sake."""
        ...

    def tokens(self, whole_BS: Tensor) -> Tensor:
        """The tokens that are kept for a microbatch."""
        ...

    def begin(self, tokens: Tensor) -> None:
        """The microbatch that is computed until another one begins."""
        ...

    def take(self, whole: Tensor) -> Tensor:
        """This rank's part of a tensor with rows."""
        ...

    def put(self, whole: Tensor, part: Tensor) -> None:
        """Write this rank's part, if it counts."""
        ...

    def value(self, given: Bundle, tokens: Tensor) -> Value:
        """What the first block here is given."""
        ...

    def bundle(self, made: Value) -> Bundle:
        """What the last block gave, as the stage above takes it."""
        ...

    def labels(self, tokens: Tensor) -> Tensor:
        """What each place is to predict."""
        ...


class RowPart:
    """Implements `MicrobatchPart` by rows; all of them, where devices share tensors."""

    def __init__(self, run: RunConfig, stage: int, rows: Rows) -> None:
        self._rows, self._model = rows, run.model
        self._below, self._above = boundary_above(run, stage - 1), boundary_above(run, stage)

    @property
    def counts(self) -> bool:
        return bool(self._rows.counted)

    def tokens(self, whole_BS: Tensor) -> Tensor:
        return self.take(whole_BS)

    def begin(self, tokens: Tensor) -> None:
        """Nothing: every microbatch has the same rows here."""

    def take(self, whole: Tensor) -> Tensor:
        return whole[self._rows.start : self._rows.stop]

    def put(self, whole: Tensor, part: Tensor) -> None:
        if self._rows.counted:
            self.take(whole).copy_(part)

    def value(self, given: Bundle, tokens: Tensor) -> Value:
        tokens_bT = tokens[:, :-1]
        if self._below is None:
            return first_value(tokens_bT, self._model)
        return self._below.value(given, beside_blocks(tokens_bT, self._model))

    def bundle(self, made: Value) -> Bundle:
        assert self._above is not None, "the last stage has a loss"
        return self._above.ordered(made)

    def labels(self, tokens: Tensor) -> Tensor:
        return labels_of(tokens)


class TokenPart:
    """Implements `MicrobatchPart` by tokens."""

    def __init__(
        self, run: RunConfig, stage: int, rank: tuple[int, int], group: DeviceTokens
    ) -> None:
        """`rank`: which of how many."""
        self._rank, self._ranks = rank
        self._run, self._group = run, group
        inner = with_positions(run)
        self._below, self._above = boundary_above(inner, stage - 1), boundary_above(inner, stage)
        self._costs = token_costs(run.model)
        self._index_n = torch.arange(0)
        self._position_n = torch.arange(0)
        self._counts = False

    @property
    def counts(self) -> bool:
        return self._counts

    def tokens(self, whole_BS: Tensor) -> Tensor:
        return whole_BS

    def begin(self, tokens: Tensor) -> None:
        position_BT = document_positions(self._run.model, tokens[:, :-1])
        lengths = tuple(length for row in lengths_of(position_BT) for length in row)
        plan = token_plan(lengths, self._ranks, self._costs)
        layout = layout_of_device(plan, lengths, self._rank)
        self._counts = bool(len(layout.index_n))
        if not self._counts:  # all ranks take part in all that is exchanged
            layout = replace(layout, index_n=torch.zeros(1, dtype=torch.int64), whole=(1,))
        self._group.layout = layout
        self._index_n = layout.index_n.to(tokens.device)
        self._position_n = position_BT.flatten()[self._index_n]

    def take(self, whole: Tensor) -> Tensor:
        return whole.flatten(0, 1)[self._index_n.to(whole.device)].unsqueeze(0)

    def put(self, whole: Tensor, part: Tensor) -> None:
        if self._counts:
            whole.view(-1, *whole.shape[2:])[self._index_n.to(whole.device)] = part[0].to(
                whole.device
            )

    def value(self, given: Bundle, tokens: Tensor) -> Value:
        ids = ids_of(self.take(tokens[:, :-1].contiguous()))
        position = self._position_n.unsqueeze(0)
        if self._below is None:
            return {LONE_KEY: ids, POSITION_KEY: position}
        return self._below.value(given, {TOKENS: ids, POSITION_KEY: position})

    def bundle(self, made: Value) -> Bundle:
        assert self._above is not None, "the last stage has a loss"
        return self._above.ordered(made)

    def labels(self, tokens: Tensor) -> Tensor:
        labels = self.take(labels_of(tokens))
        return labels if self._counts else torch.full_like(labels, NO_LABEL)


def with_positions(run: RunConfig) -> RunConfig:
    """The run whose blocks are given each token's place in its document."""
    return replace(run, model=replace(run.model, documents=MARKED))


def token_costs(model: ModelConfig) -> TokenCosts:
    """The costs of a mean layer."""
    costs = block_costs(model)[1:-1] or (1.0,)
    token = max(sum(costs) / len(costs), 1.0)
    width, keys = _widths(model)
    return TokenCosts(
        pair=2 * width * BACKWARD / token, received=2 * keys * RECEIVED_PRODUCTS / token
    )


def _widths(model: ModelConfig) -> tuple[int, int]:
    """The features of all heads of queries, about, and of keys."""
    if not model.config:
        return model.d_model, model.d_model
    config = library_config(model)
    heads = getattr(config, "num_attention_heads", None) or 1
    groups = getattr(config, "num_key_value_heads", None) or heads
    width = int(config.hidden_size)
    return width, width * groups // heads


def require_tokens_apart(run: RunConfig, stage: int) -> None:
    """Raise Unusable for a stage whose tokens devices cannot share."""
    model = run.model
    if model.family.startswith(HF):
        if attention_for(library_config(model)) is None:
            raise Unusable(
                f"{model.family} makes its attention by itself, which knows no parts of a row: "
                f"{BY_ROWS}"
            )
        if kind := _rope_of_rows(library_config(model).to_dict()):
            raise Unusable(
                f"{model.family} has rotary positions ({kind}) that depend on the longest document "
                f"of a microbatch, of which a device has a part: {BY_ROWS}"
            )
    elif model.family != "gpt":
        raise Unusable(
            f"the model {model.family} is a package's, whose attention knows no parts of a row: "
            f"{BY_ROWS}"
        )
    require_splittable(run, stage)
    try:
        boundaries(with_positions(run))
    except Unusable as error:  # without positions it was made just before
        raise Unusable(
            f"{model.family} takes no positions, by which a device knows the tokens of a row that "
            f"it has: {BY_ROWS}"
        ) from error
    for boundary in (boundary_above(run, stage - 1), boundary_above(run, stage)):
        for tensor in boundary.tensors if boundary else ():
            if tensor.shape[:2] != (run.batch.rows, model.sequence_length):
                raise Unusable(
                    f"{tensor.key!r} crosses between stages and belongs to no token, so that "
                    f"tokens cannot be computed on several devices: {BY_ROWS}"
                )


def _rope_of_rows(config: Mapping[str, Any]) -> str:
    """The kind of rotary positions that look at all positions of a microbatch; empty if none."""
    for value in config.values():
        if isinstance(value, dict):
            kind = value.get("rope_type")
            if kind in ROPE_OF_ROWS:
                return str(kind)
            if found := _rope_of_rows(value):
                return found
    return ""
