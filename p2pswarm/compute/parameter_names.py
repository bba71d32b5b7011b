"""The names of a model's parameters: those of a file of weights, whatever the cut into stages.

Shapes:  as the blocks make them.
Errors:  as `blocks.py`.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import nn

from p2pswarm.config import RunConfig
from p2pswarm.models.base import WholeBlock
from p2pswarm.models.blocks import make_blocks
from p2pswarm.tensors.flat_layout import FlatLayout, Shape, flat_layout


def named_parameters(
    numbers: range, blocks: Sequence[nn.Module]
) -> Iterator[tuple[str, nn.Parameter]]:
    """The parameters of the blocks `numbers`, each once, with its full name.

    A block of a model that has names of its own says them.
    """
    for number, block in zip(numbers, blocks, strict=True):
        for name, parameter in block.named_parameters():
            if isinstance(block, WholeBlock):
                yield block.full_name(name), parameter
            else:
                yield f"blocks.{number}.{name}", parameter


def layout_of(run: RunConfig, numbers: range) -> FlatLayout:
    """How the state of the blocks `numbers` lies flat; no memory is made for it."""
    with torch.device("meta"):
        blocks = make_blocks(run, numbers)
    shapes: Iterator[tuple[str, Shape]] = (
        (name, tuple(parameter.shape)) for name, parameter in named_parameters(numbers, blocks)
    )
    return flat_layout(run.state_dtypes, shapes)
