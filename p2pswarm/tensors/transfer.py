"""Tensors between peers: announced, granted or refused, sent, and received into place.

The receiver sets memory aside before it grants, so a tensor never waits in a
buffer that nobody counted. The bytes go round the messages, in any order, over
any connection. Codecs that compute do so on a thread; the loop only waits.

    sender                                     receiver
    encoded = await tensors.pack(xs, "bf16")
    announce [p.meta for p in encoded]   --->  async with tensors.accept(stream, metas) as coming:
                                         <---      send coming.grant
    await tensors.send(stream, ...)    ===>      xs = await coming.tensors()

Errors:  Busy or TooLarge when the receiver has no room; BadMessage for what no honest
         peer sends; LinkLost if the link ends on the way.
"""

import asyncio
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from p2pswarm.errors import BadMessage
from p2pswarm.rpc.base import Arrival, Priority, Stream
from p2pswarm.tensors.budget import Budget
from p2pswarm.tensors.codecs.base import CPU, Decoder, Device, Tensor
from p2pswarm.tensors.codecs.memory import Memory
from p2pswarm.tensors.codecs.registry import EncodedTensor, admit, decoder_in, encode_all, named
from p2pswarm.tensors.meta import TENSORS_MAX, Grant, TensorMeta, travels_alone

THREAD_BYTES = 256 * 1024  # the hop to a thread takes 0.1 ms; int8 makes so much of it meanwhile


class IncomingTensors:
    """Tensors that were granted room: leave the block and what has not come is cancelled."""

    def __init__(self, stream: Stream, metas: Sequence[TensorMeta], budget: Budget) -> None:
        self._stream = stream
        self._metas = metas
        self._budget = budget
        self._held_bytes = 0
        self._rooms: list[Decoder] = []
        self._arrivals: list[Arrival | None] = []

    @property
    def grant(self) -> Grant:
        """What to answer the announcement with."""
        return Grant(tuple(a.transfer if a else 0 for a in self._arrivals))

    async def tensors(self) -> list[Tensor]:
        """All of them, in their order, once every byte is there; ask once."""
        for arrival in self._arrivals:
            if arrival is not None:
                await arrival.wait()
        return [
            await asyncio.to_thread(place.finish) if _deserves_thread(meta) else place.finish()
            for meta, place in zip(self._metas, self._rooms, strict=True)
        ]

    def open(self, memory: Memory) -> Self:
        """Pay for all of the tensors, then make room for each, or for none."""
        need_bytes = sum(admit(meta).memory_bytes for meta in self._metas)
        self._budget.reserve(self._stream.peer, need_bytes)
        self._held_bytes = need_bytes
        try:
            for meta in self._metas:
                place = decoder_in(meta, memory)
                self._rooms.append(place)
                alone = travels_alone(meta)
                self._arrivals.append(self._stream.expect(place.buffer) if alone else None)
        except BaseException:
            self.close()
            raise
        return self

    def close(self) -> None:
        """Give all room back; late bytes are thrown away."""
        for arrival in self._arrivals:
            if arrival is not None:
                arrival.cancel()
        self._arrivals.clear()
        self._rooms.clear()
        self._budget.release(self._stream.peer, self._held_bytes)
        self._held_bytes = 0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class TensorTransfer:
    """Sends tensors, and receives them within a budget."""

    def __init__(self, budget: Budget, device: Device = CPU) -> None:
        self._budget = budget
        self._memory = Memory(device)

    async def pack(self, tensors: Sequence[Tensor], codec_name: str) -> list[EncodedTensor]:
        """Encode for one announcement, on a thread if it is work; see `encode_all`."""
        size_bytes = sum(tensor.nbytes for tensor in tensors)
        if named(codec_name).heavy and size_bytes > THREAD_BYTES:
            return await asyncio.to_thread(encode_all, tensors, codec_name, self._memory)
        return encode_all(tensors, codec_name, self._memory)

    async def send(
        self, stream: Stream, grant: Grant, encoded: Sequence[EncodedTensor], priority: Priority
    ) -> None:
        """Send what the peer granted; the encoded' memory may be reused then."""
        if [t != 0 for t in grant.transfers] != [travels_alone(p.meta) for p in encoded]:
            raise BadMessage(f"a grant {grant.transfers} that does not fit the {len(encoded)} sent")
        for transfer, encoded_tensor in zip(grant.transfers, encoded, strict=True):
            if transfer:
                await stream.send_bulk(transfer, encoded_tensor.data, priority)

    def accept(self, stream: Stream, metas: Sequence[TensorMeta]) -> IncomingTensors:
        """Make room for what `metas` announce, all or nothing; use it in an `async with`."""
        if len(metas) > TENSORS_MAX:
            raise BadMessage(f"{len(metas)} tensors announced, {TENSORS_MAX} are the most")
        return IncomingTensors(stream, metas, self._budget).open(self._memory)


def _deserves_thread(meta: TensorMeta) -> bool:
    """Whether decoding is worth the hop."""
    admission = admit(meta)
    return admission.codec.heavy and admission.layout.raw_bytes > THREAD_BYTES
