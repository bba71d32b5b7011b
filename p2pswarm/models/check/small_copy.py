"""A small copy of a run's model, of the same structure, to compare stages with the whole on.

Widths shrink and few layers stay, one of each kind at least. A config whose widths depend on
each other in a way that is not known here is left as wide as it is. A model of one's own shrinks
if it is large and its sizes are settings of `run.model`.

Errors:  Unusable for a model that cannot be made.
"""

import dataclasses
import json
import math
from collections.abc import Mapping
from typing import Any

import torch

from p2pswarm.base.errors import Unusable
from p2pswarm.models.base import trains
from p2pswarm.models.blocks import block_count, make_blocks
from p2pswarm.models.boundary import boundaries
from p2pswarm.models.hf_model import BY_LAYER
from p2pswarm.models.library.hf_library import LAYERS as LAYER_COUNTS
from p2pswarm.models.library.hf_library import library_config, read_config
from p2pswarm.settings.config import HF, ModelConfig, RunConfig
from p2pswarm.settings.objective import ObjectiveConfig

LAYERS, ROWS, TOKENS, VOCABULARY = 4, 2, 12, 64
LARGE = 1_000_000  # parameters: a model of fewer is checked in a second as it is
HEAD_WIDTH = 8  # features of a head of an own model's small copy
STAGES_MAX = 8
HEADS = 4
BYTES = 256  # the least vocabulary of a run
WIDTHS = {
    "attention_chunk_size": 5,
    "attention_window_size": 5,
    "chunk_size": 8,
    "d_model": 32,
    "expert_ffn_hidden_size": 16,
    "ffn_dim": 48,
    "ffn_hidden_size": 48,
    "head_dim": 8,
    "hidden_size": 32,
    "index_head_dim": 16,
    "index_n_heads": 2,
    "index_topk": 4,
    "intermediate_size": 48,
    "intermediate_size_mlp": 48,
    "kv_lora_rank": 8,
    "linear_key_head_dim": 8,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_value_head_dim": 8,
    "lru_width": 32,
    "mamba_chunk_size": 8,
    "mamba_d_head": 8,
    "mamba_d_state": 8,
    "mamba_dt_rank": 8,
    "mamba_head_dim": 8,
    "mamba_n_groups": 1,
    "mamba_n_heads": 8,
    "mamba_num_heads": 8,
    "moe_intermediate_size": 16,
    "moe_k": 2,
    "moe_num_experts": 4,
    "moe_topk": 2,
    "n_embd": 32,
    "n_group": 1,
    "n_groups": 1,
    "n_head": HEADS,
    "n_heads": HEADS,
    "n_inner": 48,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_attention_heads": HEADS,
    "num_expert_group": 1,
    "num_experts": 4,
    "num_experts_per_token": 2,
    "num_experts_per_tok": 2,
    "num_heads": 8,
    "num_kv_heads": 1,
    "num_local_experts": 4,
    "num_shared_experts": 1,
    "q_lora_rank": 8,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 8,
    "rotary_dim": 8,
    "shared_expert_intermediate_size": 16,
    "shared_intermediate_size": 16,
    "sliding_window": 5,
    "ssm_state_size": 8,
    "state_size": 8,
    "time_step_rank": 4,
    "topk_group": 1,
    "v_head_dim": 8,
    "word_embed_proj_dim": 32,
}
"""What a config's settings become, if they are larger."""
BY_HEADS = frozenset({"hidden_size", "n_embd", "n_head", "num_attention_heads"})
"""Those that grow with the devices that are to share the heads."""
ROPE = ("rope_parameters", "rope_scaling")
PATTERN = "hybrid_override_pattern"
"""A letter for each layer."""
TIMES = "attention_types"
"""Lists of kinds of layers, and how often each list comes."""
TOKEN_IDS = ("pad_token_id", "bos_token_id", "eos_token_id")


def shrunken(run: RunConfig, devices: int = 1) -> RunConfig:
    """The run with a small copy of its model, in float64, and nothing rounded anywhere.

    `devices`: so many can share its heads, if they can share those of the model.
    """
    times = devices // math.gcd(devices, HEADS // 2)  # 2, the fewest heads, become a multiple
    model = dataclasses.replace(
        run.model,
        sequence_length=min(run.model.sequence_length, TOKENS),
        dtype="float64",
        weights="",
        boundary_width=0,  # a quarter of a width that shrinks
    )
    codecs = dataclasses.replace(run.codecs, averaging="raw")
    run = dataclasses.replace(
        run,
        start="random",
        precision="full",
        weight_storage="full",
        codecs=codecs,
        delay=0,  # one microbatch has nothing to overlap with
        objective=ObjectiveConfig(),  # the library's model has no other
    )
    batch = dataclasses.replace(run.batch, rows=ROWS, microbatches=1)
    if model.family == "gpt":
        layers = min(model.layers, LAYERS)
        model = dataclasses.replace(model, layers=layers, d_model=16 * times, heads=2 * times)
    elif model.family.startswith(HF):
        model = _library_model(model, times)
    else:
        as_it_is = dataclasses.replace(run, model=model, batch=batch)
        large = parameter_count(as_it_is) > LARGE
        return _own_model(as_it_is) if large else as_it_is
    stages = min(block_count(model), STAGES_MAX)
    small = dataclasses.replace(run, model=model, batch=batch, stages=stages, cut=())
    whole = not run.has_base or _something_trains(small)
    return small if whole else dataclasses.replace(small, **_all_of(small))


def _something_trains(run: RunConfig) -> bool:
    with torch.device("meta"):
        return any(map(trains, make_blocks(run, range(block_count(run.model)))))


