"""Reservation: the memory for all tensors of an announcement, or for none.

Units:   bytes.
Errors:  Busy or TooLarge if there is no memory; BadMessage for an impossible announcement.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from p2pswarm.base.errors import BadMessage
from p2pswarm.base.ids import PeerId
from p2pswarm.net.rpc.base import Arrival
from p2pswarm.tensors.budget import Budget
from p2pswarm.tensors.codecs.base import FLOATS, Decoder, Tensor
from p2pswarm.tensors.codecs.meta import TENSORS_MAX, Grant, TensorMeta, travels_alone
from p2pswarm.tensors.codecs.registry import (
    AdmittedTensor,
    EncodedTensor,
    admit,
    admitted_decoder,
    named,
)
from p2pswarm.tensors.codecs.tensor_pool import TensorPool

THREAD_BYTES = 256 * 1024  # int8 encodes this much in the 0.1 ms that a change of thread takes


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
        """The answer to the announcement."""
        return Grant(tuple(t.arrival.transfer if t.arrival else 0 for t in self.tensors))

    def open(self, pool: TensorPool, expect: Callable[[memoryview], Arrival]) -> None:
        """Charge the budget for all tensors, then allocate memory for each, or for none."""
        admitted = [admit(meta) for meta in self._metas]
        need_bytes = sum(each.memory_bytes for each in admitted)
        self._budget.reserve(self._peer, need_bytes)
        self._held_bytes = need_bytes
        try:
            for meta, admission in zip(self._metas, admitted, strict=True):
                place = admitted_decoder(meta, admission, pool)
                arrival = expect(place.buffer) if travels_alone(meta) else None
                on_thread = _decoded_on_thread(admission, pool)
                self.tensors.append(ReservedTensor(place, arrival, on_thread))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Give all memory back; bytes that come later are dropped."""
        for tensor in self.tensors:
            if tensor.arrival is not None:
                tensor.arrival.cancel()
        self.tensors.clear()
        self._budget.release(self._peer, self._held_bytes)
        self._held_bytes = 0


def granted(grant: Grant, encoded: Sequence[EncodedTensor]) -> list[tuple[int, memoryview]]:
    """Pairs of a transfer and its bytes; BadMessage for a grant that does not fit."""
    if [t != 0 for t in grant.transfers] != [travels_alone(each.meta) for each in encoded]:
        raise BadMessage(
            f"a grant {grant.transfers} that does not fit the {len(encoded)} announced"
        )
    pairs = zip(grant.transfers, encoded, strict=True)
    return [(transfer, each.data) for transfer, each in pairs if transfer]


def worth_a_thread(tensors: Sequence[tuple[str, Tensor]], pool: TensorPool) -> bool:
    """Whether to encode in a thread; `tensors`: each with its codec.

    What is on a device is copied to the host, however small it is, and the copy is waited for.
    """
    if any(pool.streams.device.holds(tensor) for _, tensor in tensors):
        return True
    return sum(x.nbytes for codec, x in tensors if named(codec).heavy) > THREAD_BYTES


def _decoded_on_thread(admission: AdmittedTensor, pool: TensorPool) -> bool:
    if pool.apart:
        return admission.codec.heavy or admission.layout.dtype in FLOATS
    return admission.codec.heavy and admission.layout.raw_bytes > THREAD_BYTES
