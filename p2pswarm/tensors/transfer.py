"""TensorTransfer: sends tensors, and receives them into memory that was granted.

The receiver allocates memory before it sends the grant, so every buffer is counted.
The bytes are sent outside of the messages, in any order, over any bulk connection.
Codecs that compute run in a thread, and the event loop only waits. With tensors on a GPU all of
them do, each on a stream of its own (`codecs/device_streams.py`).

    sender                                     receiver
    encoded = await tensors.pack(xs, "bf16")
    announce [p.meta for p in encoded]   --->  async with tensors.accept(stream, metas) as coming:
                                         <---      send coming.grant
    await tensors.send(stream, ...)    ===>      xs = await coming.tensors()

Errors:  Busy or TooLarge if the receiver has no memory; BadMessage for an impossible
         announcement or grant; LinkLost if the link ends before the last byte.
"""

import asyncio
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Self

from p2pswarm.base.exception_group import raising_cause
from p2pswarm.net.rpc.base import Priority, Stream
from p2pswarm.tensors.budget import Budget, Reservation, granted, worth_a_thread
from p2pswarm.tensors.codecs.base import CPU, Device, Tensor
from p2pswarm.tensors.codecs.meta import Grant, TensorMeta
from p2pswarm.tensors.codecs.registry import (
    EncodedTensor,
    TensorToEncode,
    encode_all,
    encode_bundle,
)
from p2pswarm.tensors.codecs.tensor_pool import TensorPool


class IncomingTensors:
    """Tensors whose memory was granted. Leaving the block takes the memory back."""

    def __init__(self, reservation: Reservation, pool: TensorPool) -> None:
        self._reservation = reservation
        self._pool = pool
        self.grant = reservation.grant
        """The answer to the announcement."""

    async def arrival(self) -> None:
        """Wait for every byte."""
        for reserved in self._reservation.tensors:
            if reserved.arrival is not None:
                await reserved.arrival.wait()

    async def tensors(self) -> list[Tensor]:
        """Wait for every byte and decode all tensors, in their order; call this once."""
        await self.arrival()
        return [
            await asyncio.to_thread(self._pool.streams.decoded, each.decoder.finish)
            if each.on_thread
            else each.decoder.finish()
            for each in self._reservation.tensors
        ]

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        self._reservation.close()


class TensorTransfer:
    """Sends tensors, and receives them within a budget."""

    def __init__(self, budget: Budget, device: Device = CPU) -> None:
        self._budget = budget
        self._pool = TensorPool(device)

    async def pack(self, tensors: Sequence[Tensor], codec_name: str) -> list[EncodedTensor]:
        """Encode tensors for one announcement, in a thread if worth while; see `encode_all`.

        Tensors on a device are complete: what writes them is not only launched.
        """
        encoding = functools.partial(encode_all, tensors, codec_name, self._pool)
        return await self._encoded([(codec_name, x) for x in tensors], encoding)

    async def pack_bundle(self, bundle: Sequence[TensorToEncode]) -> list[EncodedTensor]:
        """Encode a bundle, in a thread if worth while; see `encode_bundle` and `pack`."""
        encoding = functools.partial(encode_bundle, bundle, self._pool)
        return await self._encoded([(each.codec_name, each.tensor) for each in bundle], encoding)

    def is_on_device(self, bundle: Mapping[str, Tensor]) -> bool:
        """Return whether a bundle lies in memory of a device, and not of the host."""
        return any(map(self._pool.streams.device.holds, bundle.values()))

    async def on_host(self, bundle: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Copy a bundle of complete tensors to the host, in a thread, beside computing."""
        work = functools.partial(_cloned, bundle, self._pool)
        return await asyncio.to_thread(self._pool.streams.aside, work)

    async def _encoded(
        self, tensors: Sequence[tuple[str, Tensor]], encoding: Callable[[], list[EncodedTensor]]
    ) -> list[EncodedTensor]:
        if worth_a_thread(tensors, self._pool):
            return await asyncio.to_thread(self._pool.streams.aside, encoding)
        return encoding()

    async def send(
        self, stream: Stream, grant: Grant, encoded: Sequence[EncodedTensor], priority: Priority
    ) -> None:
        """Send what the peer granted; returns when the tensors' memory may be used again.

        None waits until the peer has the one before: that would take a round trip for each.
        """
        match granted(grant, encoded):
            case [(transfer, data)]:  # most often, and then without a task
                await stream.send_bulk(transfer, data, priority)
            case several:
                with raising_cause():
                    async with asyncio.TaskGroup() as tasks:
                        for transfer, data in several:
                            tasks.create_task(stream.send_bulk(transfer, data, priority))

    def accept(
        self, stream: Stream, metas: Sequence[TensorMeta], keys: Sequence[bytes] = ()
    ) -> IncomingTensors:
        """Allocate memory for all tensors of `metas`, or for none; use it in an `async with`.

        `keys`: what each is rounded by; empty if none is rounded by chance.
        """
        reservation = Reservation(stream.peer, metas, self._budget, keys)
        reservation.open(self._pool, stream.expect)
        return IncomingTensors(reservation, self._pool)


def _cloned(bundle: Mapping[str, Tensor], pool: TensorPool) -> dict[str, Tensor]:
    """Through page-locked memory into pages of their own: locked ones are scarce."""
    return {name: pool.on_host(tensor).clone() for name, tensor in bundle.items()}
