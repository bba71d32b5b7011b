"""Blocks whose tensors this device shares with others: its parts of parameters, and the exchanges.

Parameters are replaced by new ones of this device's part, so that the whole of one is never in its
memory. Modules that a plan names are run with an exchange around them. Four exchanges join what all
have to what each has. In the backward each is its opposite:

    enter    whole -> own      backward: the sum of all devices' gradients
    leave    own -> the sum    backward: the gradient as it is
    gather   parts -> whole    backward: this device's part
    scatter  whole -> a part   backward: the parts of all

All devices must ask for the same, in the same order.

Shapes:  as the blocks make them; parts by `tensor_split.py`. Features are the last dimension. B
         rows, T tokens, V vocabulary, v of it here.
Errors:  Unusable as `tensor_split.py`; ValueError where devices chose other experts than the first,
         and for scores of other tokens than a device has; those of torch.
Source:  Shoeybi et al., "Megatron-LM" (arXiv 1909.08053), 3.
"""
# ruff: noqa: D102, N803, N806  `TensorGroup` documents methods; shapes end the names

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

from p2pswarm.models.losses.cross_entropy import NO_LABEL
from p2pswarm.models.tensor_plan import Style, TensorSplit
from p2pswarm.server.devices.tensor_split import local_shape, plan_of, shared_block, span_of


class DeviceTensors:
    """Implements `TensorGroup` with torch's collectives, for the process of one device."""

    def __init__(self, rank: int, ranks: int) -> None:
        self.rank, self.ranks = rank, ranks
        self._entered: tuple[Tensor, Tensor] | None = None
        """The last that entered, as it was and as it is within."""

    def enter(self, x: Tensor) -> Tensor:
        """A tensor that enters several layers is added up once."""
        if not (x.requires_grad and torch.is_grad_enabled()):
            return x  # no gradient comes back
        if self._entered is not None and self._entered[0] is x:
            return self._entered[1]
        entered = cast("Tensor", _Enter.apply(x))  # type: ignore[no-untyped-call]
        self._entered = x, entered
        return entered

    def forget(self) -> None:
        """Hold no graph after a forward or a backward."""
        self._entered = None

    def leave(self, x: Tensor) -> Tensor:
        return cast("Tensor", _Leave.apply(x))  # type: ignore[no-untyped-call]

    def gather(self, x: Tensor, features: int) -> Tensor:
        """All of the features, of which each device made its part."""
        return cast("Tensor", _Gather.apply(x, self, features))  # type: ignore[no-untyped-call]

    def scatter(self, x: Tensor) -> Tensor:
        """This device's part of the features."""
        return cast("Tensor", _Scatter.apply(x, self))  # type: ignore[no-untyped-call]

    def look_up(self, table: Callable[[Tensor], Tensor], ids: Tensor, vocabulary: int) -> Tensor:
        start, stop = span_of(self.rank, self.ranks, vocabulary)
        elsewhere = (ids < start) | (ids >= stop)
        made = table((ids - start).clamp(0, stop - start - 1))  # all but one device add zeros
        return self.leave(made.masked_fill(elsewhere.unsqueeze(-1), 0.0))

    def nats(self, scores_BTv: Tensor, labels_BT: Tensor, vocabulary: int) -> Tensor:
        """`losses.cross_entropy.nats_of`, of scores of which each device has a part."""
        start, stop = span_of(self.rank, self.ranks, vocabulary)
        if scores_BTv.shape[-1] != stop - start:
            raise ValueError(f"scores of {scores_BTv.shape[-1]} tokens; {stop - start} are due")
        elsewhere = (labels_BT < start) | (labels_BT >= stop)
        highest_BT1 = scores_BTv.detach().amax(-1, keepdim=True)
        dist.all_reduce(highest_BT1, dist.ReduceOp.MAX)
        shifted_BTv = scores_BTv - highest_BT1
        index_BT = (labels_BT - start).clamp(0, stop - start - 1)
        own_BT = shifted_BTv.gather(-1, index_BT.unsqueeze(-1)).squeeze(-1)
        target_BT = self.leave(own_BT.masked_fill(elsewhere, 0.0))
        total_BT = self.leave(shifted_BTv.exp().sum(-1))
        return (total_BT.log() - target_BT).masked_fill(labels_BT == NO_LABEL, 0.0).sum()

    def require_same(self, x: Tensor, what: str) -> None:
        """Raise ValueError unless this device has what the first has."""
        first = x.detach().clone(memory_format=torch.contiguous_format)
        dist.broadcast(first, 0)
        if not torch.equal(first, x):
            raise ValueError(
                f"the devices chose other {what} for a token: devices that share tensors have to "
                'be alike; set serve.parallel to "rows"'
            )

    def gathered(self, x: Tensor, features: int) -> Tensor:
        """Without a graph: the parts of all, side by side."""
        spans = [span_of(rank, self.ranks, features) for rank in range(self.ranks)]
        sizes = [stop - start for start, stop in spans]
        padded = x.new_zeros((*x.shape[:-1], max(sizes)))  # collectives want equal sizes
        padded[..., : x.shape[-1]] = x
        parts = [torch.empty_like(padded) for _ in sizes]
        dist.all_gather(parts, padded)
        return torch.cat([part[..., :size] for part, size in zip(parts, sizes, strict=True)], -1)

    def part(self, x: Tensor) -> Tensor:
        """Without a graph: this device's part of the features."""
        start, stop = span_of(self.rank, self.ranks, x.shape[-1])
        return x[..., start:stop].contiguous()


