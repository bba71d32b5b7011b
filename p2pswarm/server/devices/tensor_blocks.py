"""Blocks whose tensors this device shares with others: its parts of parameters, and the exchanges.

Parameters are replaced by new ones of this device's part, so that the whole of one is never in its
memory. Modules that a plan names are run with what `collectives.py` exchanges around them.

Shapes:  as the blocks make them; parts by `tensor_split.py`.
Errors:  Unusable as `tensor_split.py`.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  torch's own name for it

from p2pswarm.models.tensor_plan import Style, TensorSplit
from p2pswarm.server.devices.collectives import DeviceTensors
from p2pswarm.server.devices.tensor_split import local_shape, plan_of, shared_block, span_of


@dataclass(frozen=True, slots=True)
class LocalParameter:
    """A parameter as this device has it."""

    parameter: nn.Parameter
    split: TensorSplit | None
    """None: it is whole on every device."""
    own_features: bool
    """Its gradient is a sum over the devices."""


def shared_blocks(
    blocks: Sequence[nn.Module], group: DeviceTensors, dtype: torch.dtype, device: torch.device
) -> list[LocalParameter]:
    """Make blocks, which have no memory yet, this device's part; their parameters in order.

    One parameter that two blocks have stays one.
    """
    found: dict[int, LocalParameter] = {}
    for block in blocks:
        shared = shared_block(block, plan_of(block) or {})
        for name, parameter in list(block.named_parameters(remove_duplicate=False)):
            split = shared.splits.get(name)
            local = found.get(id(parameter))
            if local is None:
                shape = tuple(parameter.shape)
                if split is not None:
                    shape = local_shape(split, shape, group.rank, group.ranks)
                made = nn.Parameter(torch.zeros(shape, dtype=dtype, device=device))
                local = LocalParameter(made, split, name in shared.own_features)
                found[id(parameter)] = local
            owner, _, last = name.rpartition(".")
            setattr(block.get_submodule(owner), last, local.parameter)
        for name, style in shared.styles.items():
            _exchange(block.get_submodule(name), style, group)
        for module in block.modules():
            if hasattr(module, "tensor_group"):
                setattr(module, "tensor_group", group)  # noqa: B010  torch types attributes
    return list(found.values())


def _exchange(module: Any, style: Style, group: DeviceTensors) -> None:
    """Run a module with the exchange that its style needs."""
    alone: Callable[..., Tensor] = module.forward
    match style:
        case Style.COLWISE:
            run = functools.partial(_colwise, alone, group)
        case Style.COLWISE_GATHERED:
            run = functools.partial(_gathered, alone, group, module.out_features)
        case Style.ROWWISE:
            run = functools.partial(_rowwise, module, group)
        case Style.ROWWISE_FROM_WHOLE:
            run = functools.partial(_from_whole, module, group)
        case Style.EMBEDDING:
            _renumber(module, group)
            run = functools.partial(group.look_up, alone, vocabulary=module.num_embeddings)
        case _:
            run = functools.partial(_experts, alone, group)
    module.forward = run


def _colwise(alone: Callable[..., Tensor], group: DeviceTensors, x: Tensor) -> Tensor:
    return alone(group.enter(x))


def _gathered(
    alone: Callable[..., Tensor], group: DeviceTensors, features: int, x: Tensor
) -> Tensor:
    return group.gather(alone(group.enter(x)), features)


def _rowwise(module: nn.Linear, group: DeviceTensors, x: Tensor) -> Tensor:
    made = group.leave(F.linear(x, module.weight))
    return made if module.bias is None else made + module.bias  # once, and not on each device


def _from_whole(module: nn.Linear, group: DeviceTensors, x: Tensor) -> Tensor:
    return _rowwise(module, group, group.scatter(x))


def _experts(
    alone: Callable[..., Tensor],
    group: DeviceTensors,
    x: Tensor,
    chosen: Tensor,
    weights: Tensor,
) -> Tensor:
    group.require_same(chosen, "experts")
    return group.leave(alone(group.enter(x), chosen, group.enter(weights)))


def _renumber(table: nn.Embedding, group: DeviceTensors) -> None:
    """Give the token without a gradient its number here; None where it is elsewhere."""
    start, stop = span_of(group.rank, group.ranks, table.num_embeddings)
    padding = table.padding_idx
    table.padding_idx = None
    if padding is not None and start <= padding < stop:
        table.padding_idx = padding - start
