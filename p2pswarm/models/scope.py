"""What of a run's model trains: all of it, all but what is frozen by name, or adapters.

What does not train is the run's base: no sum, no average, no moments and no checkpoint has it
(`models/base_weights/`).

Errors:  Unusable, with the remedy, for names and patterns that fit nothing.
"""

import fnmatch
from collections.abc import Iterator, Sequence

from torch import nn

from p2pswarm.base.errors import Unusable
from p2pswarm.models.adapters.adapter_targets import (
    LoraShapes,
    Target,
    is_trained,
    nearest,
    settled,
)
from p2pswarm.models.adapters.lora_modules import (
    LoraShape,
    add_to_embedding,
    add_to_linear,
    add_to_parameters,
    is_linear,
)
from p2pswarm.models.base import WholeBlock
from p2pswarm.models.formats.expert_matrices import EXPERTS, MATRIX
from p2pswarm.models.formats.product_modules import (
    pack_embedding,
    pack_linear,
    pack_parameters,
)
from p2pswarm.models.library.hf_library import conversion_of
from p2pswarm.models.weight_tying import tied_in
from p2pswarm.settings.adapter_config import AdapterConfig
from p2pswarm.settings.config import HF, RunConfig

APART = "set run.model.tie to false"  # embedding and head: two tensors that begin equal


def full_name(number: int, block: nn.Module, name: str) -> str:
    """The name in the whole model of a parameter of block `number`."""
    own, tied = tied_in(block) or ("", "")
    if name == own:
        return tied
    return block.full_name(name) if isinstance(block, WholeBlock) else f"blocks.{number}.{name}"


def is_frozen(run: RunConfig, name: str) -> bool:
    """Return whether a parameter of the model itself, by its full name, does not train."""
    if run.adapter is not None:
        return not is_trained(name, run.adapter.train)
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in run.frozen)


def set_scope(run: RunConfig, numbers: range, blocks: Sequence[nn.Module], count: int) -> None:
    """Freeze what is frozen of the blocks `numbers`, of `count`, and add their adapters."""
    for number, block in zip(numbers, blocks, strict=True):
        for name, parameter in block.named_parameters():
            parameter.requires_grad_(not is_frozen(run, full_name(number, block, name)))
    targets = list(possible_targets(blocks, numbers, count))
    if run.base != "full":
        _pack(targets)
    if run.adapter is not None:
        _add_adapters(run.adapter, targets)
        for block in blocks:
            if isinstance(block, WholeBlock) and run.adapter.dropout:
                block.random = True


def settled_scope(run: RunConfig, blocks: Sequence[nn.Module]) -> AdapterConfig | None:
    """The run's adapter with names for patterns; `blocks`: all of the model, none of them frozen.

    Unusable for a pattern that fits nothing, and for a tensor that cannot be frozen.
    """
    numbers = range(len(blocks))
    names = list(_names(numbers, blocks))
    for pattern in run.frozen:
        if not any(fnmatch.fnmatchcase(name, pattern) for name in names):
            raise Unusable(f"run.frozen: {pattern!r} matches nothing{nearest(pattern, names)}")
    tied = {ends[1] for block in blocks if (ends := tied_in(block)) is not None}
    for name in tied:
        _require_tied(run, name)
    if run.frozen and all(is_frozen(run, name) for name in names):
        raise Unusable("run.frozen leaves nothing to train: leave some of the model out of it")
    if run.adapter is None:
        return None
    kind = conversion_of(run.model.family) if run.model.family.startswith(HF) else ""
    targets = list(possible_targets(blocks, numbers, len(blocks)))
    found = settled(run.adapter, targets, names, kind)
    _require_no_end(found, blocks, targets)
    return found


