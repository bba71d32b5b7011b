"""EdgeState: what codecs carry on one edge, to one incarnation of a peer, in one direction."""

from collections.abc import Iterable, Sequence

from p2pswarm.tensors.codecs.base import Tensor
from p2pswarm.tensors.codecs.registry import EncodedTensor

EdgeKey = tuple[bytes, int]
"""(peer, incarnation)."""


class EdgeState:
    """What codecs carry from one bundle to the next on one edge.

    Pushes to one peer overlap, and each may be computed, refused or lost. So a push takes out what
    the edge carries, and an overlapping push finds nothing: nothing is sent twice. If the push was
    computed, the edge carries what encoding left. If it was refused, the edge carries again what
    was taken out. If the outcome is unknown, both are forgotten, because nothing may be counted
    twice.
    """

    def __init__(self, tensors: int) -> None:
        """`tensors`: the number of tensors of a bundle."""
        self.carried: tuple[tuple[Tensor, ...], ...] = ((),) * tensors
        """What the next bundle will be encoded with, tensor by tensor."""

    def start(self) -> "EdgeTransfer":
        """Take out what is carried, for one bundle."""
        taken, self.carried = self.carried, ((),) * len(self.carried)
        return EdgeTransfer(self, taken)

    def add(self, values: Iterable[tuple[Tensor, ...]]) -> None:
        """Carry more, tensor by tensor."""
        self.carried = tuple(have + more for have, more in zip(self.carried, values, strict=True))


class EdgeTransfer:
    """One bundle on its way over an edge. Call `taken` or `refused` if the outcome is known."""

    def __init__(self, edge: EdgeState, carried: tuple[tuple[Tensor, ...], ...]) -> None:
        self._edge: EdgeState | None = edge
        self.carried = carried
        """What was carried for the bundle, tensor by tensor."""

    def taken(self, encoded: Sequence[EncodedTensor]) -> None:
        """The peer has computed the bundle: carry what encoding left."""
        self._end([() if each.left is None else (each.left,) for each in encoded])

    def refused(self) -> None:
        """The peer has refused the bundle: carry again what was taken out."""
        self._end(self.carried)

    def _end(self, values: Sequence[tuple[Tensor, ...]]) -> None:
        edge, self._edge = self._edge, None
        if edge is not None:
            edge.add(values)


class EdgeStates:
    """The states of all edges of one direction."""

    def __init__(self, tensors: int) -> None:
        self._tensors = tensors
        self._edges: dict[EdgeKey, EdgeState] = {}

    def __len__(self) -> int:
        return len(self._edges)

    def edge(self, key: EdgeKey, alive: Iterable[EdgeKey]) -> EdgeState:
        """The state of an edge, made at its first use; edges that are not `alive` are dropped."""
        if key not in self._edges:
            known = set(alive)
            self._edges = {each: edge for each, edge in self._edges.items() if each in known}
            self._edges[key] = EdgeState(self._tensors)
        return self._edges[key]
