"""The rules for what a block may hold, so that its replicas stay alike and nothing of it is lost.

Sums are averaged and weights are downloaded; all else of a block is made by each server itself.
Memory of a block is made without its constructor. It begins as NaN, so that what neither
`reset_parameters` nor the library's own code fills is found and not guessed.
"""

from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.parameter import is_lazy

from p2pswarm.base.errors import Unusable
from p2pswarm.models.base import Block, WholeBlock


def unset(tensor: Tensor) -> Tensor:
    """Mark all elements as without a value: NaN, or the least whole number; returns the tensor."""
    with torch.no_grad():
        return tensor.fill_(_mark(tensor))


def is_unset(tensor: Tensor) -> bool:
    """Return whether an element still has no value."""
    if tensor.is_floating_point():
        return bool(tensor.isnan().any())
    signed = tensor.dtype.is_signed
    return signed and bool((tensor == _mark(tensor)).any())


def _mark(tensor: Tensor) -> float:
    if tensor.is_floating_point():
        return float("nan")
    return torch.iinfo(tensor.dtype).min if tensor.dtype.is_signed else 0  # of these none is odd


KNOWN = frozenset(vars(nn.Module()))
"""Where torch itself keeps what a module has."""
DEPTH_MAX = 2  # of lists and tables in a module: deeper ones are nobody's


def require_sizes(number: int, block: nn.Module) -> None:
    """Raise Unusable for parameters whose size is not known, or that have no element."""
    for name, parameter in block.named_parameters():
        if is_lazy(parameter):
            raise Unusable(
                f"{named(number, block)}: {name} has no size before a first forward: make it with "
                "its sizes"
            )
        if not parameter.numel():
            raise Unusable(f"{named(number, block)}: {name} has no element: leave it out")


def require_trainable(
    number: int, block: nn.Module, frozen: Callable[[str], bool] = lambda _: False
) -> None:
    """Raise Unusable for state that averaging would lose, or that would not train.

    `frozen`: whether the run says so of a parameter.
    """
    what = named(number, block)
    require_sizes(number, block)
    _require_constant_buffers(what, block)
    for module in block.modules():
        own = list(module.parameters(recurse=False))
        if own and reset_of(module) is None and not isinstance(block, Block):
            raise Unusable(
                f"{what}: {type(module).__name__} has parameters and no reset_parameters(): give "
                "it one, for the first weights"
            )
    if not isinstance(block, WholeBlock):
        known = {id(x) for x in (*block.modules(), *block.parameters(), *block.buffers())}
        for module in block.modules():
            _require_known(what, module, known)
    for name, parameter in block.named_parameters():
        if not parameter.requires_grad and not frozen(name):
            raise Unusable(
                f"{what}: {name} does not train: name it in run.frozen, or make it a buffer, "
                "persistent=False"
            )
        if not parameter.is_floating_point():
            raise Unusable(
                f"{what}: {name} is {parameter.dtype}, and weights are real numbers: make it two "
                "parameters, torch.complex(one, other)"
            )


def reset_of(module: nn.Module) -> Callable[[], object] | None:
    """The method by which a module of torch draws its own parameters, if it has one."""
    found = getattr(module, "reset_parameters", None) or getattr(module, "_reset_parameters", None)
    return found if callable(found) else None


def named(number: int, block: nn.Module) -> str:
    """A block, as errors call it."""
    return f"block {number} ({type(block).__name__})"


def _require_constant_buffers(what: str, block: nn.Module) -> None:
    kept = block.state_dict().keys() & {name for name, _ in block.named_buffers()}
    if not kept:
        return
    if any(
        isinstance(module, _NormBase) and module.track_running_stats for module in block.modules()
    ):
        raise Unusable(
            f"{what} has the buffer {min(kept)}, which would not be averaged: a norm over rows "
            "keeps no statistics with track_running_stats=False; nn.LayerNorm needs none"
        )
    raise Unusable(
        f"{what} has the buffer {min(kept)}, which would not be averaged: register it with "
        "persistent=False if it is a constant"
    )


def _require_known(what: str, module: nn.Module, known: AbstractSet[int]) -> None:
    """Raise Unusable for tensors and modules of which torch does not have the id in `known`."""
    for name, value in vars(module).items():
        if name in KNOWN:
            continue
        for part in _parts(value, 0):
            if id(part) in known:
                continue
            if isinstance(part, nn.Module):
                raise Unusable(
                    f"{what}: {name} holds modules that torch does not know to be there: make it "
                    "an nn.ModuleList or nn.ModuleDict"
                )
            if part.is_meta or part.requires_grad:
                raise Unusable(
                    f"{what}: {name} is a tensor, but no parameter and no buffer: make it a "
                    "parameter if it trains, else register_buffer(..., persistent=False)"
                )


def _parts(value: object, depth: int) -> Iterator[Tensor | nn.Module]:
    """The tensors and modules in a value, also in lists and tables."""
    if isinstance(value, Tensor | nn.Module):
        yield value
    elif isinstance(value, list | tuple | dict) and depth < DEPTH_MAX:
        for each in value.values() if isinstance(value, dict) else value:
            yield from _parts(each, depth + 1)
