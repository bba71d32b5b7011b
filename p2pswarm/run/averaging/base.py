"""What the averaging asks of the memory it works on, so that it need not know torch.

Shapes:  one-dimensional, `length` elements; a `Span` of it at a time.
Errors:  BadMessage for a shard that does not fit.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from p2pswarm.run.averaging.shards import Span
from p2pswarm.tensors.codecs.base import Tensor
from p2pswarm.tensors.codecs.meta import TensorMeta
from p2pswarm.tensors.codecs.registry import EncodedTensor

T_co = TypeVar("T_co", covariant=True)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class AveragedGradient:
    """What every member of a stage has in common after averaging."""

    digest: bytes
    squared_norm: float | None
    """None if it is not finite."""
    bytes_per_s: float = field(default=0.0, compare=False)
    """What this member's links carried each way; 0 if too little to measure."""
    tied: "AveragedGradient | None" = None
    """In a stage at an end of a tied model, what the tensor of both ends has. `digest` is of that,
    too, and `squared_norm` is not."""


class Sums(Protocol):
    """A stage's gradient sum, never changed here, and memory for the reduced gradient."""

    @property
    def length(self) -> int:
        """The number of elements."""

    @property
    def cut(self) -> int:
        """No span may lie on both sides of this element; 0: there is no such place."""

    def apart(self) -> "tuple[Sums, Sums] | None":
        """All but the tied tensor, and that, which are averaged with different members.

        Both fill the same reduced gradient. None where there is no such tensor.
        """

    def rounds(self) -> "Rounds | None":
        """What is averaged instead of these, with the same members; None: these themselves.

        It fills the reduced gradient that these would fill.
        """

    def part(self, span: Span) -> EncodedTensor:
        """This member's own part of a shard, encoded."""

    def reduce(self, span: Span, parts: Sequence[Tensor | None]) -> EncodedTensor:
        """Add the parts in their order, None being our own; keep what the others will decode."""

    def landing(self, span: Span, meta: TensorMeta) -> memoryview | None:
        """The place of a reduced shard if its bytes can come straight into it, else None."""

    def place(self, span: Span, shard: Tensor | None) -> None:
        """Keep a shard that its owner reduced; None if it has come straight into its place."""

    def outcome(self, key: bytes) -> AveragedGradient:
        """The keyed digest and the norm of the reduced gradient, once every shard is in place."""


class Rounds(Protocol):
    """Two sums that are averaged one after the other, because the first makes the second."""

    @property
    def first(self) -> Sums:
        """What is averaged first."""

    def second(self) -> Sums:
        """What is averaged second, once every shard of the first is in place.

        Its outcome is that of the whole gradient.
        """


class Compute(Protocol):
    """Runs work that blocks off the event loop, one call after another."""

    async def __call__(self, work: Callable[[], T]) -> T:
        """The result of `work`."""
