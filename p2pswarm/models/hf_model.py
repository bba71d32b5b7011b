"""A causal language model of `transformers` as a list of blocks, without an edit of its code.

Each block is the model's own class with most of its layers taken away, and runs the model's own
forward. So whatever stands there (masks, sliding windows, rotary positions, multipliers, soft
caps) is done as its authors wrote it. The first block has the embedding and what else comes
before the layers, each next one a layer, the last the norm and the head. Parameters have the
names that they have in the whole model.

What comes before the first layer, a multiplier of the embedding or learned positions, must happen
once, and what comes after the last one as well. So stand-ins take the places of the layers beside
those of a block. The one before throws away what the forward made up to there and gives the
activation that was carried. The one behind keeps what it is given, for the next block.

Devices share a block by the plan that its family ships (`base_model_tp_plan`), which names modules
of the whole model, with a star for a layer's number. Embedding and head, which most plans leave
out or gather, are shared over the vocabulary.

Shapes:  x_BTD between blocks, float, and beside it each token's position in its document where
         documents are apart; tokens_BT into the first; scores_BTV out of the last.
Errors:  Unusable for a model that cannot be cut, or a plan that cannot be followed exactly.
"""
# ruff: noqa: D102, N806, SLF001  `Block` documents methods; `_init_weights` is the library's

import copy
import inspect
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn

from p2pswarm.base.errors import Unusable
from p2pswarm.models.base import LONE_KEY, Bundle, Value, WholeBlock, bundle_of, traced_through
from p2pswarm.models.document_positions import APART, KEPT_APART, beside, positions_in, positions_of
from p2pswarm.models.library.foreign_code import foreign, said
from p2pswarm.models.library.hf_library import chances, library_config, owners, whole_model
from p2pswarm.models.library.library_attention import attention_for, documents_of
from p2pswarm.models.losses.router_loss import RouterLoss, Routers, routers_of
from p2pswarm.models.tensor_plan import Style, TensorPlan, TensorShare
from p2pswarm.models.trainable import is_unset, unset
from p2pswarm.settings.config import ModelConfig

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
    """The name of the model's list of layers."""
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
    """The places of a block's own layer, if it is no end, and of those before and behind it.

    Each comes with whether it is its own.
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


def make_constant(module: nn.Module) -> None:
    """Make constants of stored buffers and of frozen parameters."""
    for each in module.modules():
        frozen = {
            n: p for n, p in each._parameters.items() if p is not None and not p.requires_grad
        }
        for name, parameter in frozen.items():
            del each._parameters[name]
            each.register_buffer(name, parameter.detach(), persistent=False)
        each._non_persistent_buffers_set.update(each._buffers)


def keep_constants(module: nn.Module, prefix: str) -> frozenset[str]:
    """Make parameters of what files store of real numbers under `prefix` and no gradient trains.

    A router's correction is one: whoever joins a run gets it with the weights. Returns their names.
    """
    names = []
    for path, each in module.named_modules():
        if not f"{path}.".startswith(prefix):
            continue
        stored = [n for n in each._buffers if n not in each._non_persistent_buffers_set]
        for name in stored:
            buffer = each._buffers[name]
            if buffer is not None and buffer.is_floating_point():
                del each._buffers[name]
                each.register_parameter(name, nn.Parameter(buffer))
                names.append(f"{path}.{name}")
        for name, parameter in each.named_parameters(recurse=False):
            if not parameter.requires_grad and parameter.is_floating_point():
                parameter.requires_grad_(True)
                names.append(f"{path}.{name}")
    return frozenset(names)


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


BY_ROWS = 'set serve.parallel to "rows"'
KV_HEADS = frozenset({"k_proj", "v_proj"})
HEADS = frozenset({"q_proj", "o_proj", "query_key_value", "dense"})
"""Matrices of attention that lie head by head. One that packs `q`, `k` and `v` one after the other
does not: the library's plans gather what it gives."""
CUT_TO_THE_END = frozenset({Style.COLWISE, Style.PACKED_COLWISE})
"""Styles whose features stay apart inside of a module."""


