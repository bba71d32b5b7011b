"""Memory for announced tensors: paid for, set aside and named in a grant, all or nothing.

Errors:  Busy or TooLarge when there is no memory; BadMessage for what no honest peer sends.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from p2pswarm.errors import BadMessage
from p2pswarm.ids import PeerId
from p2pswarm.rpc.base import Arrival
from p2pswarm.tensors.budget import Budget
from p2pswarm.tensors.codecs.base import Decoder
from p2pswarm.tensors.codecs.memory import Memory
from p2pswarm.tensors.codecs.registry import EncodedTensor, admit, decoder, named
from p2pswarm.tensors.meta import TENSORS_MAX, Grant, TensorMeta, travels_alone

THREAD_BYTES = 256 * 1024  # the hop to a thread takes 0.1 ms; int8 makes so much of it meanwhile


@dataclass(frozen=True, slots=True)
class ReservedTensor:
    """One announced tensor and its memory."""

    decoder: Decoder
    arrival: Arrival | None
    """None for a tensor whose bytes came inline."""
    on_thread: bool
    """Whether decoding it is worth a thread."""


class Reservation:
    """The memory of one announcement, until it is closed."""

    def __init__(self, peer: PeerId, metas: Sequence[TensorMeta], budget: Budget) -> None:
        if len(metas) > TENSORS_MAX:
            raise BadMessage(f"{len(metas)} tensors announced, {TENSORS_MAX} are the most")
        self._peer = peer
        self._metas = metas
        self._budget = budget
        self._held_bytes = 0
        self.tensors: list[ReservedTensor] = []

    @property
    def grant(self) -> Grant:
        """What to answer the announcement with."""
        return Grant(tuple(t.arrival.transfer if t.arrival else 0 for t in self.tensors))

    def open(self, memory: Memory, expect: Callable[[memoryview], Arrival]) -> None:
        """Pay for all of the tensors, then set memory aside for each, or for none."""
        need_bytes = sum(admit(meta).memory_bytes for meta in self._metas)
        self._budget.reserve(self._peer, need_bytes)
        self._held_bytes = need_bytes
        try:
            for meta in self._metas:
                place = decoder(meta, memory)
                arrival = expect(place.buffer) if travels_alone(meta) else None
                self.tensors.append(ReservedTensor(place, arrival, _decoded_on_thread(meta)))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Give all memory back; late bytes are thrown away."""
        for tensor in self.tensors:
            if tensor.arrival is not None:
                tensor.arrival.cancel()
        self.tensors.clear()
        self._budget.release(self._peer, self._held_bytes)
        self._held_bytes = 0


def granted(grant: Grant, encoded: Sequence[EncodedTensor]) -> list[tuple[int, memoryview]]:
    """What to send to which transfer; BadMessage for a grant that does not fit what was said."""
    if [t != 0 for t in grant.transfers] != [travels_alone(each.meta) for each in encoded]:
        raise BadMessage(f"a grant {grant.transfers} that does not fit the {len(encoded)} sent")
    pairs = zip(grant.transfers, encoded, strict=True)
    return [(transfer, each.data) for transfer, each in pairs if transfer]


def worth_a_thread(tensors: Iterable[tuple[str, int]]) -> bool:
    """Whether to encode on a thread, by each tensor's codec and bytes."""
    return sum(size for codec, size in tensors if named(codec).heavy) > THREAD_BYTES


def _decoded_on_thread(meta: TensorMeta) -> bool:
    admission = admit(meta)
    return admission.codec.heavy and admission.layout.raw_bytes > THREAD_BYTES