def _all_of(run: RunConfig) -> dict[str, Any]:
    """What trains in a copy that lacks the layers which the run names."""
    if run.adapter is None:
        return {"frozen": ()}
    ends = (each.rpartition(".")[2] for each in run.adapter.targets)
    return {"adapter": dataclasses.replace(run.adapter, targets=tuple(dict.fromkeys(ends)))}


def _own_model(run: RunConfig) -> RunConfig:
    """A smaller copy of a model of one's own that can be traced, else the model as it is."""
    model = run.model
    few = dataclasses.replace(
        model, layers=min(model.layers, LAYERS), vocabulary=min(model.vocabulary, BYTES)
    )
    heads = min(model.heads, HEADS)
    width = min(model.d_model, HEAD_WIDTH * heads)
    narrow = dataclasses.replace(few, heads=heads, d_model=width)
    for smaller in (narrow, few):
        try:
            stages = min(block_count(smaller), STAGES_MAX)
            small = dataclasses.replace(run, model=smaller, stages=stages, cut=())
            boundaries(small)
        except Unusable:  # it needs the sizes that it has
            continue
        return small
    return run


def parameter_count(run: RunConfig) -> int:
    """The number of parameters of the whole model."""
    with torch.device("meta"):
        blocks = make_blocks(run, range(block_count(run.model)))
    return sum(parameter.numel() for block in blocks for parameter in block.parameters())


def _library_model(model: ModelConfig, times: int) -> ModelConfig:
    whole = read_config(model.config)
    library = library_config(model)
    few = _with_few_layers(whole, library)
    sizes = library.to_dict()  # also those that the config leaves as they are
    for config in (_narrow(few, sizes | few, times), _narrow(few, few, times), few, whole):
        text = json.dumps(config, sort_keys=True, separators=(",", ":"))
        vocabulary = config.get("vocab_size", model.vocabulary)
        end = min(model.document_end, vocabulary - 1)
        small = dataclasses.replace(model, config=text, vocabulary=vocabulary, document_end=end)
        try:
            block_count(small)
        except Unusable:
            if config is whole:
                raise
            continue
        return small
    raise AssertionError("the last one returns or raises")


def _with_few_layers(config: dict[str, Any], library: Any) -> dict[str, Any]:
    """The config with one layer of each kind, and some more.

    Kinds that the library computes from a layer's place are those of the first layers: as many stay
    as have every kind.
    """
    name = next((key for key in LAYER_COUNTS if key in config), LAYER_COUNTS[0])
    count = int(library.num_hidden_layers)
    by_layer = (*BY_LAYER, PATTERN)
    kinds = [tuple(_kind(config, key, place) for key in by_layer) for place in range(count)]
    first = sorted({kind: place for place, kind in reversed(list(enumerate(kinds)))}.values())
    more = [place for place in range(count) if place not in first]
    kept = sorted([*first, *more[: max(0, LAYERS - len(first))]])
    if not any(config.get(key) for key in by_layer):
        kept = list(range(min(count, max(LAYERS, _with_every_kind(library, count)))))
    lists: dict[str, Any] = {
        key: [config[key][i] for i in kept] for key in BY_LAYER if config.get(key)
    }
    if config.get(PATTERN):
        lists[PATTERN] = "".join(config[PATTERN][i] for i in kept)
    if config.get(TIMES):
        lists[TIMES] = [[[library.attention_layers[i] for i in kept], 1]]
    tokens = {key: None for key in TOKEN_IDS if key in config}
    dense = config.get("first_k_dense_replace")
    fewer = {"first_k_dense_replace": min(dense, 1)} if isinstance(dense, int) else {}
    size = {"vocab_size": min(config.get("vocab_size", VOCABULARY), VOCABULARY)}
    return config | lists | tokens | fewer | size | {name: len(kept), "pad_token_id": None}


def _with_every_kind(library: Any, count: int) -> int:
    """The number of first layers that have every kind that there is."""
    lists = [getattr(library, key, None) or () for key in BY_LAYER]
    kinds = list(zip(*(each for each in lists if len(each) == count), strict=True))
    return max((kinds.index(kind) + 1 for kind in kinds), default=1)


def _kind(config: dict[str, Any], key: str, place: int) -> object:
    values = config.get(key) or ()
    return values[place] if place < len(values) else None


def _narrow(config: dict[str, Any], sizes: dict[str, Any], times: int) -> dict[str, Any]:
    """The config with what is large of its sizes made smaller."""
    widths = {key: width * times if key in BY_HEADS else width for key, width in WIDTHS.items()}
    narrow = {
        key: width
        for key, width in widths.items()
        if isinstance(sizes.get(key), int) and sizes[key] > width
    }
    heads, groups = sizes.get("num_attention_heads"), sizes.get("num_key_value_heads")
    if isinstance(groups, int):
        narrow["num_key_value_heads"] = min(
            groups, times * (HEADS if groups == heads else HEADS // 2)
        )
    return config | narrow | _fewer_factors(config, _head_width(sizes), _head_width(sizes | narrow))


def _head_width(sizes: Mapping[str, Any]) -> int:
    """The features of a head; 0 if the sizes do not say."""
    width, heads = sizes.get("hidden_size"), sizes.get("num_attention_heads")
    if isinstance(own := sizes.get("head_dim"), int):
        return own
    return width // heads if isinstance(width, int) and isinstance(heads, int) and heads else 0


def _fewer_factors(config: Mapping[str, Any], width: int, narrow: int) -> dict[str, Any]:
    """The tables of rotary positions with factors for heads that are `narrow` instead of `width`.

    Longrope has a factor for each pair of a head's features.
    """

    def fewer(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: fewer(inner) for key, inner in value.items()}
        is_list = isinstance(value, list) and 0 < narrow < width
        return value[: max(1, len(value) * narrow // width)] if is_list else value

    return {key: fewer(config[key]) for key in ROPE if config.get(key)}