def _require_no_end(
    adapter: AdapterConfig, blocks: Sequence[nn.Module], targets: Sequence[Target]
) -> None:
    """Raise Unusable for an adapter of one end of a tied model: merged, it would change both."""
    shapes_of = LoraShapes(adapter)
    ends = set()
    for block in blocks:
        if tied := tied_in(block):
            owner, _, own = tied[0].rpartition(".")
            ends.add((block.get_submodule(owner), own))
    for target in targets:
        if (target.module, target.parameter or "weight") in ends and shapes_of.of(target):
            raise Unusable(
                "run.adapter.targets: embedding and head are one tensor, and one end of it, "
                f"{target.name}, would have an adapter: leave it out, or {APART}"
            )


def _require_tied(run: RunConfig, name: str) -> None:
    """Raise Unusable where one end of a tied model would train otherwise than the other."""
    what, remedy = "embedding and head are one tensor", APART
    if run.adapter is not None and not is_frozen(run, name):
        raise Unusable(f"run.adapter.train: {what}, {name}, which cannot train alone: {remedy}")
    if run.adapter is None and is_frozen(run, name):
        raise Unusable(f"run.frozen: {what}, {name}, which cannot be frozen: {remedy}")


def _names(numbers: range, blocks: Sequence[nn.Module]) -> Iterator[str]:
    for number, block in zip(numbers, blocks, strict=True):
        for name, _ in block.named_parameters():
            yield full_name(number, block, name)


def _pack(targets: Sequence[Target]) -> None:
    """Have modules compute from packed weights, where those are frozen and large."""
    of_parameters: dict[nn.Module, list[str]] = {}
    for target in targets:
        module = target.module
        if module.get_parameter(target.parameter or "weight").requires_grad:
            continue
        if target.parameter:
            if target.linear or module.get_parameter(target.parameter).dim() == EXPERTS:
                of_parameters.setdefault(module, []).append(target.parameter)
        elif is_linear(module):
            pack_linear(module, quantised=target.linear)
        elif type(module) is nn.Embedding:
            pack_embedding(module)
    for module, names in of_parameters.items():
        pack_parameters(module, names)


def _add_adapters(adapter: AdapterConfig, targets: Sequence[Target]) -> None:
    of_parameters: dict[nn.Module, dict[str, LoraShape]] = {}
    shapes_of = LoraShapes(adapter)
    for target in targets:
        shape = shapes_of.of(target)
        whole = is_trained(target.name, adapter.train, module=not target.parameter)
        if shape is None or whole:
            continue
        if target.parameter:
            if shape.dropout:
                raise Unusable(
                    f"run.adapter.dropout: what {target.name} multiplies cannot be left out by "
                    "chance: set it to 0, or leave that target out"
                )
            of_parameters.setdefault(target.module, {})[target.parameter] = shape
        elif is_linear(target.module):
            add_to_linear(target.module, shape)
        else:
            add_to_embedding(target.module, shape)
    for module, shapes in of_parameters.items():
        add_to_parameters(module, shapes)


def possible_targets(blocks: Sequence[nn.Module], numbers: range, count: int) -> Iterator[Target]:
    """Everything in the blocks `numbers` of a model of `count` that can have an adapter."""
    for number, block in zip(numbers, blocks, strict=True):
        library = isinstance(block, WholeBlock)
        inner = 0 < number < count - 1
        for path, module in block.named_modules():
            name = _full(number, block, path)
            if is_linear(module):
                yield Target(name, module, linear=module is not block.head if library else inner)
            elif isinstance(module, nn.Embedding):
                yield Target(name, module)
            else:
                for own, parameter in module.named_parameters(recurse=False):
                    if MATRIX <= parameter.dim() <= EXPERTS:
                        matrix = not library and inner and parameter.dim() == MATRIX
                        full = _full(number, block, f"{path}.{own}" if path else own)
                        yield Target(full, module, own, linear=matrix)


def _full(number: int, block: nn.Module, name: str) -> str:
    """The name in the whole model of what has `name` in a block."""
    if isinstance(block, WholeBlock):
        return block.full_name(name)
    return f"blocks.{number}.{name}" if name else f"blocks.{number}"
