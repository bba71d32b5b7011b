"""How the parameters of a stage lie in one flat buffer.

Shapes:  N elements in a buffer.
"""

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from p2pswarm.settings.config import FACTOR, STATE_KINDS

ALIGN = 16  # elements: 64 bytes of float32, a cache line
STATE_TENSORS = 3  # weights, first and second moments
ITEM_BYTES = {"bfloat16": 2, "float32": 4, "float64": 8}
MATRIX = 2  # dimensions
ROW_BLOCK_VALUES = 1 << 19  # a piece of the state has as many

Shape = tuple[int, ...]
Span = tuple[int, int]
"""The first element and the one after the last."""


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
    """The places of all parameters of a stage, in their order.

    Every parameter starts at a multiple of `ALIGN`; the gaps are zero. A stage has three such
    buffers: weights, first moments and second moments; and more, if the run needs them
    (`STATE_KINDS`). One after another they are its state. Each has a dtype of its own; an element
    has the same place in all of them.

    An optimizer that works on matrices takes *row blocks* of them, each of which lies in one piece
    of the state: so every piece can follow a commit alone (docs/optimizers.md). They depend on a
    matrix's shape alone, not on its place, or another cut into stages would train other weights.

    Behind the parameters lie the *factors* of matrices whose sums are averaged in low rank, named
    by `FACTOR` and their matrix. Of a factor only the first moments are in use (docs/codecs.md).
    """

    dtypes: tuple[str, ...]
    """Of each buffer of the state: keys of `ITEM_BYTES`."""
    tensors: tuple[FlatTensor, ...]
    length: int
    """Elements of a buffer, gaps included: N."""
    kinds: tuple[str, ...]
    """The buffers of the state: of `STATE_KINDS`."""

    @property
    def parameters(self) -> tuple[FlatTensor, ...]:
        """All but the factors."""
        return tuple(tensor for tensor in self.tensors if not tensor.name.startswith(FACTOR))

    @property
    def factors(self) -> dict[str, FlatTensor]:
        """The factors, by the names of their matrices."""
        named = (tensor for tensor in self.tensors if tensor.name.startswith(FACTOR))
        return {tensor.name.removeprefix(FACTOR): tensor for tensor in named}

    @property
    def factors_start(self) -> int:
        """The first element behind the parameters."""
        return min((tensor.start for tensor in self.factors.values()), default=self.length)

    @property
    def item_bytes(self) -> tuple[int, ...]:
        """The size of an element of each buffer."""
        return tuple(ITEM_BYTES[dtype] for dtype in self.dtypes)

    @property
    def state_bytes(self) -> int:
        """The size of the state in memory, gaps included."""
        return self.length * sum(self.item_bytes)

    def row_blocks(self) -> Iterator[Span]:
        """Yield where the row blocks of all matrices lie, in their order."""
        for tensor in self.tensors:
            for start, stop in row_blocks(tensor.shape):
                yield tensor.start + start, tensor.start + stop


def row_blocks(shape: Shape) -> list[Span]:
    """The row blocks of a matrix, in its elements: as few as may be, nearly equal.

    None for what is no matrix, is empty, or has rows longer than a block.
    """
    if len(shape) != MATRIX or 0 in shape or shape[1] > ROW_BLOCK_VALUES:
        return []
    rows, columns = shape
    count = -(-rows // (ROW_BLOCK_VALUES // columns))
    edges = [rows * k // count * columns for k in range(count + 1)]
    return list(itertools.pairwise(edges))


def factor_shape(shape: Shape, rank: int) -> Shape | None:
    """The directions and the columns of a matrix's warm factor; None where a rank does not pay."""
    _, columns = sides(shape)
    return (rank, columns) if 0 < rank <= greatest_rank(shape) else None


def averaged_values(shape: Shape, rank: int) -> int:
    """The values that a parameter's sum has in low rank: of both factors, or its own."""
    return rank * sum(sides(shape)) if factor_shape(shape, rank) else math.prod(shape)


def greatest_rank(shape: Shape) -> int:
    """The greatest rank that pays: both factors have at most half as many values as the matrix."""
    rows, columns = sides(shape)
    return rows * columns // max(1, 2 * (rows + columns))


def sides(shape: Shape) -> tuple[int, int]:
    """The rows and the columns of a parameter that is read as a matrix; 0 for a vector.

    Of more dimensions the last ones are columns, so many that both sides together are shortest.
    """
    cuts = [(math.prod(shape[:k]), math.prod(shape[k:])) for k in range(1, len(shape))]
    return min(cuts, key=sum, default=(0, 0))


def flat_layout(
    dtypes: Sequence[str],
    named_shapes: Iterable[tuple[str, Shape]],
    kinds: Sequence[str] | None = None,
) -> FlatLayout:
    """Lay parameters out, in the order given; `dtypes`: of the buffers; `kinds`: None if first."""
    tensors = []
    length = 0
    for name, shape in named_shapes:
        stop = length + math.prod(shape)
        tensors.append(FlatTensor(name, shape, length, stop))
        length = -(-stop // ALIGN) * ALIGN
    kinds = STATE_KINDS[: len(dtypes)] if kinds is None else kinds
    return FlatLayout(tuple(dtypes), tuple(tensors), length, tuple(kinds))
