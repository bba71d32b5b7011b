"""BulkChannels: the bulk connections of one link, and the tasks that wait for transfers."""

import asyncio
import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial

from p2pswarm.base.errors import BadChunk, BadRecord, LinkLost, SwarmError
from p2pswarm.net.bulk.channel import BulkChannel, ChannelCallbacks
from p2pswarm.net.bulk.channel_silence import REPORT_S, ChannelSilence
from p2pswarm.net.bulk.receive_buffers import ReceiveBuffers
from p2pswarm.net.bulk.send_queue import SendQueue
from p2pswarm.net.bulk.upload_share import BACKGROUND, HELD_S, UploadShare
from p2pswarm.net.config import TransportConfig
from p2pswarm.net.crypto.handshake import Keys
from p2pswarm.net.os.base import BulkPipe, Connection

RETIRE_S = 2.0  # for what a channel has taken to leave, before it is closed
_log = logging.getLogger(__name__)
ENDED_MAX = 256  # channels of which the peer does not say what came: it tells at once, in order


@dataclass(frozen=True, slots=True)
class ChannelsUser:
    """The functions of the link that its channels call, in the event loop."""

    on_loss: Callable[[SwarmError], None]
    """A channel has ended."""
    on_release: Callable[[int, int], None]
    """The socket of a channel is closed: the number of its join, and the chunks that came."""
    on_done: Callable[[int], None]
    """We want no more of this transfer: tell the peer."""
    on_chunk_counts: Callable[[list[tuple[int, int]]], None]
    """Tell the peer, who sends, how many chunks came: the number of each channel with its count."""


class BulkArrival:
    """A transfer on its way into granted memory: implements `Arrival` of `net/rpc/base.py`."""

    def __init__(
        self,
        buffers: ReceiveBuffers,
        waiting: dict[int, "BulkArrival"],
        memory: memoryview,
        done: Callable[[int], None],
    ) -> None:
        """`done`: tells the sender that we want no more of a transfer."""
        self._buffers = buffers
        self._done = done
        self._waiting = waiting
        self._settled = asyncio.Event()
        self._failure = ""
        self.transfer = buffers.add(memory, self._on_land)
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
        if self._waiting.pop(self.transfer, None) is not None:
            self._done(self.transfer)

    def fail(self, reason: str) -> None:
        """Fail the transfer, because the link ended before every byte was here."""
        self.cancel()
        self._failure = reason
        self._settled.set()

    def _on_land(self) -> None:
        if self._waiting.pop(self.transfer, None) is not None:
            self._settled.set()
            self._done(self.transfer)