def library_plan(inner: Any, *, first: bool, last: bool) -> dict[str, TensorShare]:
    """The plan of one block, by names in it; `inner` as `SlicedBlock` has it."""
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
            if not any(f"{full}.".startswith(f"{each}.") for each in found):
                raise Unusable(
                    f"{kind} ships a plan that does not say how {full} is shared: {BY_ROWS}"
                )


def _units(kind: str, base: Any, name: str, style: Style) -> int:
    """The number of heads in a matrix that is cut by heads, else 0."""
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


MADE_OTHERWISE = (AttributeError, LookupError, TypeError, ValueError)
"""What our own lines raise when they take apart a model that is made in another way."""
MASK_TOKENS_MAX = 32_768  # a mask takes 1 GiB a row; a stranger's run may ask for any length
OLD_CONSTANTS = r"rotary_emb\.inv_freq$|\.attn\.(masked_)?bias$|\.attention\.(masked_)?bias$"


def sliced(model: ModelConfig) -> list[nn.Module]:
    """Embedding, layers and head of the model that `model.config` describes."""
    attention = attention_for(library_config(model)) if model.documents in KEPT_APART else None
    whole: Any = whole_model(model, attention)
    end, files = _document_end(model, whole, attention), bool(model.weights)
    routers = routers_of(whole, model.family) if model.router_loss else None
    return sliced_of(whole, model.family, end, files=files, routers=routers)


def sliced_of(
    whole: Any,
    family: str,
    end: int | None,
    *,
    files: bool = False,
    routers: Routers | None = None,
) -> list[nn.Module]:
    """The same of a `whole` model; `end`: the token that ends a document, if they are apart.

    `files`: its first weights come from files, and so do constants that these hold. `routers`: of
    which a loss is taken.
    """
    uncut = f"{family} cannot be cut"
    with foreign(uncut):
        try:
            count = len(getattr(core(whole), layers_name(whole)))
            numbers = range(count + 2)
            blocks = [SlicedBlock(whole, number, count, end, files=files) for number in numbers]
        except MADE_OTHERWISE as error:
            raise Unusable(f"{uncut}: {said(error)}") from error
    for block in blocks if routers is not None else ():
        assert routers is not None, "asked just before"
        block.router_loss = RouterLoss.of(block.inner, routers)
    return [*blocks]


def _document_end(model: ModelConfig, whole: Any, attention: str | None) -> int | None:
    """The token that ends a document, if documents are to be apart; -1 if rows tell it."""
    if model.documents not in KEPT_APART:
        return None
    if attention is None and model.sequence_length > MASK_TOKENS_MAX:
        raise Unusable(
            f'run.model.documents = "{APART}": {model.family} makes a mask of T x T by itself, for '
            f"up to {MASK_TOKENS_MAX:,} tokens, not {model.sequence_length:,}: shorten the sequence"
        )
    if "position_ids" not in inspect.signature(core(whole).forward).parameters:
        raise Unusable(
            f'run.model.documents = "{APART}": {model.family} takes no positions, so that its '
            'documents cannot be kept apart: leave it out, or set it to "joined"'
        )
    return model.document_end if model.documents == APART else -1


