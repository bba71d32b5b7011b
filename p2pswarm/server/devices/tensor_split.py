"""The rule for the part of each parameter that a device has where a stage's tensors are shared.

A parameter is cut along one dimension, in each of its parts, by what must stay whole (heads). Parts
of a matrix that gives features and of one that takes them are cut alike.

Units:   elements along a dimension.
Shapes:  as the blocks make them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import nn

from p2pswarm.base.errors import Unusable
from p2pswarm.models.adapters.lora_modules import LoraEmbedding, LoraLinear, LoraParameters
from p2pswarm.models.base_weights.base_layout import base_tensors
from p2pswarm.models.blocks import make_blocks, stage_blocks
from p2pswarm.models.dropout import draws
from p2pswarm.models.formats.product_modules import own_kind
from p2pswarm.models.formats.weight_formats import TensorCut
from p2pswarm.models.hf_model import BY_ROWS
from p2pswarm.models.tensor_plan import Style, TensorPlan, TensorShare, TensorSplit
from p2pswarm.server.devices.row_split import REMEDY, who_draws
from p2pswarm.settings.config import RunConfig

OUT, IN = -2, -1
"""The dimensions of a weight; those before them count experts."""
GIVES = frozenset({Style.COLWISE, Style.COLWISE_GATHERED, Style.PACKED_COLWISE})
TAKES = frozenset({Style.ROWWISE, Style.ROWWISE_FROM_WHOLE})
LINEAR = GIVES | TAKES
PACKED = 2  # gate and up


@dataclass(slots=True)
class SharedBlock:
    """The plan of a block for its parameters and its modules."""

    splits: dict[str, TensorSplit] = field(default_factory=dict)
    """By the names of parameters; the others are whole on every device."""
    own_features: set[str] = field(default_factory=set)
    """Parameters that are whole and whose gradient is a sum over the devices."""
    styles: dict[str, Style] = field(default_factory=dict)
    """By the names of modules that are run with an exchange."""


def span_of(rank: int, ranks: int, count: int) -> tuple[int, int]:
    """From where to where a device's part of `count` things goes; in order, as equal as can be."""
    return rank * count // ranks, (rank + 1) * count // ranks


def spans_of(split: TensorSplit, size: int, rank: int, ranks: int) -> list[tuple[int, int]]:
    """A device's part of a dimension of `size`: from where to where, once in each packed part."""
    each = size // split.parts
    start, stop = span_of(rank, ranks, each)
    return [(part * each + start, part * each + stop) for part in range(split.parts)]


def local_shape(split: TensorSplit, shape: Sequence[int], rank: int, ranks: int) -> tuple[int, ...]:
    """The shape of a device's part of a parameter."""
    spans = spans_of(split, shape[split.dim], rank, ranks)
    local = list(shape)
    local[split.dim] = sum(stop - start for start, stop in spans)
    return tuple(local)


def shared_block(block: nn.Module, plan: TensorPlan) -> SharedBlock:
    """The meaning of a plan; Unusable for names that the block lacks, and others' layers."""
    modules, parameters = dict(block.named_modules()), dict(block.named_parameters())
    found = SharedBlock()
    for name, entry in plan.items():
        if isinstance(entry, TensorSplit):
            if name not in parameters:
                raise Unusable(f"tensor_plan: {_kind(block)} has no parameter {name!r}: {BY_ROWS}")
            found.splits[name] = entry
        elif name in modules:
            _share_module(found, name, modules[name], entry)
        elif name in parameters:
            _share_parameter(found, name, parameters[name], entry)
        else:
            raise Unusable(f"tensor_plan: {_kind(block)} has no {name!r}: {BY_ROWS}")
    _share_adapters(found, block)
    return found


def _share_factors(found: SharedBlock, place: str, split: TensorSplit) -> None:
    """The factors of an adapter at `place`, of a matrix that is split.

    The features that a device makes are its rows of B, and those that it takes its columns of A.
    The other factor is whole, and each device has a part of its gradient.
    """
    whole, cut = ("lora_A", "lora_B") if split.dim == OUT else ("lora_B", "lora_A")
    found.splits[f"{place}.{cut}.weight".removeprefix(".")] = split
    found.own_features.add(f"{place}.{whole}.weight".removeprefix("."))


def _share_adapters(found: SharedBlock, block: nn.Module) -> None:
    """The factors of adapters of parameters that modules multiply by themselves."""
    for path, module in block.named_modules():
        if not isinstance(module, LoraParameters):
            continue
        for name, place in module.lora_places:
            split = found.splits.get(f"{path}.{name}".removeprefix("."))
            if split is None:
                continue
            dim = split.dim if split.dim < 0 else split.dim - module.get_parameter(name).dim()
            if dim not in (OUT, IN) or getattr(module, "is_transposed", False):
                raise Unusable(
                    f"the adapter of {name} of {_kind(module)} cannot be shared by tensors: "
                    f"{BY_ROWS}, or leave that target out"
                )
            _share_factors(
                found, f"{path}.{place}".strip("."), TensorSplit(dim, split.parts, split.units)
            )


def cuts_of(
    block: nn.Module, splits: Mapping[str, TensorSplit], rank: int, ranks: int
) -> dict[str, TensorCut]:
    """The parts of parameters that a device has."""
    found = {}
    for name, split in splits.items():
        shape = block.get_parameter(name).shape
        spans = spans_of(split, shape[split.dim], rank, ranks)
        found[name] = TensorCut(split.dim, tuple(spans))
    return found


