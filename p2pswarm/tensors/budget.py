"""Budget: how much memory peers may make us allocate for tensors that they send.

Errors:  TooLarge if a tensor can never fit, Busy if it fits when others are done; ValueError
         for our own misuse.
Source:  Choudhury and Hahne, "Dynamic queue length thresholds for shared-memory packet
         switches" (1998).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from p2pswarm.base.errors import BadMessage, Busy, TooLarge
from p2pswarm.base.ids import PeerId
from p2pswarm.net.rpc.base import Arrival
from p2pswarm.tensors.codecs.base import FLOATS, Decoder, Tensor
from p2pswarm.tensors.codecs.meta import TENSORS_MAX, Grant, TensorMeta, travels_alone
from p2pswarm.tensors.codecs.registry import (
    NO_KEY,
    AdmittedTensor,
    EncodedTensor,
    admit,
    named,
)
from p2pswarm.tensors.codecs.tensor_pool import TensorPool

PEER_BYTES = 256 << 20
PROCESS_BYTES = 1 << 30
FREE_SHARE = 2  # n peers that take all they can leave 1 / (2n + 1) of the memory to others
RETRY_AFTER_S = 0.05  # the time that 64 MiB take at 10 Gbit/s
THREAD_BYTES = 256 * 1024  # int8 encodes this much in the 0.1 ms that a change of thread takes


class Budget:
    """The bytes that are promised to peers, limited for each peer and in all.

    A tensor is charged when it is announced, before memory is allocated, until the transfer is
    over. Memory that the stages keep afterwards has limits of its own.

    The default for a peer is 256 MiB, twice the 125 MB that are on the way at 10 Gbit/s and 100
    ms. The default for the process is enough for four such peers.

    No few peers hold everything: a peer gets more only while it holds at most `FREE_SHARE` times
    what is then left free. So five that take all they can leave a tenth to the next one. A peer
    that is alone may have all of its share.
    """

    def __init__(self, peer_bytes: int = PEER_BYTES, process_bytes: int = PROCESS_BYTES) -> None:
        if not 0 < peer_bytes <= process_bytes:
            raise ValueError(f"a peer's share of {peer_bytes} bytes out of {process_bytes}")
        self._peer_bytes = peer_bytes
        self._process_bytes = process_bytes
        self._held: dict[PeerId, int] = {}
        self.held_bytes = 0
        """The bytes that are promised now, to all peers together."""

    def reserve(self, peer: PeerId, size_bytes: int) -> None:
        """Promise memory, or raise TooLarge or Busy; call `release` once for every success."""
        if size_bytes < 0:
            raise ValueError(f"cannot reserve {size_bytes} bytes")
        if size_bytes > self._peer_bytes:
            raise TooLarge(f"{size_bytes} bytes announced, a peer may have {self._peer_bytes}")
        held_bytes = self._held.get(peer, 0)
        mine_bytes = held_bytes + size_bytes
        free_bytes = self._process_bytes - self.held_bytes - size_bytes
        alone = held_bytes == self.held_bytes
        greedy = mine_bytes > FREE_SHARE * free_bytes and not alone
        if size_bytes and (mine_bytes > self._peer_bytes or free_bytes < 0 or greedy):
            raise Busy("no memory for tensors now", RETRY_AFTER_S)
        self.held_bytes += size_bytes
        if mine_bytes:
            self._held[peer] = mine_bytes

    def release(self, peer: PeerId, size_bytes: int) -> None:
        """Take a promise back."""
        left = self._held.get(peer, 0) - size_bytes
        if size_bytes < 0 or left < 0:
            raise ValueError(f"released {size_bytes} bytes that were not held")
        self.held_bytes -= size_bytes
        self._held[peer] = left
        if not left:
            del self._held[peer]


@dataclass(frozen=True, slots=True)
class ReservedTensor:
    """One announced tensor and its memory."""

    decoder: Decoder
    arrival: Arrival | None
    """None for a tensor whose bytes came inline."""
    on_thread: bool
    """True if decoding it is worth a thread."""


class Reservation:
    """The memory for all tensors of an announcement, or for none, until it is closed."""

    def __init__(
        self,
        peer: PeerId,
        metas: Sequence[TensorMeta],
        budget: Budget,
        keys: Sequence[bytes] = (),
    ) -> None:
        """`keys`: what each tensor is rounded by; empty if none is rounded by chance."""
        if len(metas) > TENSORS_MAX:
            raise BadMessage(f"{len(metas)} tensors announced, {TENSORS_MAX} are the most")
        self._peer = peer
        self._metas = metas
        self._keys = keys or (NO_KEY,) * len(metas)
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
            for admission, key in zip(admitted, self._keys, strict=True):
                place = admission.decoder(pool, key)
                arrival = expect(place.buffer) if travels_alone(admission.meta) else None
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
    """Return whether to encode in a thread; `tensors`: each with its codec.

    What is on a device is copied to the host, however small it is, and the copy is waited for.
    """
    if any(pool.streams.device.holds(tensor) for _, tensor in tensors):
        return True
    return sum(x.nbytes for codec, x in tensors if named(codec).heavy) > THREAD_BYTES


def _decoded_on_thread(admission: AdmittedTensor, pool: TensorPool) -> bool:
    if pool.apart:
        return admission.codec.heavy or admission.layout.dtype in FLOATS
    return admission.codec.heavy and admission.layout.raw_bytes > THREAD_BYTES