class BulkChannels:
    """The bulk connections of one link.

    Transfers share all channels of a link: each channel takes its next chunk from one send queue
    and fills one set of receive buffers. Channels run by themselves, on sockets in threads, and
    report only complete transfers.

    A channel that ends costs the time of its chunks. Each side tells the other how many chunks
    came on it, and sends the others again on another channel; so, too, if one falls silent
    (`channel_silence.py`).
    """

    def __init__(
        self,
        config: TransportConfig,
        new_lock: Callable[[], AbstractContextManager[object]],
        user: ChannelsUser,
        upload: UploadShare,
    ) -> None:
        self._config = config
        self._user = user
        self._buffers = ReceiveBuffers(new_lock())
        self._send_queue = SendQueue(new_lock(), config.chunk_bytes, upload, self._wake)
        self._arrivals: dict[int, BulkArrival] = {}
        self._sends: dict[asyncio.Future[None], None] = {}
        self._channels: dict[int, tuple[BulkChannel, BulkPipe]] = {}
        self._came: dict[int, int] = {}  # what the peer says of channels that we still have
        self._ended: dict[int, None] = {}  # channels of which the peer has said nothing yet
        self._silence = ChannelSilence()
        self._reporting: asyncio.TimerHandle | None = None  # while we await a transfer
        self._left: dict[int, None] = {}  # channels of a path that was left
        self._sent_bytes = self._received_bytes = 0  # on channels that have ended

    @property
    def busy(self) -> bool:
        """Return whether any transfer is under way."""
        return bool(self._arrivals or self._sends)

    @property
    def carried(self) -> tuple[int, int, int]:
        """Payload sent and received so far, and how many channels there are."""
        live = [machine for machine, _ in self._channels.values()]
        sent = self._sent_bytes + sum(machine.sent_bytes for machine in live)
        received = self._received_bytes + sum(machine.received_bytes for machine in live)
        return sent, received, len(live)

    @property
    def payload_bytes(self) -> int:
        """Payload carried so far, both ways."""
        sent, received, _ = self.carried
        return sent + received

    def expect(self, memory: memoryview) -> BulkArrival:
        """Grant `memory` to one transfer."""
        if memory.readonly:
            raise ValueError("the memory of a transfer must be writable")
        arrival = BulkArrival(self._buffers, self._arrivals, memory.cast("B"), self._user.on_done)
        if self._reporting is None and self._arrivals:
            self._reporting = asyncio.get_running_loop().call_later(REPORT_S, self._report)
        return arrival

    async def send(self, transfer: int, data: memoryview, priority: int) -> None:
        """Send all of `data`; returns when the peer has it, or wants no more of it."""
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

    def add(self, connection: Connection, keys: Keys, number: int) -> None:
        """Add a channel that has joined under `number`."""
        now_s = asyncio.get_running_loop().time()
        calls = ChannelCallbacks(
            partial(self._lose, number), partial(self._release, number), self._user.on_done
        )
        machine = BulkChannel(keys, self._buffers, self._send_queue, calls, now_s, number)
        pipe = connection.become_bulk(machine)
        self._channels[number] = machine, pipe
        if self._sends:
            pipe.wake()

    def retire(self, count: int) -> None:
        """Give the newest channels up: they take no more chunks, and are closed soon."""
        loop = asyncio.get_running_loop()
        for machine, pipe in list(self._channels.values())[-count:]:
            machine.retired = True
            loop.call_later(RETIRE_S, pipe.close)

    def on_done(self, transfer: int) -> None:
        """The peer wants no more of a transfer."""
        self._send_queue.on_done(transfer)

    def on_channel_end(self, number: int, chunks: int) -> bool:
        """The peer reads no more on a channel after so many chunks; whether there was one."""
        if number in self._channels:
            self._came[number] = chunks
            self._channels[number][1].close()
        elif number in self._ended:
            del self._ended[number]
            self._send_again(number, chunks)
        else:
            return False
        return True

    def on_chunk_count(self, number: int, chunks: int, patience_s: float) -> None:
        """The peer tells how many chunks came: close a channel that is silent for `patience_s`."""
        if number not in self._channels:
            return
        machine, pipe = self._channels[number]
        now_s = asyncio.get_running_loop().time()
        acknowledged = pipe.acknowledged_bytes()
        if self._silence.on_report(
            number, chunks, machine.chunks_out, acknowledged, patience_s, now_s
        ):
            _log.info("a bulk connection brings nothing: its chunks go by another")
            pipe.close()

    def _report(self) -> None:
        """Tell what came so far, and again as long as we await anything."""
        self._reporting = None
        if self._arrivals:
            counts = [(number, each.chunks_in) for number, (each, _) in self._channels.items()]
            self._reporting = asyncio.get_running_loop().call_later(REPORT_S, self._report)
            self._user.on_chunk_counts(counts)

    def close(self) -> None:
        """Close every channel, because their path was left; others will take their place."""
        for number, (_, pipe) in list(self._channels.items()):
            self._left[number] = None
            pipe.close()

    def _lose(self, number: int, error: SwarmError) -> None:
        """A channel has ended; what a path still did that was left says nothing of the next."""
        if number in self._left and isinstance(error, BadRecord):
            error = LinkLost(str(error))
        self._user.on_loss(error)

    def _release(self, number: int) -> None:
        """The socket of a channel is closed: nothing comes or goes on it any more."""
        self._left.pop(number, None)
        machine, _ = self._channels.pop(number)
        self._silence.forget(number)
        self._sent_bytes += machine.sent_bytes
        self._received_bytes += machine.received_bytes
        if number in self._came:
            self._send_again(number, self._came.pop(number))
        else:
            self._ended[number] = None
            if len(self._ended) > ENDED_MAX:
                self._user.on_loss(BadChunk("the peer does not say what came on bulk connections"))
        self._user.on_release(number, machine.chunks_in)

    def _send_again(self, number: int, chunks: int) -> None:
        if self._send_queue.on_channel_end(number, chunks):
            self._wake()

    def _wake(self) -> None:
        """Let every channel ask for a chunk; any thread may call this."""
        for _, pipe in list(self._channels.values()):
            pipe.wake()

    def fail(self, reason: str) -> None:
        """Close every channel and fail every transfer, because the link is over."""
        self.close()
        if self._reporting is not None:
            self._reporting.cancel()
            self._reporting = None
        for arrival in list(self._arrivals.values()):
            arrival.fail(reason)
        for done in self._sends:
            if not done.done():
                done.set_exception(LinkLost(reason))
                done.exception()  # who waited may be cancelled in this turn: asyncio would complain


def _settle(done: asyncio.Future[None]) -> None:
    if not done.done():
        done.set_result(None)
