"""Link: the transport's interface to one link, and the pump of its machine.

Errors:  LinkLost for every task that waits when the link ends; LinkEnded has the reason.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from p2pswarm.base.errors import LinkLost, PeerError, SwarmError
from p2pswarm.net.bulk.channel_set import BulkArrival, BulkChannels, ChannelsUser
from p2pswarm.net.bulk.connection_count import CountMemory
from p2pswarm.net.bulk.upload_share import UploadShare
from p2pswarm.net.config import TransportConfig
from p2pswarm.net.crypto.handshake import Keys
from p2pswarm.net.endpoint.link_paths import ControlPath, LinkPaths, no_pipe
from p2pswarm.net.guard.connection_limits import LinkUse
from p2pswarm.net.link.events import (
    BulkCount,
    BulkDone,
    BulkSpare,
    EndpointEvent,
    LinkEnded,
    LinkNotice,
    PathAltered,
    PathBroken,
    StreamEvent,
)
from p2pswarm.net.link.link import LinkMachine, LinkState, LinkStats
from p2pswarm.net.link.path import Path
from p2pswarm.net.link.reply_budget import ReplyBudget
from p2pswarm.net.link.session import Session
from p2pswarm.net.link.stream_scheduler import AnswerBatch
from p2pswarm.net.os.base import Connection
from p2pswarm.net.wire import frames

L = TypeVar("L")


class LinkOwner(Protocol[L]):
    """The owner of links, which learns what happens on them: the endpoint."""

    on_event: Callable[[L, StreamEvent], None]
    """Called in the event loop with what happens on streams, and with the end of the link."""

    def on_link_event(self, link: L, event: EndpointEvent) -> None:
        """The link can be used, wants bulk connections, or another path."""
        ...

    def on_link_end(self, link: L) -> None:
        """Stop using the link; `on_event` is called next."""
        ...

    def on_channel_end(self, link: L, number: int) -> None:
        """One of its bulk connections is closed."""
        ...

    def on_release(self, link: L) -> None:
        """Its last socket is closed."""
        ...


@dataclass(frozen=True, slots=True)
class NodeShares:
    """The limits that all links of a node share."""

    upload: UploadShare
    memory: ReplyBudget = field(default_factory=ReplyBudget)
    """Of both what waits to be sent, and what is not acknowledged."""
    counts: CountMemory = field(default_factory=CountMemory)


UP, ENDED = LinkState.UP, LinkState.ENDED
_log = logging.getLogger(__name__)


class Link:
    """A proven peer: streams for messages and buffers for bulk bytes.

    `link.LinkMachine` decides. This file has the present control connection, the timer and the
    bulk channels. `on_data` takes bytes and reports every event to the owner in the same call of
    the event loop. Answers that the owner sends meanwhile leave in one write after the last event.
    """

    def __init__(
        self,
        session: Session,
        config: TransportConfig,
        owner: "LinkOwner[Link]",
        new_lock: Callable[[], AbstractContextManager[object]],
        shared: NodeShares,
    ) -> None:
        self.session = session
        self.peer = session.peer
        self.remote = session.remote
        """The address of the other end of the control connection."""
        self.contact = session.contact
        """The peer and where to dial it, as far as the peer has told us."""
        self._loop = asyncio.get_running_loop()
        self._machine = LinkMachine(session, config, self._loop.time(), shared.memory)
        self._mux = self._machine.mux
        self.writable, self.takes = self._mux.writable, self._mux.takes
        self._watch = self._machine.life.watch
        self.pause_writing = self._machine.pause_writing  # the present path takes no more
        self._owner = owner
        self.paths = LinkPaths(self._machine, session, shared.counts)
        self.path: Path | None = None
        """The path in use; None while the link looks for another one, and at its end."""
        self._send: Callable[[bytes], None] = no_pipe
        self._batch = AnswerBatch()
        self._receiving = False
        self.records = self._machine.records
        """The records that it has sealed and opened; only read it."""
        self.bulk = self._machine.bulk
        """The numbers under which bulk connections join."""
        self.path_change = asyncio.Event()
        """Set when a path comes up, and when the link ends."""
        self._timer: asyncio.TimerHandle | None = None
        user = ChannelsUser(
            self._on_channel_loss,
            self._on_channel_release,
            self._on_transfer_end,
            self._on_chunk_counts,
        )
        self._channels = BulkChannels(config, new_lock, user, shared.upload)
        self._open_sockets = 0

    @property
    def over(self) -> bool:
        """Return whether the link has ended."""
        return self._machine.error is not None

    @property
    def rtt_s(self) -> float:
        """The round trip of its pings; 0 before the first has come back."""
        return self._machine.life.rtt_s

    @property
    def doubted(self) -> bool:
        """Return whether the path may be dead, and nothing has come since that was noticed."""
        return self._machine.doubts_path

    @property
    def stats(self) -> LinkStats:
        """The bytes that the link has carried so far."""
        sent = self.records.unacked.sent_bytes
        return LinkStats(sent, *self._channels.carried, self._machine.path.altered)

    @property
    def use(self) -> LinkUse:
        """Return who uses the link now."""
        return self._machine.use(bulk_busy=self._channels.busy)

    def open(self, data: bytes, *, ended: bool, priority: int = 0) -> int:
        """Open a stream with its first message (<= 60 KiB); Busy if too many are, or LinkLost."""
        self._machine.check_up()
        stream = self._mux.open(data, ended=ended, priority=priority)
        self._flush()
        if self._watch.at_s is None:
            self._begin_watch()
        return stream

    def send(self, stream: int, data: bytes, *, ended: bool) -> None:
        """Send one message (<= 60 KiB); it is queued if credit is short.

        The message is dropped if the stream was reset or the link has ended; an event tells
        so. Raises ValueError on a stream whose queue is full: call `writable` first.
        """
        self._mux.send(stream, data, ended=ended)
        self._flush()

    def reset(self, stream: int, code: int) -> None:
        """Give a stream up, both ways; unknown or finished streams are ignored."""
        self._mux.reset(stream, code)
        self._flush()

    def consume(self, stream: int, n: int) -> None:
        """Note that our user has taken a message of `n` bytes: the sender gets its credit back.

        Call it once for each StreamOpened and StreamData, unless the stream has finished.
        """
        self._mux.consume(stream, n)
        self._flush()

    def expect(self, memory: memoryview) -> BulkArrival:
        """Grant `memory` to one transfer from this peer."""
        self._machine.check_up()
        arrival = self._channels.expect(memory)
        self._want_bulk()
        return arrival

    async def send_bulk(self, transfer: int, data: memoryview, priority: int) -> None:
        """Send `data` to a transfer; returns once the peer has all of it, or wants no more."""
        self._machine.check_up()
        self._want_bulk()
        await self._channels.send(transfer, data, priority)

    def add_bulk(self, connection: Connection, keys: Keys, number: int) -> None:
        """Add a bulk connection that has joined."""
        if self.over or not self.bulk.may_join(number):
            connection.close()
            return
        self._machine.bulk.on_join(number, self._loop.time())
        self._set_timer()
        self._channels.add(connection, keys, number)
        self._open_sockets += 1

    def on_join_failure(self, path: Path, error: SwarmError) -> None:
        """A bulk connection of `path` could not be made: the link ends if it has no other."""
        if path is self.path and self.bulk.is_hopeless:
            self.fail(error)
        elif path is self.path:  # else the next one asks for its own
            self.bulk.on_failure(self._loop.time())
            self._set_timer()

    def leave(self) -> None:
        """Open no more streams; the link closes when those of both sides have finished."""
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

    # called by control connections

    def on_path(self, path: ControlPath) -> None:
        """A connection is up: the first one, or another to go on over."""
        self._open_sockets += 1
        if not self.paths.on_path(path, self._loop.time()):
            return
        self.path, self._send = path.path, path.pipe.send
        self.path_change.set()
        self._channels.close()  # those of the old path: their chunks are sent again
        self._begin_watch()
        self._deliver()
        self._flush()
        if self._channels.busy:
            self._want_bulk()

    def on_path_loss(self, path: ControlPath, error: SwarmError) -> None:
        """A connection is gone."""
        if self.paths.on_path_loss(path, error, self._loop.time()):
            self.path, self._send = None, no_pipe
            self._set_timer()
            self._deliver()
        self._open_sockets -= 1
        self._release_if_over()

    def on_no_peer(self, why: str) -> None:
        """No way leads to the peer any more: the link ends, unless a path is up."""
        if self.paths.current is None:
            self.fail(LinkLost(f"link to {self.peer.short}: {why}"))

    def on_data(self, data: bytes) -> None:
        """Bytes came: report every event, then send the answers."""
        machine = self._machine
        now_s = self._loop.time()
        self._receiving = True
        try:
            machine.on_data(data, now_s)
            events = self._deliver()
        finally:
            self._receiving = False
        if machine.peer_closed:
            self.fail(LinkLost(f"link to {self.peer.short}: {machine.peer_closed}"))
        elif events > 1 and machine.error is None and self._batch.begin():
            # The tasks that were woken run before this callback: their answers leave together.
            self._loop.call_soon(self._end_batch)
        else:
            self._flush()
        if events and self._watch.at_s is None:
            self._begin_watch()

    def resume_writing(self) -> None:
        """It takes more again."""
        self._machine.resume_writing()
        self._flush()

    # the pump

    def _flush(self) -> None:
        """Send what is ready, unless events are being reported or answers gathered."""
        machine = self._machine
        if (
            self._receiving
            or machine.error is not None
            or (self._batch.count and self._batch.waits())
        ):
            return
        now_s, mux = self._loop.time(), self._mux
        while mux.lines.count or mux.control or machine.mute:  # else a call of it would cost 1 %
            if not (record := machine.data_to_send(now_s)):
                break
            self._send(record)
        if mux.stream_events:  # later, because the caller of `send` is not ready for events
            self._loop.call_soon(self._deliver)
        if machine.state is not UP and (
            machine.close_if_quiet(now_s, bulk_busy=self._channels.busy) or self.over
        ):
            self._deliver()

    def _deliver(self) -> int:
        """Report to the owner what happened; returns the number of stream events."""
        machine = self._machine
        while machine.notices:
            for notice in machine.drain():
                self._act(notice)
        events = self._mux.events() if machine.error is None else machine.events()
        for event in events:
            if isinstance(event, LinkEnded):
                self._end(event)
            elif machine.error is None:  # else an earlier event made the owner end the link
                self._owner.on_event(self, event)
        return len(events)

    def _act(self, notice: LinkNotice) -> None:
        match notice:
            case BulkDone(transfer):
                self._channels.on_done(transfer)
            case BulkCount(number, chunks, over=True):
                if not self._channels.on_channel_end(number, chunks) and self.bulk.withdraw(number):
                    self._mux.say_bulk_count(number, 0, over=True)
            case BulkCount(number, chunks):
                self._channels.on_chunk_count(number, chunks, self._machine.life.repair_s)
            case BulkSpare(count):
                self._channels.retire(count)
            case PathBroken():
                self._leave_path()
            case PathAltered(number):
                self.paths.marks.on_corruption(number, self._loop.time())
            case _:
                self._owner.on_link_event(self, notice)

    def _end(self, event: LinkEnded) -> None:
        if isinstance(event.error, PeerError):
            _log.warning("link to %s closed: %s", self.peer.short, event.error)
        machine, control = self._machine, self.paths.current
        self._batch.end()
        if control is not None:
            while record := machine.data_to_send(self._loop.time()):
                self._send(record)
            if last := machine.goodbye(self._loop.time()):
                self._send(last)
            end = control.pipe.abort if machine.state is ENDED else control.pipe.close
            end()
        self.path_change.set()
        self._set_timer()
        self._channels.fail(f"link to {self.peer.short} ended: {event.error}")
        self._owner.on_link_end(self)
        self._owner.on_event(self, event)
        self._release_if_over()

    def _leave_path(self) -> None:
        """The path brings wrong bytes: tell the peer, here and again by the next path, and go."""
        now_s = self._loop.time()
        self._mux.say(frames.ALTERED, frames.NUMBER.pack(self.paths.numbers.newest))
        while record := self._machine.data_to_send(now_s):
            self._send(record)
        self.paths.leave(now_s)
        self.path, self._send = None, no_pipe
        self._channels.close()
        self._set_timer()

    def _begin_watch(self) -> None:
        """Look closer at the path while the link is in use."""
        if self.paths.current is not None and not self.over:
            self._watch.begin(self.records.expected, self._loop.time())
        self._set_timer()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        at_s = self._machine.next_deadline_s()
        self._timer = None if at_s is None else self._loop.call_at(at_s, self._on_deadline)

    def _on_deadline(self) -> None:
        machine = self._machine
        closing = machine.error is not None
        carried, busy = self._channels.payload_bytes, self._channels.busy
        machine.on_deadline(self._loop.time(), carried, bulk_busy=busy)
        if closing and self.paths.current is not None:
            self.paths.current.pipe.abort()
        self._set_timer()
        self._deliver()
        self._flush()

    def _end_batch(self) -> None:
        self._batch.end()
        self._flush()

    def _want_bulk(self) -> None:
        now_s = self._loop.time()
        begun = self.bulk.on_work(self._channels.payload_bytes, now_s)
        if self._machine.want_bulk(now_s) or begun:
            self._set_timer()
            self._loop.call_soon(self._deliver)
            self._flush()
        if self._watch.at_s is None:
            self._begin_watch()

    def _on_channel_loss(self, error: SwarmError) -> None:
        self._machine.on_channel_loss(error, self._loop.time())
        self._set_timer()
        self._deliver()

    def _on_channel_release(self, number: int, chunks: int) -> None:
        self._owner.on_channel_end(self, number)
        self._mux.say_bulk_count(number, chunks, over=True)
        self._flush()
        self._open_sockets -= 1
        self._release_if_over()

    def _on_chunk_counts(self, counts: list[tuple[int, int]]) -> None:
        if self.paths.current is None:  # what is old when it comes proves nothing
            return
        for number, chunks in counts:
            self._mux.say_bulk_count(number, chunks, over=False)
        self._flush()

    def _on_transfer_end(self, transfer: int) -> None:
        self._mux.say(frames.BULK_DONE, frames.TRANSFER.pack(transfer))
        try:
            self._mux.check_read()
        except PeerError as error:
            self.fail(error)
        self._flush()

    def _release_if_over(self) -> None:
        if self._open_sockets == 0 and self.over:
            self._open_sockets = -1  # this is said once
            self._owner.on_release(self)