class SlicedBlock(WholeBlock):
    """One block: the model with its embedding, one of its layers, or its head."""

    def __init__(
        self, whole: Any, number: int, count: int, end: int | None, *, files: bool = False
    ) -> None:
        """`whole` is on the meta device and stays as it is; it has `count` layers.

        `end`: the token that ends a document, if documents are to be apart. `files`: as `sliced_of`
        has it.
        """
        super().__init__()
        self._end = end
        self.first, self.last = number == 0, number == count + 1
        self.inner: Any = part(whole, number)
        base, self._list = core(whole), layers_name(whole)
        self._full, self._own = base.config, part_config(whole, number)
        self._number = number
        path = next(name for name, module in whole.named_modules() if module is base)
        self._head = f"{path}.{self._list}."
        self.width, self._vocabulary = int(self._full.hidden_size), int(self._full.vocab_size)
        self._tied: dict[str, str] = dict(whole._tied_weights_keys or {}) if whole.was_tied else {}
        self.ignored = _ignored(whole)
        self._embedding = (whole.get_input_embeddings(),)  # in a tuple it is no part of this one
        if whole.is_tied and (self.first or self.last):
            self.tied = _end_of(whole, self)
        core(self.inner).config = self._own
        self.random = bool(chances(self._full.to_dict()))
        self.cost = float(self.width if self.first else multiplications(self.inner, self._full))
        if files:
            self.frozen = keep_constants(self, f"inner.{self._head}")
        make_constant(self)
        self._dtypes = {name: buffer.dtype for name, buffer in self.named_buffers()}
        self.router_loss: RouterLoss | None = None
        """Of a layer whose routers are balanced."""

    def forward(self, value: Value) -> Value:
        bundle, base = bundle_of(value), core(self.inner)
        x, position_BT = bundle[LONE_KEY], self._positions(bundle)
        place = {} if position_BT is None else {"position_ids": position_BT.long()}
        before, behind = (getattr(base, self._list)[end] for end in (0, -1))
        try:
            with documents_of(position_BT, self.token_group):
                if self.first:
                    base(input_ids=x, use_cache=False, **place)
                else:
                    before.x_BTD = x
                    # it is thrown away, and some families change it where it lies
                    run = self.inner if self.last else base
                    made = run(inputs_embeds=torch.zeros_like(x), use_cache=False, **place)
            if self.last:
                return cast("Tensor", made.logits)
            x = behind.x_BTD if self.router_loss is None else self.router_loss.beside(behind.x_BTD)
            return beside(x, position_BT)
        finally:
            before.x_BTD = behind.x_BTD = None

    def trace(self, value: Value) -> Value:
        """The same in shape: a mixture of experts cannot run on the meta device."""
        bundle, dtype = bundle_of(value), next(self.parameters()).dtype
        x, position_BT = bundle[LONE_KEY], self._positions(bundle)
        if self.first:
            made = torch.zeros(*x.shape, self.width, dtype=dtype, device=x.device)
            return beside(traced_through(self, made), position_BT)
        if x.shape[-1] != self.width or x.dtype != dtype:
            raise Unusable(
                f"{type(self.inner).__name__} cannot be cut: block {self._number} is given "
                f"{x.dtype} by {x.shape[-1]}, {dtype} by {self.width} is due"
            )
        if self.last:
            return x[..., :1].expand(-1, -1, self._vocabulary) * 1
        return beside(traced_through(self, x), position_BT)

    def _positions(self, bundle: Bundle) -> Tensor | None:
        """Of each token in its document, if documents are to be apart."""
        given = positions_in(bundle)
        if not self.first or given is not None or self._end is None:
            return given
        return positions_of(bundle[LONE_KEY], self._end)

    @property
    def tensor_plan(self) -> TensorPlan:
        """The family's own plan of how devices share the block's tensors."""
        plan = library_plan(self.inner, first=self.first, last=self.last)
        return {f"inner.{name}": share for name, share in plan.items()}

    @property
    def head(self) -> nn.Module | None:
        found: nn.Module | None = self.inner.get_output_embeddings() if self.last else None
        return found

    def full_name(self, name: str) -> str:
        """The name that a parameter of this block has in the whole model."""
        if self.tied is not None and name == self.tied[0]:
            return self.tied[1]
        own = name.removeprefix("inner.")
        if not own.startswith(self._head):
            return own
        _, _, last = own.removeprefix(self._head).partition(".")
        return f"{self._head}{self._number - 1}.{last}"

    def draw_name(self, name: str) -> str:
        """The name that first values are drawn by: a head that was tied begins as the embedding."""
        full = self.full_name(name)
        return self._tied.get(full, full)

    def published_names(self, name: str) -> tuple[str, ...]:
        """Its own; of a tensor that was both ends of the model, files may have either."""
        full = self.full_name(name)
        ends = [{head, embedding} for head, embedding in self._tied.items()]
        others = sorted(set().union(*(both for both in ends if full in both)) - {full})
        return (full, *others)

    @torch.no_grad()
    def draw(self, generator: torch.Generator) -> None:
        del generator  # values are drawn by names (`first_weights.py`)
        with self._with_full_config():
            for owner, module in owners(self.inner, self.inner):
                if not (self._tied and module is self.inner.get_output_embeddings()):
                    owner._init_weights(module)
            if self.last and self._tied:
                as_embedding = copy.copy(self._embedding[0])
                as_embedding._parameters = {"weight": self.inner.get_output_embeddings().weight}
                as_embedding._buffers = {
                    name: torch.empty_like(buffer, device="cpu")
                    for name, buffer in as_embedding._buffers.items()
                    if buffer is not None
                }
                core(self.inner)._init_weights(as_embedding)
        for name, buffer in self.named_buffers():  # that code fills them, too
            buffer.copy_(buffer.to(self._dtypes[name]))

    def fill_buffers(self, device: torch.device) -> None:
        """Make the buffers with the numbers of the library's dtype, whatever the run's is."""
        paths = {id(module): path for path, module in self.named_modules()}
        with self._with_full_config():
            for owner, module in owners(self.inner, self.inner):
                self._fill(owner, module, f"{paths[id(module)]}.", device)

    def _fill(self, owner: Any, module: nn.Module, path: str, device: torch.device) -> None:
        bare = {name: b for name, b in module._buffers.items() if b is not None and b.is_meta}
        for name, buffer in bare.items():
            dtype = self._dtypes[path + name]
            module._buffers[name] = unset(torch.empty_like(buffer, dtype=dtype, device=device))
        if bare:
            owner._init_weights(module)
        for name, buffer in bare.items():
            made = module.get_buffer(name)
            if is_unset(made):
                raise Unusable(
                    f"{self._full.model_type} cannot be cut: its code gives {name} of "
                    f"{type(module).__name__} no value without a file of weights"
                )
            module._buffers[name] = made.to(buffer.dtype)

    @contextmanager
    def _with_full_config(self) -> Iterator[None]:
        """Inside, the library's code sees the config of the whole: some scale by the layers."""
        base = core(self.inner)
        base.config = self._full
        try:
            yield
        finally:
            base.config = self._own


def _ignored(whole: Any) -> tuple[str, ...]:
    """Names, as regular expressions, of tied heads and of constants that old versions saved."""
    tied = (re.escape(name) + "$" for name in whole._tied_weights_keys or {})
    stored = whole.state_dict()
    computed = (re.escape(name) for name, _ in whole.named_buffers() if name not in stored)
    return (*(whole._keys_to_ignore_on_load_unexpected or ()), *tied, *computed, OLD_CONSTANTS)


def _end_of(whole: Any, block: SlicedBlock) -> tuple[str, str]:
    """The tensor that both ends of a tied model share, by its name in `block` and in the model."""
    inner = block.inner
    ends = [whole.get_input_embeddings(), whole.get_output_embeddings()]
    names = [name for end in ends for name, p in whole.named_parameters() if p is end.weight]
    if len(names) != len(ends) or dict(whole._tied_weights_keys) != {names[1]: names[0]}:
        raise Unusable(
            f"{whole.config.model_type} ties more than the weights of its embedding and its head: "
            "run.model.tie = false makes them two that begin equal"
        )
    here = inner.get_input_embeddings() if block.first else inner.get_output_embeddings()
    own = next(name for name, p in block.named_parameters() if p is here.weight)
    return own, names[0]
