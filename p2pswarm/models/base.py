"""The parts of every model family: blocks, bundles between them, and the loss of the last one.

Shapes:  B rows, T tokens a row, V vocabulary.
"""

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from p2pswarm.models.attention.document_attention import WHOLE_ROWS, TokenGroup
from p2pswarm.models.tensor_plan import ONE_DEVICE, TensorGroup

Bundle = dict[str, Tensor]
"""What a block gives to the next one: named tensors in a fixed order."""
Value = Tensor | Bundle
LONE_KEY = "x"
"""The key of a block's lone tensor in its bundle."""
TOKENS = "(tokens)"
"""The key of a row's tokens, where a block far above needs them."""
POSITION_KEY = "(position)"
"""The key of each token's position in its document, where documents are kept apart."""
BESIDE = frozenset({TOKENS, POSITION_KEY})
"""What passes from block to block and never travels: each stage makes it of its tokens."""


class Block(nn.Module, ABC):
    """A block that draws its own first weights, and may have a `cost`."""

    tied: tuple[str, str] | None = None
    """The tensor that both ends of a tied model share: its name here, and in the model."""
    width: int
    """The features of a row between blocks, if it says them."""
    tensor_group: TensorGroup = ONE_DEVICE
    """The devices that share this block's tensors (`tensor_plan.py`)."""
    token_group: TokenGroup = WHOLE_ROWS
    """The devices that share a row's tokens, where documents are told apart."""

    @abstractmethod
    def draw(self, generator: torch.Generator) -> None:
        """Fill the parameters; `normal_` and `uniform_` give the same bits everywhere."""

    def trace(self, value: Value) -> Value:
        """Give what `forward` gives, in shape, on the meta device.

        Torch imports its compiler for most operations there: a second of a node's start.
        """
        traced: Value = self(value)
        return traced


class WholeBlock(Block):
    """A block of a model that has names, and ways to make buffers, of its own."""

    random: bool
    """True if its forward draws (`dropout.py`)."""
    frozen: frozenset[str] = frozenset()
    """The parameters that no gradient trains: they stay as files of weights have them."""
    tables: frozenset[str] = frozenset()
    """Matrices with a row for each token: AdamW's also where matrices are Muon's."""
    ignored: tuple[str, ...] = ()
    """What else files of weights may hold, as regular expressions for names."""

    @property
    def head(self) -> nn.Module | None:
        """Return what makes scores, if this is the last block."""
        return None

    @abstractmethod
    def full_name(self, name: str) -> str:
        """The name that a parameter has in a file of the model's weights."""

    @abstractmethod
    def draw_name(self, name: str) -> str:
        """The name that a parameter's first values are drawn by."""

    @abstractmethod
    def published_names(self, name: str) -> tuple[str, ...]:
        """The names in the whole model of what files may have for a parameter, its own first."""

    @abstractmethod
    def fill_buffers(self, device: torch.device) -> None:
        """Make the buffers of a block that was made on the meta device."""


def trains(block: nn.Module) -> bool:
    """Return whether some of a block's parameters train."""
    return any(parameter.requires_grad for parameter in block.parameters())


def traced_through(block: nn.Module, x: Tensor) -> Tensor:
    """A value of the shape of `x` that depends on it, and on what trains in a block.

    It is no product of both: torch would load its compiler for one on the meta device.
    """
    grows = trains(block) and not x.requires_grad
    return x.new_empty(x.shape, requires_grad=True) if grows else x


def bundle_of(value: Value) -> Bundle:
    """Return what a block gave, as a bundle."""
    return {LONE_KEY: value} if isinstance(value, Tensor) else value
