"""What codecs remember of an edge: one peer's incarnation, one direction, a value for each key.

Pushes to one peer overlap, and each may be taken, refused or lost. So whoever encodes takes out
what the edge holds, and a push that overlaps finds nothing: nothing is sent twice. When the push
was taken, what encoding left comes in; when it was refused, what was taken out comes back. When
nobody knows, neither does: what was owed is forgotten rather than doubled.

Errors:  none.
"""

from collections.abc import Iterable, Sequence

from p2pswarm.tensors.codecs.base import Tensor
from p2pswarm.tensors.codecs.registry import EncodedTensor

EdgeKey = tuple[bytes, int]
"""(peer, incarnation)."""


class EdgeState:
    """What codecs carry from one bundle to the next on one edge."""

    def __init__(self, tensors: int) -> None:
        """`tensors`: how many a bundle has."""
        self._carried: list[tuple[Tensor, ...]] = [()] * tensors

    @property
    def carried(self) -> tuple[tuple[Tensor, ...], ...]:
        """What the next bundle will be encoded with, tensor by tensor."""
        return tuple(self._carried)

    def start(self) -> "EdgeTransfer":
        """Take out what is carried, for one bundle."""
        taken, self._carried = self._carried, [()] * len(self._carried)
        return EdgeTransfer(self, taken)

    def add(self, values: Iterable[tuple[Tensor, ...]]) -> None:
        """Carry more, tensor by tensor."""
        self._carried = [have + more for have, more in zip(self._carried, values, strict=True)]


class EdgeTransfer:
    """One bundle on its way over an edge. Tell it once how that ended, if anybody knows."""

    def __init__(self, edge: EdgeState, carried: Sequence[tuple[Tensor, ...]]) -> None:
        self._edge: EdgeState | None = edge
        self.carried = tuple(carried)
        """What the bundle is encoded with."""

    def taken(self, encoded: Sequence[EncodedTensor]) -> None:
        """The peer has computed it: the edge goes on from what encoding left."""
        self._end([() if each.left is None else (each.left,) for each in encoded])

    def refused(self) -> None:
        """The peer has not taken it: the edge is as it was."""
        self._end(self.carried)

    def _end(self, values: Sequence[tuple[Tensor, ...]]) -> None:
        edge, self._edge = self._edge, None
        if edge is not None:
            edge.add(values)


class EdgeStates:
    """The edges of one direction that this incarnation of ours uses."""

    def __init__(self, tensors: int) -> None:
        self._tensors = tensors
        self._edges: dict[EdgeKey, EdgeState] = {}

    def __len__(self) -> int:
        return len(self._edges)

    def edge(self, key: EdgeKey, alive: Iterable[EdgeKey]) -> EdgeState:
        """The state of an edge, made at its first use; those to others than `alive` are dropped."""
        if key not in self._edges:
            known = set(alive)
            self._edges = {each: edge for each, edge in self._edges.items() if each in known}
            self._edges[key] = EdgeState(self._tensors)
        return self._edges[key]
