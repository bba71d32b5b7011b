"""How the parameters of a stage lie in one flat buffer.

Every parameter starts at a multiple of `ALIGN`; the gaps are zero. A stage has three such buffers:
weights, first moments and second moments; a fourth for an average of the weights, if the run has
one. One after another they are its state.

Units:   elements of the run's dtype; `_bytes` where bytes are meant.
Shapes:  N elements in a buffer.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

ALIGN = 16  # elements: 64 bytes of float32, a cache line
STATE_TENSORS = 3  # weights, first and second moments
ITEM_BYTES = {"float32": 4, "float64": 8}

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class FlatTensor:
    """The place of one parameter in a flat buffer."""

    name: str
    """Its full name in the model, such as `blocks.3.qkv`."""
    shape: Shape
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class FlatLayout:
    """The places of all parameters of a stage, in their order."""

    dtype: str
    """A key of `ITEM_BYTES`."""
    tensors: tuple[FlatTensor, ...]
    length: int
    """Elements of the buffer, gaps included: N."""
    buffers: int = STATE_TENSORS
    """How many buffers the state has."""

    @property
    def item_bytes(self) -> int:
        """The size of an element."""
        return ITEM_BYTES[self.dtype]


def flat_layout(
    dtype: str, named_shapes: Iterable[tuple[str, Shape]], buffers: int = STATE_TENSORS
) -> FlatLayout:
    """Lay parameters out, in the order given."""
    tensors = []
    length = 0
    for name, shape in named_shapes:
        stop = length + math.prod(shape)
        tensors.append(FlatTensor(name, shape, length, stop))
        length = -(-stop // ALIGN) * ALIGN
    return FlatLayout(dtype, tuple(tensors), length, buffers)
