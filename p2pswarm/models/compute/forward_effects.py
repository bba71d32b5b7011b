"""What a block's forward may not do: change what it holds, or give another bundle than its trace.

Replicas of a stage hold the same weights and constants, and only the optimizer changes them.

Shapes:  N elements in a stage.
Errors:  Unusable for a block that does it; Refused for a bundle that the next stage would not take.
"""
# ruff: noqa: N803  shapes are written at the end of names

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from p2pswarm.base.errors import Refused, Unusable
from p2pswarm.models.base import Bundle
from p2pswarm.models.compute.bundle_spec import boundary_above
from p2pswarm.models.compute.flat_parameters import FlatParameters
from p2pswarm.models.compute.parameter_names import named_parameters
from p2pswarm.settings.config import RunConfig

CHANGED_BUFFER = (
    "its forward changes, and machines that hold the same stage would differ: make it a parameter, "
    "or compute it from the input"
)
DRAWN_BUFFER = (
    "is drawn by chance, and machines that hold the same stage would differ: make it a parameter, "
    "or draw it by a torch.Generator with a seed"
)


def buffers_of(blocks: Sequence[nn.Module]) -> dict[str, Tensor]:
    """A copy of each buffer, by its block and name."""
    return {
        f"{number} ({type(block).__name__}): {name}": buffer.clone()
        for number, block in enumerate(blocks)
        for name, buffer in block.named_buffers()
    }


def require_same(before: dict[str, Tensor], after: dict[str, Tensor], why: str) -> None:
    """Raise Unusable if a buffer is not the same: replicas would differ."""
    for name, buffer in before.items():
        if name not in after or not torch.equal(buffer, after[name]):
            raise Unusable(f"block {name} is a buffer that {why}")


def require_weights(flat: FlatParameters, before_N: Tensor) -> None:
    """Raise Unusable if a forward or a backward has changed a weight."""
    names = (name for name, _ in named_parameters(flat.numbers, flat.blocks))
    for name, place in zip(names, flat.segments, strict=True):
        now, before = (x[place.start : place.stop] for x in (flat.params_N, before_N))
        if not torch.equal(now, before):
            raise Unusable(
                f"a forward changes the weights {name}, and machines that hold the same stage "
                "would differ: only the optimizer may (nn.Embedding: leave max_norm out)"
            )


def require_as_traced(run: RunConfig, stage: int, bundle: Bundle) -> None:
    """Raise Refused for a bundle that the next stage would not take."""
    above = boundary_above(run, stage)
    for each in above.tensors if above else ():
        x = bundle[each.key]
        if (x.dtype, tuple(x.shape)) != (each.dtype, each.shape):
            raise Refused(
                f"stage {stage} gives {each.key} as {x.dtype} {tuple(x.shape)}, and "
                f"{each.dtype} {each.shape} when it is traced: its shape may not depend on numbers"
            )
