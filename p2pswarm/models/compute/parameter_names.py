"""The names of a model's parameters: those of a file of weights, whatever the cut into stages.

Shapes:  as the blocks make them.
Errors:  as `blocks.py`.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import nn

from p2pswarm.models.base import WholeBlock
from p2pswarm.models.blocks import make_blocks
from p2pswarm.models.tying import shared_name, tied_in
from p2pswarm.settings.config import RunConfig
from p2pswarm.tensors.flat_layout import FlatLayout, Shape, flat_layout


def named_parameters(
    numbers: range, blocks: Sequence[nn.Module]
) -> Iterator[tuple[str, nn.Parameter]]:
    """The parameters of the blocks `numbers`, each once, with its full name.

    A block of a model that has names of its own says them. A tied tensor has one name, at whichever
    end of the model it is.
    """
    for _, name, parameter in placed_parameters(numbers, blocks):
        yield name, parameter


def placed_parameters(
    numbers: range, blocks: Sequence[nn.Module]
) -> Iterator[tuple[int, str, nn.Parameter]]:
    """As `named_parameters`, with the number of the block that has it, the first if two have."""
    seen: set[int] = set()
    for number, block in zip(numbers, blocks, strict=True):
        own, tied = tied_in(block) or ("", "")
        for name, parameter in block.named_parameters():
            if id(parameter) in seen:
                continue
            seen.add(id(parameter))
            if name == own:
                yield number, tied, parameter
            elif isinstance(block, WholeBlock):
                yield number, block.full_name(name), parameter
            else:
                yield number, f"blocks.{number}.{name}", parameter


def layout_of(run: RunConfig, numbers: range) -> FlatLayout:
    """How the state of the blocks `numbers` lies flat; no memory is made for it."""
    with torch.device("meta"):
        blocks = make_blocks(run, numbers)
    shapes: Iterator[tuple[str, Shape]] = (
        (name, tuple(parameter.shape)) for name, parameter in named_parameters(numbers, blocks)
    )
    return flat_layout(run.state_dtypes, shapes)


def shared_in(run: RunConfig, numbers: range) -> str | None:
    """The full name of the tensor that these blocks have in common with another stage, if any."""
    with torch.device("meta"):
        return shared_name(make_blocks(run, numbers))
