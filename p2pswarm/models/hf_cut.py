"""Where a model of `transformers` is cut: its list of layers, and what stands before and after.

What comes before the first layer, a multiplier of the embedding or learned positions, must happen
once, and what comes after the last one as well. So stand-ins take the places of the layers beside
those of a block: the one before throws away what the forward made up to there and gives the
activation that was carried, and the one behind keeps what it is given, for the next block.

Shapes:  x_BTD float.
Errors:  Unusable for a model without such a list.
"""
# ruff: noqa: D102, SLF001  shapes end the names; `_init_weights` is the library's

import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from p2pswarm.base.errors import Unusable

LAYER_LISTS = ("layers", "h", "blocks")
BY_LAYER = ("layer_types", "mlp_layer_types", "layers_block_type", "layer_rope_theta")
"""Lists of a config that a forward indexes by a layer's place."""
AFTER = frozenset({"final_layer_norm", "project_out"})
"""What comes after the layers, also where a model makes it before them."""
DECODERS = frozenset({"opt"})
"""Families whose layers lie one module deeper."""
NOT_IN_TURN = {
    "deepseek_v4": "several activations pass between its layers",
    "dory": "its forward runs layers more than once",
    "gemma3n_text": "each layer is given an embedding of the tokens",
    "gemma4_text": "each layer is given an embedding of the tokens",
    "gemma4_unified_text": "layers share the keys and values of others",
    "glm_moe_dsa": "a layer is given the tokens that the layer before chose",
    "hy_v4": "a layer is given the tokens that the layer before chose",
    "inkling2_loop_text": "its forward runs layers more than once",
    "inkling2_text": "each layer is given what layers before it made",
    "rwkv": "a layer is given a state of all layers",
    "xlstm": "a layer is given a state of all layers",
    "zamba": "each layer is given the embedding of the tokens, and some share weights",
    "zamba2": "each layer is given the embedding of the tokens, and some share weights",
    "zaya": "each layer is given what the router of the layer before made",
}
"""Families whose layers take more than what the layer before gave."""
GIVE_TUPLES = frozenset(
    {
        "bamba",
        "bloom",
        "falcon",
        "falcon_h1",
        "gpt_neo",
        "gpt_neox_japanese",
        "mpt",
        "openai-gpt",
    }
)
"""Families whose layers give x as the first of several, of which their forward takes it."""


class StandIn(nn.Module):
    """Stands where a layer was: gives what was carried, or keeps what it is given."""

    def __init__(self, layer: nn.Module, *, in_tuple: bool) -> None:
        """`layer` is what it stands for: forwards ask it for its kind."""
        super().__init__()
        for name in dir(layer):
            if name.startswith("_") or hasattr(self, name):
                continue
            value = getattr(layer, name)
            if isinstance(value, str | bool | int):
                setattr(self, name, value)
        self._in_tuple = in_tuple
        self.x_BTD: Tensor | None = None

    def forward(self, hidden_states: Tensor, *given: object, **also: object) -> object:
        del given, also
        if self.x_BTD is None:
            self.x_BTD = hidden_states
        return (self.x_BTD, None) if self._in_tuple else self.x_BTD


class Passing(nn.Module):
    """Stands for what another block does: gives what it is given."""

    def forward(self, hidden_states: Tensor, *given: object, **also: object) -> Tensor:
        del given, also
        return hidden_states


class Zeros(nn.Module):
    """Stands for learned positions in a block where what comes of them is thrown away."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width

    def forward(self, ids: Tensor, *given: object, **also: object) -> Tensor:
        del given, also
        return torch.zeros((), device=ids.device).expand(*ids.shape, self.width)


def core(whole: Any) -> Any:
    """The module whose forward runs the layers."""
    base = whole.base_model
    if base is whole:  # its class does not say where: there is one other name for it
        base = getattr(whole, "model", whole)
    return base.decoder if whole.config.model_type in DECODERS else base


def layers_name(whole: Any) -> str:
    """What the model calls its list of layers."""
    kind = str(whole.config.model_type)
    if kind in NOT_IN_TURN:
        raise Unusable(f"{kind} cannot be cut: {NOT_IN_TURN[kind]}")
    base = core(whole)
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
    base, name = core(whole), layers_name(whole)
    layers = getattr(base, name)
    first, last = number == 0, number == len(layers) + 1
    full = {id(whole.config): whole.config, id(base.config): base.config}
    in_tuple = whole.config.model_type in GIVE_TUPLES
    kept: list[nn.Module] = []
    for place, own in _places(number, len(layers)):
        layer = layers[place]
        kept.append(copy.deepcopy(layer, dict(full)) if own else StandIn(layer, in_tuple=in_tuple))
    instead: dict[int, Any] = full | {id(layers): nn.ModuleList(kept)}
    before = True
    for child_name, child in base.named_children():
        if child_name == name:
            before = False
        elif not any(True for _ in child.parameters()):
            continue
        elif not (first if before and child_name not in AFTER else last):
            width = getattr(child, "embedding_dim", 0)
            instead[id(child)] = Zeros(width) if width else Passing()
    if not last:
        for child in whole.children():
            if all(each is not base for each in child.modules()):
                instead[id(child)] = Passing()
    return copy.deepcopy(whole, instead)


def _places(number: int, count: int) -> list[tuple[int, bool]]:
    """The layers of block `number`: their places among `count`, and whether they are its own.

    It has one of its own, if it is no end, and stand-ins for those before and behind it.
    """
    places = [] if number == 0 else [(max(number - 2, 0), False)]
    if 0 < number <= count:
        places.append((number - 1, True))
    if number <= count:
        places.append((min(max(number - 1, 0), count - 1), False))
    return places


def part_config(whole: Any, number: int) -> Any:
    """The config of the base of block `number`: its lists have the layers that are there."""
    base = core(whole)
    count = len(getattr(base, layers_name(whole)))
    config = copy.deepcopy(base.config)
    places = [place for place, _ in _places(number, count)]
    lists = {
        key: [values[place] for place in places]
        for key in BY_LAYER
        if (values := getattr(config, key, None))
    }
    for key, values in lists.items():
        _put(config, key, values)
    config.num_hidden_layers = len(places)
    if hasattr(config, "num_layers"):  # longcat_flash counts its caches by the other name
        config.num_layers = len(places)
    return config


def _put(config: Any, key: str, values: list[Any]) -> None:
    """Set a list of a config, also where its class computes it."""
    kind = type(config)
    key = kind.attribute_map.get(key, key)
    if isinstance(getattr(kind, key, None), property):
        config.__class__ = type(kind.__name__, (kind,), {key: values})
    else:
        setattr(config, key, values)


def owners(module: nn.Module, owner: Any) -> Iterator[tuple[Any, nn.Module]]:
    """Every module inside, the inmost first, each with the model that initialises it."""
    for child in module.children():
        yield from owners(child, child if hasattr(child, "_init_weights") else owner)
    yield owner, module


def make_constant(module: nn.Module) -> list[str]:
    """Make constants of what no gradient trains; returns their names.

    Such are buffers that are stored with the weights, and parameters that are frozen.
    """
    names = []
    for prefix, each in module.named_modules():
        frozen = {
            n: p for n, p in each._parameters.items() if p is not None and not p.requires_grad
        }
        kept = [n for n in each._buffers if n not in each._non_persistent_buffers_set]
        for name, parameter in frozen.items():
            del each._parameters[name]
            each.register_buffer(name, parameter.detach(), persistent=False)
        each._non_persistent_buffers_set.update(kept)
        names += [f"{prefix}.{name}" for name in (*frozen, *kept)]
    return names


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
