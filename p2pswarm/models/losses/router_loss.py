"""The loss that balances the routers of a mixture of experts.

Without it routers learn from the scores alone, and may send most tokens to a few experts. A layer's
loss is the number of experts E times the sum over experts of the share of tokens that chose the
expert times its mean probability: 1 times the experts a token takes where all are equal.

The library sums tokens of all layers before it multiplies. That needs all layers in one place, so
here each layer has a loss of its own, as in the source, and the mean over layers counts. A
microbatch weighs as much as it has targets (docs/training.md).

The gradient enters where the layer gives what it has made: so a graph that is made again, and one
that is cut into stages, have it too, and nobody has to hand a second loss on.

Shapes:  logits_NE of N tokens for E experts.
Source:  Fedus, Zoph and Shazeer, "Switch Transformers", arXiv 2101.03961, equation 4.
"""
# ruff: noqa: N803, N806  shapes are written at the end of names

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar, cast

import torch
from torch import Tensor, nn

from p2pswarm.base.errors import Unusable

LOGITS = "router_logits"
Value = TypeVar("Value")


class _Beside(torch.autograd.Function):
    """Passes a value on; a loss beside it gets a gradient as if it were added, times a weight."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, loss: Tensor, weight: float) -> Tensor:
        ctx.save_for_backward(loss)
        ctx.weight = weight
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        (loss,) = ctx.saved_tensors
        return gradients[0], torch.full_like(loss, ctx.weight), None


def balance_of(logits_NE: Tensor, chosen: int) -> Tensor:
    """How unequally N tokens choose `chosen` of E experts each; `chosen` where all are equal."""
    experts = logits_NE.shape[-1]
    chance_NE = logits_NE.softmax(dim=-1, dtype=torch.promote_types(logits_NE.dtype, torch.float32))
    place_NK = chance_NE.topk(chosen, dim=-1).indices
    counts_E = torch.bincount(place_NK.flatten(), minlength=experts).to(chance_NE.dtype)
    return experts * (counts_E / len(chance_NE) * chance_NE.mean(dim=0)).sum()


class Routers(NamedTuple):
    """What a model's routers are."""

    kind: type
    place: int
    """Of the logits in what a router gives."""
    share: float
    """The weight of each router's loss in that of the model."""
    chosen: int
    """How many experts a token takes."""


class RouterLoss:
    """The routers of one block, and what they say in its forward."""

    def __init__(self, modules: Sequence[nn.Module], routers: Routers) -> None:
        self.weight = 0.0
        """Of the microbatch that is computed; 0: no gradient is taken."""
        self._routers = routers
        self._logits: list[Tensor] = []
        for module in modules:
            module.register_forward_hook(self._hear)

    @classmethod
    def of(cls, inner: nn.Module, routers: Routers) -> "RouterLoss | None":
        """The routers inside; None without any."""
        found = [module for module in inner.modules() if isinstance(module, routers.kind)]
        return cls(found, routers) if found else None

    def run(self, weight: float, block: Callable[[Value], Value], value: Value) -> Value:
        """Run the block for a microbatch of this weight."""
        self.weight, self._logits = weight, []  # a forward that failed may have left some
        try:
            return block(value)
        finally:
            self.weight = 0.0

    def beside(self, x: Tensor) -> Tensor:
        """What the block gives, whose gradient brings that of its routers along."""
        said, self._logits = self._logits, []
        for logits in said:
            loss = balance_of(logits.flatten(0, -2), self._routers.chosen)
            made = _Beside.apply(x, loss, self.weight * self._routers.share)  # type: ignore[no-untyped-call]
            x = cast("Tensor", made)
        return x

    def _hear(self, module: nn.Module, given: object, made: Any) -> None:
        del module, given
        if self.weight and torch.is_grad_enabled():
            several = isinstance(made, tuple | list)
            self._logits.append(made[self._routers.place] if several else made)


def routers_of(whole: Any, family: str) -> Routers:
    """The routers of a model; Unusable without any, or without a weight in its config."""
    core = getattr(whole, "model", whole)
    recorded = getattr(core, "_can_record_outputs", None) or {}
    found, config = recorded.get(LOGITS), whole.config
    found = found[0] if isinstance(found, list | tuple) else found
    kind, index = getattr(found, "target_class", None), getattr(found, "index", 0)
    coefficient = getattr(config, "router_aux_loss_coef", None)
    chosen = getattr(config, "num_experts_per_tok", None) or getattr(config, "top_k", None)
    routers = [module for module in whole.modules() if kind and isinstance(module, kind)]
    if not routers or not coefficient or not chosen:
        raise Unusable(
            f"run.model.router_loss: {family} has no routers whose loss the library weighs: leave "
            "it out"
        )
    assert isinstance(kind, type), "it has instances"
    return Routers(kind, int(index), float(coefficient) / len(routers), int(chosen))