def _require_cuts(
    run: RunConfig, block: nn.Module, splits: Mapping[str, TensorSplit], ranks: int
) -> None:
    """Raise Unusable for a frozen matrix whose format does not cut where the plan does."""
    if not run.has_base:
        return
    cuts = [cuts_of(block, splits, rank, ranks) for rank in range(ranks)]
    for tensor in base_tensors(run, block):
        shape, grain = tensor.shape, tensor.format.grain
        own = [each[tensor.name] for each in cuts if tensor.name in each]
        if not all(cut.fits(shape, grain) for cut in own):
            raise Unusable(
                f"{tensor.name} is {list(shape)}, of which {ranks} devices would have parts that "
                f"are no multiples of {grain}, to which {run.base} gives a scale: {BY_ROWS}, or "
                'run.base to "int8"'
            )


def require_shareable(run: RunConfig, stage: int, ranks: int) -> None:
    """Raise Unusable for a stage whose tensors `ranks` devices cannot share."""
    with torch.device("meta"):
        blocks = make_blocks(run, stage_blocks(run, stage))
    if run.model.router_loss:
        raise Unusable(f"run.model.router_loss is for one device a server: {REMEDY}")
    for number, block in zip(stage_blocks(run, stage), blocks, strict=True):
        plan = plan_of(block)
        if draws(block):
            raise Unusable(
                f"{who_draws(run)} for whole tensors, not for parts of them: set it to 0, or "
                f"{REMEDY}"
            )
        if plan is None:
            raise Unusable(
                f"block {number} ({_kind(block)}) has no tensor_plan, which says how devices share "
                f"its tensors: {BY_ROWS}"
            )
        splits = shared_block(block, plan).splits
        for name, split in splits.items():
            _require_parts(name, split, tuple(block.get_parameter(name).shape), ranks)
        _require_cuts(run, block, splits, ranks)


def plan_of(block: nn.Module) -> TensorPlan | None:
    """The plan that a block declares; one without parameters needs none."""
    declared: TensorPlan | None = getattr(block, "tensor_plan", None)
    if declared is None and not any(True for _ in block.parameters()):
        return {}
    return declared


def _require_parts(name: str, split: TensorSplit, shape: tuple[int, ...], ranks: int) -> None:
    """Raise Unusable unless every device gets something, and no unit in two parts."""
    size = shape[split.dim] if -len(shape) <= split.dim < len(shape) else 0
    each, rest = divmod(size, split.parts)
    if rest or (split.units and each % split.units):
        raise Unusable(
            f"tensor_plan: {name} is {list(shape)}, which is not {split.parts} x {split.units} "
            f"along dimension {split.dim}: {BY_ROWS}"
        )
    if split.units % ranks or each < ranks:
        raise Unusable(
            f"{name} has {split.units or each} {'heads' if split.units else 'features'}, which "
            f"{ranks} devices cannot share equally: {BY_ROWS}, or name another number of devices"
        )


def _share_module(found: SharedBlock, name: str, module: nn.Module, share: TensorShare) -> None:
    if share.style in LINEAR:
        if own_kind(module) is not nn.Linear:
            raise Unusable(
                f"tensor_plan: {name} is {_kind(module)}, and {share.style} is for nn.Linear: "
                f"{BY_ROWS}"
            )
        given = share.style in GIVES
        parts = PACKED if share.style is Style.PACKED_COLWISE else 1
        split = TensorSplit(OUT if given else IN, parts, share.units)
        found.splits[f"{name}.weight"] = split
        if isinstance(module, LoraLinear):
            _share_factors(found, name, split)
        if given and module.bias is not None:
            found.splits[f"{name}.bias"] = TensorSplit(IN, parts, share.units)
    elif share.style is Style.EMBEDDING:
        if not isinstance(module, nn.Embedding):
            raise Unusable(f"tensor_plan: {name} is {_kind(module)}, no nn.Embedding: {BY_ROWS}")
        found.splits[f"{name}.weight"] = TensorSplit(OUT)
        if isinstance(module, LoraEmbedding):
            found.splits[f"{name}.lora_embedding_A"] = TensorSplit(IN)
            found.own_features.add(f"{name}.lora_embedding_B")
    elif share.style is Style.OWN_FEATURES:
        found.own_features.update(f"{name}.{own}" for own, _ in module.named_parameters())
        return
    found.styles[name] = share.style


def _share_parameter(
    found: SharedBlock, name: str, parameter: nn.Parameter, share: TensorShare
) -> None:
    """A parameter of a module that is run as it is."""
    if share.style in GIVES:
        parts = PACKED if share.style is Style.PACKED_COLWISE else 1
        found.splits[name] = TensorSplit(max(OUT, -parameter.dim()), parts, share.units)
    elif share.style in TAKES:
        found.splits[name] = TensorSplit(IN, 1, share.units)
    elif share.style is Style.OWN_FEATURES:
        found.own_features.add(name)
    else:
        raise Unusable(f"tensor_plan: {name} is a parameter, and {share.style} is not: {BY_ROWS}")


def _kind(module: nn.Module) -> str:
    return type(module).__name__
