"""Where a model of `transformers` is cut: its list of layers, and what stands before and after.

What comes before the first layer, a multiplier of the embedding or learned positions, must happen
once. So in a later block a stand-in takes the place of the layer before: it throws away what the
forward made up to there, and gives the activation that was carried (`Carried`).

Shapes:  x_BTD float.
Errors:  Unusable for a model without such a list.
"""
# ruff: noqa: D102, SLF001  shapes end the names; `_init_weights` is the library's

import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from p2pswarm.errors import Unusable

LAYER_LISTS = ("layers", "h", "blocks")
BY_LAYER = ("layer_types", "mlp_layer_types")
"""Lists of a config that a forward indexes by a layer's place."""
CONSTANTS = frozenset({"e_score_correction_bias"})
"""Buffers that are stored with the weights, though no forward changes them."""
NOT_IN_TURN = {
    "gemma3n_text": "each layer is given an embedding of the tokens",
    "gemma4_text": "each layer is given an embedding of the tokens",
}
"""Families whose layers take more than what the layer before gave."""


class Carried(nn.Module):
    """Stands where a layer was, and gives the activation of the block before."""

    def __init__(self) -> None:
        super().__init__()
        self.x_BTD: Tensor | None = None

    def forward(self, *given: object, **also: object) -> Tensor:
        del given, also
        assert self.x_BTD is not None, "a block sets it before each forward"
        return self.x_BTD


class Zeros(nn.Module):
    """Stands for learned positions in a block where what comes of them is thrown away."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width

    def forward(self, ids: Tensor, *given: object, **also: object) -> Tensor:
        del given, also
        return torch.zeros((), device=ids.device).expand(*ids.shape, self.width)


def layers_name(whole: Any) -> str:
    """What the model calls its list of layers."""
    kind = str(whole.config.model_type)
    if kind in NOT_IN_TURN:
        raise Unusable(f"{kind} cannot be cut: {NOT_IN_TURN[kind]}")
    base = whole.base_model
    for name in LAYER_LISTS:
        if base is not whole and isinstance(getattr(base, name, None), nn.ModuleList):
            return name
    raise Unusable(
        f"{kind} cannot be cut: {type(base).__name__} has no list of layers: docs/models.md names "
        "families that can be"
    )


def part(whole: Any, number: int) -> Any:
    """Block `number` of the model: a copy of it without the other blocks' parameters.

    Copying is told what to put in the place of modules that are left out, wherever they are named.
    """
    base, name = whole.base_model, layers_name(whole)
    layers = getattr(base, name)
    first, last = number == 0, number == len(layers) + 1
    kept = [] if first else [Carried()]
    full = {id(whole.config): whole.config, id(base.config): base.config}
    if not (first or last):
        kept.append(copy.deepcopy(layers[number - 1], dict(full)))
    instead: dict[int, Any] = full | {id(layers): nn.ModuleList(kept)}
    before = True
    for child_name, child in base.named_children():
        if child_name == name:
            before = False
        elif any(True for _ in child.parameters()) and not (first if before else last):
            width = getattr(child, "embedding_dim", 0)
            instead[id(child)] = Zeros(width) if width else nn.Identity()
    if not last:
        for child in whole.children():
            if child is not base:
                instead[id(child)] = nn.Identity()
    return copy.deepcopy(whole, instead)


def part_config(whole: Any, number: int) -> Any:
    """The config of the base of block `number`: its lists have the layers that are there."""
    count = len(getattr(whole.base_model, layers_name(whole)))
    config = copy.deepcopy(whole.base_model.config)
    places = [] if number == 0 else [number - 2, number - 1][: 2 - (number == count + 1)]
    places = [max(place, 0) for place in places]
    for key in BY_LAYER:
        values = getattr(config, key, None)
        if values:
            setattr(config, key, [values[place] for place in places])
    config.num_hidden_layers = len(places)
    return config


def owners(module: nn.Module, owner: Any) -> Iterator[tuple[Any, nn.Module]]:
    """Every module inside, the inmost first, each with the model that initialises it."""
    for child in module.children():
        yield from owners(child, child if hasattr(child, "_init_weights") else owner)
    yield owner, module


def make_constant(module: nn.Module) -> None:
    """Mark the buffers that only the weights of a trained model fill as constants of the model."""
    for each in module.modules():
        each._non_persistent_buffers_set.update(CONSTANTS & each._buffers.keys())


def multiplications(block: nn.Module, config: Any) -> float:
    """Those of a token; of a mixture's experts the share that a token is given to."""
    experts = 1
    for key in ("num_local_experts", "n_routed_experts", "num_experts"):
        experts = max(experts, int(getattr(config, key, None) or 1))
    share = int(getattr(config, "num_experts_per_tok", None) or experts) / experts
    return sum(
        parameter.numel() * (share if ".experts." in name else 1.0)
        for name, parameter in block.named_parameters()
    )
