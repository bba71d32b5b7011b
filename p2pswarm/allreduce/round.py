"""One averaging as one member takes part in it: which pieces it waits for, and from which peers.

Errors:  BadMessage for a piece that nobody waits for, or that does not fit.
"""

from collections import Counter
from dataclasses import dataclass

from p2pswarm.allreduce.plan import PIECE, ShardPiece, pieces
from p2pswarm.errors import BadMessage
from p2pswarm.swarm.messages.averaging import Shard
from p2pswarm.swarm.messages.step import Reduce
from p2pswarm.tensors.meta import TensorMeta


@dataclass(frozen=True, slots=True, order=True)
class RoundId:
    """Names one averaging of a run; a later one replaces an earlier."""

    step: int
    generation: int

    def __str__(self) -> str:
        return f"step {self.step}, generation {self.generation}"


@dataclass(frozen=True, slots=True)
class ExpectedPiece:
    """A piece on its way to us."""

    index: int
    sender: bytes
    gathered: bool


class Round:
    """The pieces of one order."""

    def __init__(self, order: Reduce, me: bytes, length: int, piece: int = PIECE) -> None:
        self.order = order
        self.turn = RoundId(order.step, order.generation)
        self.me = me
        self.pieces = pieces(length, len(order.group), piece)
        self._missing: dict[ExpectedPiece, None] = {}
        self._parts_missing: Counter[int] = Counter()
        for index, owned in enumerate(self.pieces):
            owner = order.group[owned.owner]
            if owner != me:
                self._missing[ExpectedPiece(index, owner, gathered=True)] = None
            else:
                self._parts_missing[index] = len(self.others)
                for peer in self.others:
                    self._missing[ExpectedPiece(index, peer, gathered=False)] = None

    @property
    def others(self) -> tuple[bytes, ...]:
        """The members of the group besides ourselves."""
        return tuple(peer for peer in self.order.group if peer != self.me)

    @property
    def mine(self) -> tuple[int, ...]:
        """The pieces that we reduce."""
        return tuple(i for i, p in enumerate(self.pieces) if self.order.group[p.owner] == self.me)

    @property
    def adds(self) -> bool:
        """Whether our sum is among those that are added; an observer's is not."""
        return self.me in self.order.group

    @property
    def parts_to_send(self) -> dict[bytes, list[int]]:
        """The pieces that our sum is a part of, for each other owner."""
        owned: dict[bytes, list[int]] = {}
        for index, piece in enumerate(self.pieces if self.adds else ()):
            owner = self.order.group[piece.owner]
            if owner != self.me:
                owned.setdefault(owner, []).append(index)
        return owned

    @property
    def complete(self) -> bool:
        """Whether every piece has come."""
        return not self._missing

    def has_parts(self, index: int) -> bool:
        """Whether every part of a piece of ours has come."""
        return self._parts_missing[index] == 0

    def shard(self, index: int, tensor: TensorMeta, *, gathered: bool) -> Shard:
        """What opens the stream of one piece."""
        order = self.order
        return Shard(order.run, order.step, order.generation, gathered, index, tensor)

    @property
    def wanted(self) -> tuple[ExpectedPiece, ...]:
        """The pieces that have not come."""
        return tuple(self._missing)

    def expect(self, sender: bytes, shard: Shard) -> tuple[ExpectedPiece, ShardPiece]:
        """The piece that a sender is about to send; BadMessage if it is unwanted or unfit."""
        wanted = ExpectedPiece(shard.index, sender, shard.gathered)
        if wanted not in self._missing:
            raise BadMessage(f"piece {shard.index} of {self.turn} is not wanted from you")
        piece = self.pieces[shard.index]
        if shard.tensor.shape != (piece.span.length,):
            raise BadMessage(f"piece {shard.index} has {piece.span}, not {shard.tensor.shape}")
        return wanted, piece

    def came(self, wanted: ExpectedPiece) -> None:
        """Note that a piece is in place."""
        if wanted not in self._missing:
            return  # a second copy is as good as the first
        del self._missing[wanted]
        if not wanted.gathered:
            self._parts_missing[wanted.index] -= 1
