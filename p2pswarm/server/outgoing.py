"""How a stage's result is announced and encoded, and what its edge learns when the push has ended.

A grant is requested while the microbatch is still being computed: once two bundles of a direction
had equal sizes, the next is announced with them. This hides one round trip of every hop.

Units:   seconds.
Errors:  none.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from p2pswarm.base.errors import DialFailed, Refused
from p2pswarm.models.base import Bundle
from p2pswarm.run.messages.membership import MemberRecord
from p2pswarm.run.messages.microbatch import Handed, Push
from p2pswarm.run.messages.types import Work
from p2pswarm.server.work_item import WorkItem
from p2pswarm.tensors.codecs.base import Unencodable
from p2pswarm.tensors.codecs.edge_state import EdgeKey, EdgeStates, EdgeTransfer
from p2pswarm.tensors.codecs.meta import TensorMeta, travels_alone
from p2pswarm.tensors.codecs.registry import EncodedTensor, TensorToEncode, keeps_state

Metas = tuple[TensorMeta, ...]


def metas_of(encoded: Sequence[EncodedTensor]) -> Metas:
    """What announces the encoded tensors."""
    return tuple(each.meta for each in encoded)


class SizeForecast:
    """Foresees how the next bundle of a direction is announced."""

    def __init__(self) -> None:
        self._last: Metas = ()
        self._steady = False

    @property
    def foreseen(self) -> Metas | None:
        """The announcement of the next bundle; None unless the last two had the same."""
        return self._last if self._steady else None

    def learn(self, metas: Metas) -> None:
        """Note how a bundle was encoded. An inline tensor holds values, so it is not foreseen."""
        self._steady = metas == self._last and all(travels_alone(meta) for meta in metas)
        self._last = metas


class Direction:
    """The bundles that go to one neighbour stage: how they are encoded, and their edges."""

    def __init__(self, codecs: tuple[str, ...]) -> None:
        """`codecs`: one for each tensor of a bundle, in order."""
        self.codecs = codecs
        self.forecast = SizeForecast()
        self.edges = EdgeStates(len(codecs))
        self.stateful = any(map(keeps_state, codecs))

    def start(self, edge: EdgeKey, members: Sequence[MemberRecord]) -> EdgeTransfer | None:
        """Begin one more bundle for a peer; None if no codec keeps state."""
        if not self.stateful:
            return None
        return self.edges.edge(edge, map(edge_to, members)).start()


@dataclass(slots=True)
class _OpenEdge:
    """A bundle as it was encoded for one edge."""

    edge: EdgeKey
    transfer: EdgeTransfer | None
    encoded: list[EncodedTensor] | None = None


class OutgoingBundle:
    """The encodings of one bundle: one for all peers, or one for each where codecs keep state."""

    def __init__(self, direction: Direction) -> None:
        self._direction = direction
        self._open: _OpenEdge | None = None

    def encoded_for(self, edge: EdgeKey) -> list[EncodedTensor] | None:
        """What goes to a peer, if it has been encoded; None: call `begin`, encode, `finish`."""
        there = self._open
        if there is None or (self._direction.stateful and there.edge != edge):
            return None
        return there.encoded

    def begin(
        self, edge: EdgeKey, members: Sequence[MemberRecord], bundle: Bundle
    ) -> list[TensorToEncode]:
        """What to encode for a peer; forgets the edges to peers that are not in `members`."""
        transfer = self._direction.start(edge, members)
        self._open = _OpenEdge(edge, transfer)
        codecs = self._direction.codecs
        carried = transfer.carried if transfer else ((),) * len(codecs)
        return list(map(TensorToEncode, bundle.values(), codecs, carried))

    def finish(self, encoded: list[EncodedTensor]) -> list[EncodedTensor]:
        """Keep the encoding, and foresee the next from it."""
        assert self._open is not None, "begin comes before finish"
        self._open.encoded = encoded
        self._direction.forecast.learn(metas_of(encoded))
        return encoded

    def taken(self) -> None:
        """The peer has computed it."""
        there, self._open = self._open, None
        if there is not None and there.transfer is not None and there.encoded is not None:
            there.transfer.taken(there.encoded)

    def failed(self, error: Exception) -> None:
        """The push failed: give the edge its state back if the peer surely has nothing."""
        if self._open is None or self._open.transfer is None:
            return
        if isinstance(error, Refused | DialFailed | Unencodable):
            self._open.transfer.refused()
        self._open = None  # the next try encodes anew, with the state that the edge then has


def edge_to(member: MemberRecord) -> EdgeKey:
    """The edge to a peer's incarnation."""
    return member.peer, member.incarnation


def push_onward(item: WorkItem, stage: int, metas: Metas) -> Push:
    """The push of `item` to the stage above `stage`."""
    return replace(item.push, stage=stage + 1, tensors=metas)


def push_back(item: WorkItem, stage: int, metas: Metas) -> Push:
    """The push of the gradient of `item` to the stage below `stage`."""
    return replace(item.push, work=Work.BACKWARD, stage=stage - 1, tensors=metas)


def handed(push: Push, to: MemberRecord) -> Handed:
    """What the trainer is told before the bytes go to the next server."""
    return Handed(push.step, push.microbatch, push.attempt, to.peer, to.incarnation)
