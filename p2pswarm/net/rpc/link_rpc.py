"""LinkRpc: calls and streams over links to real peers, SEAM 2 of `net/rpc/base.py`."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, TypeVar

from p2pswarm.base.errors import BadMessage, Busy, Late, NotServing, PeerError, SwarmError
from p2pswarm.base.ids import Contact, PeerId
from p2pswarm.base.tasks import Closing
from p2pswarm.net.cards.card import Card
from p2pswarm.net.cards.node_cards import ANSWER_S, CardHeard, CardUpdate
from p2pswarm.net.endpoint.endpoint import Endpoint
from p2pswarm.net.endpoint.link_io import Link
from p2pswarm.net.guard.connection_limits import ConcurrencyLimit, HandlerLimits
from p2pswarm.net.link.events import RESET_REFUSED, LinkEnded, StreamData, StreamEvent, StreamOpened
from p2pswarm.net.link.reply_budget import STREAM_BYTES
from p2pswarm.net.os.addresses import network_of
from p2pswarm.net.rpc.base import CardSource
from p2pswarm.net.rpc.dispatch import (
    HandlerTable,
    Listeners,
    LongOpening,
    Opening,
    StreamListener,
    read_long_opening,
    read_opening,
)
from p2pswarm.net.rpc.framing import (
    LONG,
    RESET_GIVEN_UP,
    RESET_LATE,
    Assembly,
    Kind,
    error_for_caller,
    is_good,
    pack_call,
    pack_error,
    pack_good,
    pack_opening,
    pack_outcome,
    unpack_error,
    unpack_good,
)
from p2pswarm.net.rpc.handler_pool import HandlerPool, HandlerRequest
from p2pswarm.net.rpc.stream import RpcStream, StreamTransport, held, within
from p2pswarm.net.wire.message import Message, decode, encode

AT_ONCE = HandlerLimits(per_peer=4, total=128)
"""128 of 126 KiB hold 16 MiB, as much as unread replies may; a trainer sends a voter one."""
PARTS_S = 10.0  # until the last part has come: 100 kbit/s


class LongRequest:
    """The listener of a stream until its request is whole.

    How many there may be at once is limited, because the credit of their parts is given back at
    once: calls do not wait for each other.
    """

    __slots__ = ("_begun", "_leave", "_link", "_listeners", "_serve", "_stream", "_timer")
    once = False

    def __init__(
        self,
        link: StreamTransport,
        stream: int,
        begun: LongOpening,
        listeners: dict[int, StreamListener],
        leave: Callable[[], None],
        serve: Callable[[StreamOpened, Opening], None],
    ) -> None:
        """`leave`: called once, in any case. `serve`: takes the last frame and the request."""
        self._link = link
        self._stream = stream
        self._begun = begun
        self._listeners = listeners
        self._leave = leave
        self._serve = serve
        loop, timeout_s = asyncio.get_running_loop(), begun.timeout_s
        wait_s = PARTS_S if timeout_s is None else min(timeout_s, PARTS_S)
        self._timer = loop.call_later(wait_s, self._late)

    def on_frame(self, frame: bytes, *, ended: bool) -> None:
        """Take the next part."""
        opening = self._begun.add(frame)
        if ended != (opening is not None):
            raise BadMessage("a call has one request")
        if opening is None:
            self._link.consume(self._stream, len(frame))
            return
        self._over()
        del self._listeners[self._stream]
        self._serve(StreamOpened(self._stream, frame, ended=True), opening)

    def on_credit(self) -> None:
        """Do nothing: nothing is sent before the request is whole."""

    def fail(self, error: SwarmError) -> None:
        """The caller has given up, or the link has ended."""
        del error
        self._over()

    def _over(self) -> None:
        self._timer.cancel()
        self._leave()

    def _late(self) -> None:
        self._over()
        self._listeners.pop(self._stream, None)
        self._link.reset(self._stream, RESET_LATE)


log = logging.getLogger(__name__)
M = TypeVar("M", bound=Message)


class _PendingCall:
    """A caller that waits for the reply of one call."""

    __slots__ = ("_parts", "waiter")
    once = True

    def __init__(self, waiter: asyncio.Future[Message]) -> None:
        self.waiter = waiter
        self._parts: Assembly | None = None

    def on_frame(self, frame: bytes, *, ended: bool) -> None:
        if self._parts is not None or not ended:
            self._part(frame, ended=ended)
        elif not is_good(frame):
            self.fail(unpack_error(frame))
        elif not self.waiter.done():
            self.waiter.set_result(unpack_good(frame))

    def _part(self, frame: bytes, *, ended: bool) -> None:
        """Take a part of a reply that is longer than a frame; its credit waits for the end."""
        self._parts = self._parts or Assembly()
        whole = self._parts.add(frame)
        if ended != (whole is not None):
            raise BadMessage("a call has one reply")
        if whole is not None and not self.waiter.done():
            self.waiter.set_result(decode(whole.body))

    def on_credit(self) -> None:
        """Do nothing: a request is sent at once, so nothing waits for credit."""

    def fail(self, error: SwarmError) -> None:
        if not self.waiter.done():
            self.waiter.set_exception(error)


class _RunningCall:
    """A call whose handler runs."""

    __slots__ = ("_link", "_request", "_stream", "task")
    once = False

    def __init__(self, link: Link, stream: int, request: Message) -> None:
        self._link = link
        self._stream = stream
        self._request = request
        self.task: asyncio.Task[Any] | None = None

    def on_frame(self, frame: bytes, *, ended: bool) -> None:
        raise BadMessage(f"{len(frame)} bytes after a request (ended: {ended})")

    def on_credit(self) -> None:
        """Do nothing: a reply is sent at once, so nothing waits for credit."""

    def fail(self, error: SwarmError) -> None:
        """Cancel the handler, because nobody wants the reply any more."""
        del error
        if self.task is not None:
            self.task.cancel()

    def finish(self, outcome: Message | SwarmError | None) -> None:
        """Send the reply, or the error if it cannot be encoded.

        A peer that leaves too much unread gets a small reply at most: it learns that what it
        asked for may have been done.
        """
        _send_reply(self._link, self._stream, pack_outcome(outcome, self._request))

    def give_up(self, code: int) -> None:
        self._link.reset(self._stream, code)


def _send_reply(link: Link, stream: int, frames: tuple[bytes, ...]) -> None:
    """Send a reply, unless it is large and too much is unread on this link, or on all together."""
    nbytes = len(frames[0]) if len(frames) == 1 else sum(map(len, frames))
    if nbytes > STREAM_BYTES and not link.takes(nbytes):
        link.reset(stream, RESET_LATE)
        return
    for part in frames[:-1]:
        link.send(stream, part, ended=False)
    link.send(stream, frames[-1], ended=True)


class LinkRpc(Closing):
    """Calls and streams over an endpoint's links: implements `Rpc`.

    Each stream of a link carries one call or one stream, and has one listener here: a caller that
    waits, a running handler, or a stream. The listener is called inside the transport's callback,
    so a small call costs two frames and one wake-up, and no queue. A plain function answers in
    that callback. A coroutine gets a task, which ends at its caller's deadline.

    A peer that breaks the rules loses its link.

    Use it as a context manager: leaving the block ends its handlers. Close the endpoint
    afterwards.
    """

    def __init__(self, endpoint: Endpoint, config: HandlerLimits | None = None) -> None:
        self._endpoint = endpoint
        self.cards: CardSource = endpoint.cards
        self.reach = endpoint.reach
        self._handlers = HandlerTable()
        self.serve_unary = self._handlers.serve_unary
        self.serve_stream = self._handlers.serve_stream
        self._listeners: Listeners[Link] = Listeners()
        self._pools = {kind: HandlerPool(config or HandlerLimits()) for kind in Kind}
        self._long = ConcurrencyLimit(AT_ONCE)
        endpoint.on_event = self._on_event
        endpoint.on_card = self._tell_card
        self.serve_unary(CardUpdate, self._on_card)

    @property
    def contact(self) -> Contact:
        """Our own contact, as others should dial it."""
        return self._endpoint.contact

    async def call(self, to: Contact, request: Message, timeout_s: float) -> Message:
        """Send one request and return the reply; see `Rpc`."""
        body = encode(request)
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(timeout_s) as scope:  # `within` would cost 3 us more
                link = await self._endpoint.link(to)
                left_s = (scope.when() or 0.0) - loop.time()
                caller = _PendingCall(loop.create_future())
                frames = pack_call(left_s, body)
                listeners, stream = self._open(link, frames[0], caller, ended=len(frames) == 1)
                for frame in frames[1:]:
                    link.send(stream, frame, ended=frame is frames[-1])
                try:
                    return await caller.waiter
                finally:
                    if listeners.pop(stream, None) is not None:
                        link.reset(stream, RESET_GIVEN_UP)
        except TimeoutError as error:
            if isinstance(error, SwarmError) or not scope.expired():
                raise
            raise Late(f"no reply from {to.address} within {timeout_s:g} s") from error

    @asynccontextmanager
    async def open_stream(
        self, to: Contact, opening: Message, timeout_s: float | None
    ) -> AsyncIterator[RpcStream]:
        """Open a stream; see `Rpc`."""
        frame = pack_opening(Kind.STREAM, timeout_s, encode(opening))
        async with within(timeout_s, f"stream with {to.address}"):
            link = await self._endpoint.link(to)
            stream = RpcStream(link)
            listeners, stream.stream = self._open(link, frame, stream, ended=False)
            try:
                async with held(stream):
                    yield stream
            finally:
                listeners.pop(stream.stream, None)

    async def close(self) -> None:
        """Stop every handler; the peers that wait for them get a reset."""
        stopped = [task for pool in self._pools.values() for task in pool.stop()]
        await asyncio.gather(*stopped, return_exceptions=True)

    def _open(
        self, link: Link, frame: bytes, listener: StreamListener, *, ended: bool
    ) -> tuple[dict[int, StreamListener], int]:
        """Open a stream on a link that is up, and register its listener."""
        stream = link.open(frame, ended=ended)
        listeners = self._listeners.of(link)
        listeners[stream] = listener
        return listeners, stream

    def _on_card(self, peer: PeerId, told: CardUpdate) -> Message:
        return CardHeard(self._endpoint.learn_card(peer, told.card))

    def _tell_card(self, link: Link, card: Card) -> None:
        """Tell the peer of a link a card that it does not have; nobody waits for it."""
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[Message] = loop.create_future()
        frame = pack_opening(Kind.UNARY, ANSWER_S, encode(CardUpdate(card.data)))
        try:
            listeners, stream = self._open(link, frame, _PendingCall(waiter), ended=True)
        except SwarmError as error:
            log.debug("%s is not told a card: %s", link.peer.short, error)
            return

        def give_up() -> None:
            if listeners.pop(stream, None) is not None:
                link.reset(stream, RESET_GIVEN_UP)

        timer = loop.call_later(ANSWER_S, give_up)

        def answered(reply: asyncio.Future[Message]) -> None:
            timer.cancel()
            if reply.cancelled() or reply.exception() is not None:
                return  # its link ended, or it serves no calls
            try:
                if isinstance(heard := reply.result(), CardHeard) and heard.newer:
                    self._endpoint.learn_card(link.peer, heard.newer)
            except PeerError as error:
                log.warning("%s broke the protocol: %s", link.peer.short, error)
                link.close()

        waiter.add_done_callback(answered)

    def _on_event(self, link: Link, event: StreamEvent) -> None:
        """Handle an event of the transport, inside its read callback."""
        try:
            if isinstance(event, StreamOpened):
                self._opened(link, event)
            elif isinstance(event, LinkEnded):
                self._listeners.on_link_end(link, event.error)
                self._judge(link, event.error)
            elif not self._listeners.on_event(link, event) and isinstance(event, StreamData):
                link.consume(event.stream, len(event.data))
        except PeerError as error:
            log.warning("%s broke the protocol: %s", link.peer.short, error)
            self._listeners.on_link_end(link, error)
            link.close()
            self._judge(link, error)

    def _judge(self, link: Link, error: SwarmError) -> None:
        """A link ended with an error: if that is the peer's doing, it may be banned."""
        now_s = asyncio.get_running_loop().time()
        self._endpoint.bans.on_link_end(link.peer, error, now_s)
        if self._endpoint.bans.on_breach(link.peer, link.remote, error, now_s):
            for other in self._endpoint.links():
                if other.peer == link.peer:
                    other.close("the peer is banned")

    def _opened(self, link: Link, event: StreamOpened) -> None:
        """Answer a peer's opening at once, or start a handler."""
        if not link.takes():
            link.reset(event.stream, RESET_REFUSED)
            return
        try:
            if event.data[:1] == LONG:
                self._start_long(link, event)
                return
            opening = read_opening(event.data, ended=event.ended)
        except (NotServing, Busy) as error:
            link.send(event.stream, pack_error(error), ended=True)
            return
        self._serve(link, event, opening)

    def _start_long(self, link: Link, event: StreamOpened) -> None:
        """Take the first part of a request that is longer than a frame."""
        begun = read_long_opening(event.data, ended=event.ended)
        self._handlers.unary(begun.kind)
        stream, listeners = event.stream, self._listeners.of(link)
        peer, network = link.peer, network_of(link.remote.host)
        self._long.enter(peer, network)
        link.consume(stream, len(event.data))

        leave, serve = partial(self._long.leave, peer, network), partial(self._serve, link)
        listeners[stream] = LongRequest(link, stream, begun, listeners, leave, serve)

    def _serve(self, link: Link, event: StreamOpened, opening: Opening) -> None:
        """Serve a request that is here."""
        try:
            if opening.kind is Kind.UNARY:
                self._answer(link, event, opening)
            else:
                self._serve_stream(link, event, opening)
        except BadMessage:  # a plain function looks at nothing but the request: it is malformed
            raise
        except Exception as error:  # noqa: BLE001  sent to the caller, and logged if it is our bug
            known = error_for_caller(error, opening.request)
            link.send(event.stream, pack_error(known), ended=True)

    def _answer(self, link: Link, event: StreamOpened, opening: Opening) -> None:
        request = opening.request
        outcome = self._handlers.unary(type(request))(link.peer, request)
        if isinstance(outcome, Message):
            _send_reply(link, event.stream, pack_good(outcome))
        else:
            self._start(link, event, opening, _RunningCall(link, event.stream, request), outcome)

    def _serve_stream(self, link: Link, event: StreamOpened, opening: Opening) -> None:
        handler = self._handlers.stream(opening.request)
        stream = RpcStream(link, event.stream)
        self._start(link, event, opening, stream, handler(stream, opening.request))

    def _start(
        self,
        link: Link,
        event: StreamOpened,
        opening: Opening,
        server: _RunningCall | RpcStream,
        work: Coroutine[Any, Any, Any],
    ) -> None:
        """Start a handler; until it ends, `server` is the listener of the stream."""
        stream, listeners = event.stream, self._listeners.of(link)

        def after() -> None:
            if listeners.get(stream) is server:
                del listeners[stream]

        network = network_of(link.remote.host)
        order = HandlerRequest(link.peer, opening.request, opening.timeout_s, after, network)
        self._pools[opening.kind].start(server, order, work)
        listeners[stream] = server
        link.consume(stream, len(event.data))  # the pool limits what handlers hold
