"""Tensors between peers: announced, granted or refused, sent, and received into place.

The receiver sets memory aside before it grants, so a tensor never waits in a
buffer that nobody counted. The bytes go round the messages, in any order, over
any connection. Codecs that compute do so on a thread; the loop only waits.

    sender                                     receiver
    encoded = await tensors.pack(xs, "bf16")
    announce [p.meta for p in encoded]   --->  async with tensors.accept(stream, metas) as coming:
                                         <---      send coming.grant
    await tensors.send(stream, ...)    ===>      xs = await coming.tensors()

Errors:  Busy or TooLarge when the receiver has no memory; BadMessage for what no honest
         peer sends; LinkLost if the link ends on the way.
"""

import asyncio
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from p2pswarm.rpc.base import Priority, Stream
from p2pswarm.tensors.budget import Budget
from p2pswarm.tensors.codecs.base import CPU, Device, Tensor
from p2pswarm.tensors.codecs.memory import Memory
from p2pswarm.tensors.codecs.registry import (
    EncodedTensor,
    TensorToEncode,
    encode_all,
    encode_bundle,
)
from p2pswarm.tensors.meta import Grant, TensorMeta
from p2pswarm.tensors.reservation import Reservation, granted, worth_a_thread


class IncomingTensors:
    """Tensors whose memory was granted. Leaving the block cancels what has not come."""

    def __init__(self, reservation: Reservation) -> None:
        self._reservation = reservation
        self.grant = reservation.grant
        """What to answer the announcement with."""

    async def tensors(self) -> list[Tensor]:
        """Wait for every byte, and decode all tensors, in their order; call it once."""
        for reserved in self._reservation.tensors:
            if reserved.arrival is not None:
                await reserved.arrival.wait()
        return [
            await asyncio.to_thread(each.decoder.finish)
            if each.on_thread
            else each.decoder.finish()
            for each in self._reservation.tensors
        ]

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._reservation.close()


class TensorTransfer:
    """Sends tensors, and receives them within a budget."""

    def __init__(self, budget: Budget, device: Device = CPU) -> None:
        self._budget = budget
        self._memory = Memory(device)

    async def pack(self, tensors: Sequence[Tensor], codec_name: str) -> list[EncodedTensor]:
        """Encode for one announcement, on a thread if it is work; see `encode_all`."""
        if worth_a_thread((codec_name, tensor.nbytes) for tensor in tensors):
            return await asyncio.to_thread(encode_all, tensors, codec_name, self._memory)
        return encode_all(tensors, codec_name, self._memory)

    async def pack_bundle(self, bundle: Sequence[TensorToEncode]) -> list[EncodedTensor]:
        """Encode what crosses an edge together; see `encode_bundle`."""
        if worth_a_thread((each.codec_name, each.tensor.nbytes) for each in bundle):
            return await asyncio.to_thread(encode_bundle, bundle, self._memory)
        return encode_bundle(bundle, self._memory)

    async def send(
        self, stream: Stream, grant: Grant, encoded: Sequence[EncodedTensor], priority: Priority
    ) -> None:
        """Send what the peer granted; returns when the tensors' memory may be used again."""
        for transfer, data in granted(grant, encoded):
            await stream.send_bulk(transfer, data, priority)

    def accept(self, stream: Stream, metas: Sequence[TensorMeta]) -> IncomingTensors:
        """Set memory aside for what `metas` announce, all or nothing; use it in an `async with`."""
        reservation = Reservation(stream.peer, metas, self._budget)
        reservation.open(self._memory, stream.expect)
        return IncomingTensors(reservation)