def _summed(x: Tensor) -> Tensor:
    """The sum over all devices, in new memory: others may hold `x`."""
    total = x.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total)
    return total


class _Enter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        del ctx
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        del ctx
        return _summed(gradients[0])


class _Leave(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        del ctx
        return _summed(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        del ctx
        return gradients[0]


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: DeviceTensors, features: int) -> Tensor:
        ctx.group = group
        return group.gathered(x, features)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return ctx.group.part(gradients[0]), None, None


class _Scatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: DeviceTensors) -> Tensor:
        ctx.group, ctx.features = group, x.shape[-1]
        return group.part(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return ctx.group.gathered(gradients[0], ctx.features), None


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
    """Make blocks, which have no memory yet, this device's part; their parameters, each once."""
    found: dict[int, LocalParameter] = {}
    for block in blocks:
        shared = shared_block(block, plan_of(block) or {})
        for name, parameter in list(block.named_parameters(remove_duplicate=False)):
            if not parameter.requires_grad:
                continue  # what is frozen is bound apart
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
            module.forward = lambda x: alone(group.enter(x))
        case Style.COLWISE_GATHERED:
            features = module.out_features
            module.forward = lambda x: group.gather(alone(group.enter(x)), features)
        case Style.ROWWISE:
            module.forward = functools.partial(_rowwise, module, alone, group)
        case Style.ROWWISE_FROM_WHOLE:
            module.forward = lambda x: _rowwise(module, alone, group, group.scatter(x))
        case Style.EMBEDDING:
            _renumber(module, group)
            look_up = functools.partial(group.look_up, alone, vocabulary=module.num_embeddings)
            module.forward = look_up
        case _:
            module.forward = functools.partial(_experts, alone, group)


def _rowwise(
    module: nn.Linear, alone: Callable[..., Tensor], group: DeviceTensors, x: Tensor
) -> Tensor:
    bias = module._parameters["bias"]  # noqa: SLF001  added once, and not on each device
    module._parameters["bias"] = None  # noqa: SLF001
    try:
        made = group.leave(alone(x))
    finally:
        module._parameters["bias"] = bias  # noqa: SLF001
    return made if bias is None else made + bias


def _experts(
    alone: Callable[..., Tensor], group: DeviceTensors, x: Tensor, chosen: Tensor, weights: Tensor
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
