"""Link: the transport's interface to one link, and the pump of its machine.

`link.LinkMachine` decides. This file has the pipe of the control connection, the timer
and the bulk channels. `received` takes bytes and reports every event to the owner in
the same call of the event loop. Answers that the owner sends meanwhile leave in one
write after the last event. Bulk channels run by themselves and report only complete
transfers.

Units:   bytes, seconds.
Errors:  LinkLost for every task that waits when the link ends; LinkEnded has the reason.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from p2pswarm.errors import PeerError, SwarmError
from p2pswarm.ids import Address, Contact, PeerId
from p2pswarm.net.base import Connection, ControlPipe
from p2pswarm.transport.bulk.channel import BulkKeys, ChannelCallbacks
from p2pswarm.transport.bulk.channels import BulkArrival, BulkChannels
from p2pswarm.transport.bulk.upload_share import UploadShare
from p2pswarm.transport.config import TransportConfig
from p2pswarm.transport.events import EndpointEvent, LinkEnded, StreamEvent
from p2pswarm.transport.link import LinkMachine, LinkState, LinkStats
from p2pswarm.transport.link_places import LinkUse
from p2pswarm.transport.reply_memory import ReplyMemory
from p2pswarm.transport.session import Session

UP, ENDED = LinkState.UP, LinkState.ENDED
_log = logging.getLogger(__name__)


class LinkOwner(Protocol):
    """The owner of links, which learns what happens on them: the endpoint."""

    on_event: Callable[["Link", StreamEvent], None]
    """Called in the event loop with what happens on streams, and with the end of the link."""

    def on_link(self, link: "Link", event: EndpointEvent) -> None:
        """The link can be used, or wants bulk connections."""
        ...

    def ended(self, link: "Link") -> None:
        """Stop using the link; `on_event` is called next."""
        ...

    def released(self, link: "Link") -> None:
        """Its last socket is closed."""
        ...


@dataclass(frozen=True, slots=True)
class NodeShares:
    """What all links of a node share."""

    upload: UploadShare
    replies: ReplyMemory


class Link:
    """A proven peer: streams for messages and buffers for bulk bytes."""

    def __init__(
        self,
        session: Session,
        config: TransportConfig,
        owner: LinkOwner,
        new_lock: Callable[[], AbstractContextManager[object]],
        shared: NodeShares,
    ) -> None:
        self.session = session
        """The result of the handshake."""
        self._loop = asyncio.get_running_loop()
        self._machine = LinkMachine(session, config, self._loop.time(), shared.replies)
        self._mux = self._machine.mux
        self._owner = owner
        self._pipe: ControlPipe | None = None
        self._receiving = False
        self._timer: asyncio.TimerHandle | None = None
        self._channels = BulkChannels(
            config, new_lock, ChannelCallbacks(self._bulk_lost, self._release), shared.upload
        )
        self._open_sockets = 0

    @property
    def peer(self) -> PeerId:
        """Who is at the other end, proven."""
        return self.session.peer

    @property
    def remote(self) -> Address:
        """The address of the other end of the control connection."""
        return self.session.remote

    @property
    def contact(self) -> Contact:
        """The peer and where to dial it, as far as the peer has told us."""
        return self.session.contact

    @property
    def stats(self) -> LinkStats:
        """What the link has carried so far."""
        machine, channels = self._machine, self._channels
        return LinkStats(
            machine.sent_bytes,
            machine.received_bytes,
            channels.sent_bytes,
            channels.received_bytes,
            channels.count,
        )

    @property
    def use(self) -> LinkUse:
        """Who uses the link now."""
        if self._mux.live_ours or self._channels.busy:
            return LinkUse.US
        return LinkUse.THEM if self._mux.live else LinkUse.NOBODY

    @property
    def crowded(self) -> bool:
        """Whether the peer should get nothing more to read: it leaves too much unread."""
        return self._mux.crowded

    # streams

    def open(self, data: bytes, *, ended: bool, priority: int = 0) -> int:
        """Open a stream with its first message (<= 60 KiB); returns its number.

        Raises Busy if too many streams are open, LinkLost if the link has ended.
        """
        self._machine.check_up()
        stream = self._mux.open(data, ended=ended, priority=priority)
        self._flush()
        return stream

    def send(self, stream: int, data: bytes, *, ended: bool) -> None:
        """Send one message (<= 60 KiB); it is queued if credit is short.

        The message is dropped if the stream was reset or the link has ended; an event tells
        so. Raises ValueError on a stream whose queue is full: call `writable` first.
        """
        self._mux.send(stream, data, ended=ended)
        self._flush()

    def writable(self, stream: int) -> bool:
        """Whether a message would go out soon; if not, CreditGained(stream) comes later."""
        return self._mux.writable(stream)

    def reset(self, stream: int, code: int) -> None:
        """Give a stream up, both ways; unknown or finished streams are ignored."""
        self._mux.reset(stream, code)
        self._flush()

    def consumed(self, stream: int, n: int) -> None:
        """Note that our user has taken a message of `n` bytes: the sender gets its credit back.

        Call it once for each StreamOpened and StreamData, unless the stream has finished.
        """
        self._mux.consumed(stream, n)
        self._flush()

    # bulk

    def expect(self, memory: memoryview) -> BulkArrival:
        """Grant `memory` to one transfer from this peer."""
        self._machine.check_up()
        arrival = self._channels.expect(memory)
        self._want_bulk()
        return arrival

    async def send_bulk(self, transfer: int, data: memoryview, priority: int) -> None:
        """Send all of `data` into the memory that the peer granted to transfer number `transfer`.

        Returns once the kernel has every byte; `data` may be reused then.
        """
        self._machine.check_up()
        self._want_bulk()
        await self._channels.send(transfer, data, priority)

    def claim_number(self, number: int) -> bool:
        """Whether a bulk connection of this number may join; each number may join once."""
        return self._machine.claim_number(number)

    def add_bulk(self, stream: Connection, keys: BulkKeys) -> None:
        """Add a bulk connection that has joined."""
        if self._machine.error is not None:
            stream.close()
            return
        self._machine.bulk_joined()
        self._set_timer()
        self._channels.add(stream, keys)
        self._open_sockets += 1

    # the end

    def leave(self) -> None:
        """Open no more streams; the link closes when the streams of both sides have finished."""
        self._machine.leave()
        self._flush()

    def close(self, why: str = "closed by us") -> None:
        """End the link once what is queued has left; LinkEnded follows at once."""
        self._machine.close(self._loop.time(), why)
        self._deliver()

    def fail(self, error: SwarmError) -> None:
        """End the link for this reason; LinkEnded follows at once."""
        self._machine.fail(error)
        self._deliver()

    # called by the control connection

    def opened(self, pipe: ControlPipe) -> None:
        """The control connection is up."""
        self._pipe = pipe
        self._open_sockets += 1
        self._machine.start(self._loop.time())
        self._set_timer()
        self._deliver()
        self._flush()

    def received(self, data: bytes) -> None:
        """Bytes came: report every event, then send the answers."""
        machine = self._machine
        now_s = self._loop.time()
        self._receiving = True
        try:
            machine.receive(data, now_s)
            told = self._deliver()
        finally:
            self._receiving = False
        if told > 1 and machine.gather():
            # The tasks that were woken run before this callback: their answers leave together.
            self._loop.call_soon(self._end_gathering)
        else:
            self._flush()

    def pause_writing(self) -> None:
        """The kernel takes no more."""
        self._machine.pause_writing()

    def resume_writing(self) -> None:
        """It takes more again."""
        self._machine.resume_writing()
        self._flush()

    def lost(self, error: SwarmError) -> None:
        """The control connection is gone."""
        self._machine.lost(error)
        self._set_timer()
        self._deliver()
        self._release()

    # the pump

    def _flush(self) -> None:
        """Send what is ready, unless events are being reported or answers gathered."""
        machine = self._machine
        if (
            self._receiving
            or machine.error is not None
            or (machine.gathering and machine.holds_back())
        ):
            return
        assert self._pipe is not None
        now_s = self._loop.time()
        while record := machine.data_to_send(now_s):
            self._pipe.send(record)
        if self._mux.happened:  # later, because the caller of `send` is not ready for events
            self._loop.call_soon(self._deliver)
        if machine.state is not UP and machine.close_if_quiet(now_s, bulk_busy=self._channels.busy):
            self._deliver()

    def _deliver(self) -> int:
        """Report to the owner what happened; returns the number of stream events."""
        machine = self._machine
        if machine.news:
            for news in machine.link_events():
                self._owner.on_link(self, news)
        events = machine.events()
        for event in events:
            if isinstance(event, LinkEnded):
                self._end(event)
            elif machine.error is None:  # else an earlier event made the owner end the link
                self._owner.on_event(self, event)
        return len(events)

    def _end(self, event: LinkEnded) -> None:
        assert self._pipe is not None
        if isinstance(event.error, PeerError):
            _log.warning("link to %s closed: %s", self.peer.short, event.error)
        if self._machine.state is ENDED:
            self._pipe.abort()
        else:
            while record := self._machine.data_to_send(self._loop.time()):
                self._pipe.send(record)
            self._pipe.close()
        self._set_timer()
        self._channels.fail(f"link to {self.peer.short} ended: {event.error}")
        self._owner.ended(self)
        self._owner.on_event(self, event)

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        at_s = self._machine.next_deadline_s()
        self._timer = None if at_s is None else self._loop.call_at(at_s, self._on_deadline)

    def _on_deadline(self) -> None:
        assert self._pipe is not None
        machine = self._machine
        closing = machine.error is not None
        machine.on_deadline(self._loop.time())
        if closing:
            self._pipe.abort()
        self._set_timer()
        self._deliver()
        self._flush()

    def _end_gathering(self) -> None:
        self._machine.gathered()
        self._flush()

    def _want_bulk(self) -> None:
        if self._machine.want_bulk(self._loop.time()):
            self._set_timer()
            self._loop.call_soon(self._deliver)
            self._flush()

    def _bulk_lost(self, error: SwarmError) -> None:
        self._machine.bulk_lost(error, self._loop.time())
        self._set_timer()
        self._deliver()

    def _release(self) -> None:
        self._open_sockets -= 1
        if self._open_sockets == 0:
            self._owner.released(self)
