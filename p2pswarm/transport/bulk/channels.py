"""BulkChannels: the bulk connections of one link, and the tasks that wait for transfers.

Transfers share all channels of a link: each channel takes its next chunk from one send
queue and fills one set of receive buffers. Channels run by themselves, on sockets in
threads, and report only complete transfers.

Units:   bytes.
Errors:  LinkLost for every task that waits when the link ends.
"""

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager

from p2pswarm.errors import LinkLost
from p2pswarm.net.base import BulkPipe, Connection
from p2pswarm.transport.bulk.channel import BulkChannel, BulkKeys, ChannelCallbacks
from p2pswarm.transport.bulk.receive_buffers import ReceiveBuffers
from p2pswarm.transport.bulk.send_queue import SendQueue
from p2pswarm.transport.bulk.upload_share import BACKGROUND, HELD_S, UploadShare
from p2pswarm.transport.config import TransportConfig


class BulkArrival:
    """A transfer on its way into granted memory: implements `Arrival` of `rpc/base.py`."""

    def __init__(
        self, buffers: ReceiveBuffers, waiting: dict[int, "BulkArrival"], memory: memoryview
    ) -> None:
        self._buffers = buffers
        self._waiting = waiting
        self._settled = asyncio.Event()
        self._failure = ""
        self.transfer = buffers.add(memory, self._land)
        """The number to tell the sender."""
        waiting[self.transfer] = self
        if not memory:
            self.cancel()
            self._settled.set()

    async def wait(self) -> None:
        """Return when every byte is in place; raises LinkLost if they cannot come."""
        await self._settled.wait()
        if self._failure:
            raise LinkLost(self._failure)

    def cancel(self) -> None:
        """Take the memory back; chunks that come later are dropped.

        Do not use the memory again: a chunk that is just being decrypted may still be
        written there.
        """
        self._buffers.cancel(self.transfer)
        self._waiting.pop(self.transfer, None)

    def fail(self, reason: str) -> None:
        """Fail the transfer, because the link ended before every byte was here."""
        self.cancel()
        self._failure = reason
        self._settled.set()

    def _land(self) -> None:
        if self._waiting.pop(self.transfer, None) is not None:
            self._settled.set()


class BulkChannels:
    """The bulk connections of one link."""

    def __init__(
        self,
        config: TransportConfig,
        new_lock: Callable[[], AbstractContextManager[object]],
        ends: ChannelCallbacks,
        upload: UploadShare,
    ) -> None:
        self._config = config
        self._ends = ends
        self._buffers = ReceiveBuffers(new_lock())
        self._send_queue = SendQueue(new_lock(), config.chunk_bytes, upload, self._wake)
        self._arrivals: dict[int, BulkArrival] = {}
        self._sends: dict[asyncio.Future[None], None] = {}
        self._channels: list[tuple[BulkChannel, BulkPipe]] = []

    @property
    def busy(self) -> bool:
        """Whether any transfer is under way."""
        return bool(self._arrivals or self._sends)

    @property
    def count(self) -> int:
        """How many channels have joined."""
        return len(self._channels)

    @property
    def sent_bytes(self) -> int:
        """Payload sent so far."""
        return sum(machine.sent_bytes for machine, _ in self._channels)

    @property
    def received_bytes(self) -> int:
        """Payload received so far."""
        return sum(machine.received_bytes for machine, _ in self._channels)

    def expect(self, memory: memoryview) -> BulkArrival:
        """Grant `memory` to one transfer."""
        if memory.readonly:
            raise ValueError("the memory of a transfer must be writable")
        return BulkArrival(self._buffers, self._arrivals, memory.cast("B"))

    async def send(self, transfer: int, data: memoryview, priority: int) -> None:
        """Send all of `data`, over channels that are there or join later; returns when sent."""
        flat = data.cast("B")
        if not flat:
            return
        done = asyncio.get_running_loop().create_future()
        self._sends[done] = None
        share = len(self._channels) or self._config.bulk_connections
        transfer_out = self._send_queue.add(transfer, flat, priority, share, lambda: _settle(done))
        self._wake()
        try:
            while priority >= BACKGROUND and not done.done():
                await asyncio.wait((done,), timeout=HELD_S)
                self._wake()
            await done
        finally:
            self._sends.pop(done, None)
            self._send_queue.cancel(transfer_out)

    def add(self, stream: Connection, keys: BulkKeys) -> None:
        """Add a channel that has joined."""
        now_s = asyncio.get_running_loop().time()
        machine = BulkChannel(keys, self._buffers, self._send_queue, self._ends, now_s)
        pipe = stream.become_bulk(machine)
        self._channels.append((machine, pipe))
        if self._sends:
            pipe.wake()

    def _wake(self) -> None:
        for _, pipe in self._channels:
            pipe.wake()

    def fail(self, reason: str) -> None:
        """Close every channel and fail every transfer, because the link is over."""
        for _, pipe in self._channels:
            pipe.close()
        for arrival in list(self._arrivals.values()):
            arrival.fail(reason)
        for done in self._sends:
            if not done.done():
                done.set_exception(LinkLost(reason))


def _settle(done: asyncio.Future[None]) -> None:
    if not done.done():
        done.set_result(None)
