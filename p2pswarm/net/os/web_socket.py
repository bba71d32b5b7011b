"""Connections over WebSocket: binary messages that carry the bytes of a connection in order.

Each WebSocket is joined with one end of a pair of local sockets. The other end is a connection like
any other, so everything above works over it, and blocking threads do, too.

`WebUpgrade` takes accepted sockets. Nothing is spent on one before its peer has said something and
its acceptor has a place for it; the acceptor also bounds how long it may take. So strangers at this
port are limited as at any other.

Errors:  DialFailed; Unusable if the port or the certificate cannot be used.
Source:  docs/relays.md, "Over WebSocket"; RFC 6455.
"""

import asyncio
import contextlib
import ipaddress
import logging
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import aiohttp
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from p2pswarm.base.errors import DialFailed, LinkLost, SwarmError, Unusable
from p2pswarm.base.ids import Address
from p2pswarm.base.tasks import Closing, OwnedTasks
from p2pswarm.net.os.addresses import PROXIES
from p2pswarm.net.os.base import Connection
from p2pswarm.net.os.sockets import SocketConnection, reason_of
from p2pswarm.net.os.tls import AcceptedTls, Compute

PATH = "/p2pswarm"
PIECE_BYTES = 128 * 1024
MESSAGE_BYTES_MAX = 2 * PIECE_BYTES  # of one that we take: it waits in memory until it is whole
HEARTBEAT_S = 20.0  # proxies close what is silent for a minute
CLOSING_S = 1.0  # for the other side to say goodbye, too

AnySocket = web.WebSocketResponse | aiohttp.ClientWebSocketResponse


class WebDialler:
    """Dials WebSockets, and owns the tasks that carry their bytes. Make it in an event loop."""

    def __init__(self) -> None:
        self._session = aiohttp.ClientSession(trust_env=True)  # a proxy of the environment is used
        self._bridges: dict[asyncio.Task[None], aiohttp.ClientWebSocketResponse] = {}
        self._tls: ssl.SSLContext | None = None

    async def dial(self, to: Address) -> Connection:
        """Connect to a WebSocket."""
        schema = {"ws": "http", "wss": "https"}[to.web]
        if to.web == "wss" and self._tls is None:
            self._tls = await asyncio.to_thread(ssl.create_default_context)  # reads many files
        try:
            web_socket = await self._session.ws_connect(
                f"{schema}://{Address(to.host, to.port)}{PATH}",
                max_msg_size=MESSAGE_BYTES_MAX,
                heartbeat=HEARTBEAT_S,
                compress=0,
                timeout=aiohttp.ClientWSTimeout(ws_close=CLOSING_S),
                ssl=self._tls or True,
            )
        except (aiohttp.ClientError, OSError) as error:
            raise DialFailed(f"{to}: {str(error) or type(error).__name__}") from error
        try:
            ours, inner = socket.socketpair()
        except OSError as error:
            await web_socket.close()
            raise DialFailed(f"{to}: {reason_of(error)}") from error
        task = asyncio.get_running_loop().create_task(_bridged(web_socket, inner))
        self._bridges[task] = web_socket
        task.add_done_callback(self._bridges.pop)
        task.add_done_callback(lambda _: inner.close())  # also if the task never ran
        return SocketConnection(ours, to)

    async def close(self) -> None:
        """End every WebSocket that was dialled."""
        bridges = dict(self._bridges)
        for task in bridges:
            task.cancel()
        await asyncio.gather(*bridges, return_exceptions=True)
        for web_socket in bridges.values():  # a task that never ran has not closed it
            await web_socket.close()
        await self._session.close()


class WebUpgrade(Closing):
    """Makes connections of the WebSockets that arrive at one port."""

    def __init__(self, certificate: Path | None = None) -> None:
        """`certificate`: a PEM file with the chain and the key; without one there is no TLS."""
        self._context = _context(certificate) if certificate else None
        self._handlers = _Handlers(self._serve, self._on_loss)
        self._upgrading: dict[asyncio.BaseProtocol, _Upgrading] = {}
        self._tasks = OwnedTasks()

    @contextlib.asynccontextmanager
    async def upgraded(
        self, connection: Connection, on_word: Callable[[], None], compute: Compute
    ) -> AsyncIterator[Connection]:
        """A connection over the WebSocket that an accepted connection becomes.

        `on_word`: called when its peer has said something, before that costs more than a socket;
        `compute`: runs what costs much time. If the block is cancelled or late, the WebSocket ends
        without a word. Else it lives until either end of the new connection is closed.
        """
        if self._tasks.closing:
            raise LinkLost("this port is closed")
        assert isinstance(connection, SocketConnection)
        await connection.wait_for_data()
        on_word()
        plain, carrying = await self._opened(connection, compute)
        handler = self._handlers()
        upgrading = _Upgrading(connection.remote.host, carrying)
        self._upgrading[handler] = upgrading
        loop = asyncio.get_running_loop()
        try:
            transport, _ = await loop.connect_accepted_socket(lambda: handler, plain)
        except BaseException:
            self._on_loss(handler)
            plain.close()
            raise
        try:
            made = await upgrading.made
            try:
                yield made
            except SwarmError:
                await upgrading.goodbye(made, transport)
                raise
            await upgrading.goodbye(made, transport)
        except (asyncio.CancelledError, TimeoutError):
            upgrading.abort(transport)
            raise

    async def close(self) -> None:
        """End every WebSocket."""
        await self._handlers.shutdown(0)
        await self._tasks.close()

    async def _opened(
        self, connection: SocketConnection, compute: Compute
    ) -> tuple[socket.socket, asyncio.Task[None] | None]:
        """A socket with what the peer says in the clear, and the task that opens it, if any."""
        sock = connection.release()
        if self._context is None:
            return sock, None
        with contextlib.ExitStack() as undo:
            undo.callback(sock.close)
            tls = AcceptedTls(sock, self._context)
            await tls.shake_hands(compute)
            try:
                plain, inner = socket.socketpair()
            except OSError as error:
                raise LinkLost(reason_of(error)) from error
            undo.callback(inner.close)
            return plain, self._tasks.spawn(tls.carry(inner), undo.pop_all().close)

    def _on_loss(self, handler: asyncio.BaseProtocol) -> None:
        """Note that a connection is over."""
        upgrading = self._upgrading.pop(handler, None)
        if upgrading is None:
            return
        upgrading.over.set()
        if not upgrading.made.done():
            upgrading.made.set_exception(LinkLost("it left before it was a WebSocket"))
            upgrading.made.exception()  # of who left when nobody waits any more
        if upgrading.carrying is not None:  # a peer that reads nothing would hold it for ever
            asyncio.get_running_loop().call_later(CLOSING_S, upgrading.carrying.cancel)

    async def _serve(self, request: web.BaseRequest) -> web.StreamResponse:
        web_socket = web.WebSocketResponse(
            timeout=CLOSING_S,
            max_msg_size=MESSAGE_BYTES_MAX,
            heartbeat=HEARTBEAT_S,
            compress=False,
        )
        if request.path != PATH or not web_socket.can_prepare(request):
            answer = web.Response(text="this is a node of p2pswarm, which speaks WebSocket here\n")
            answer.force_close()
            return answer
        await web_socket.prepare(request)
        upgrading, transport = self._upgrading.get(request.protocol), request.transport
        if upgrading is not None and not upgrading.made.done():
            try:
                await self._carry(web_socket, request, upgrading)
            finally:  # a peer that reads nothing would never let it close
                if transport is not None:
                    asyncio.get_running_loop().call_later(CLOSING_S, transport.abort)
        return web_socket

    async def _carry(
        self, web_socket: web.WebSocketResponse, request: web.BaseRequest, upgrading: "_Upgrading"
    ) -> None:
        """Make a connection of a WebSocket, and carry its bytes until it ends."""
        try:
            ours, inner = socket.socketpair()
        except OSError:  # this process has no files left
            await web_socket.close(code=aiohttp.WSCloseCode.TRY_AGAIN_LATER)
            return
        forwarded = request.headers.get("X-Forwarded-For", "")
        remote = Address(dialler_of(upgrading.host, forwarded), 0)
        upgrading.made.set_result(SocketConnection(ours, remote))
        await _bridged(web_socket, inner)


class _Upgrading:
    """A connection that is to become a WebSocket, or has become one."""

    def __init__(self, host: str, carrying: asyncio.Task[None] | None) -> None:
        """`host`: at the other end; `carrying`: the task of its TLS, if it has one."""
        self.host = host
        self.carrying = carrying
        self.made: asyncio.Future[SocketConnection] = asyncio.get_running_loop().create_future()
        self.over = asyncio.Event()

    async def goodbye(self, made: SocketConnection, transport: asyncio.BaseTransport) -> None:
        """Let a connection end that was of no use; its place is taken until then.

        What its peer was told may still be on its way.
        """
        if made.closed:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CLOSING_S):
                    await self.over.wait()
            self.abort(transport)

    def abort(self, transport: asyncio.BaseTransport) -> None:
        """End it without a word."""
        assert isinstance(transport, asyncio.WriteTransport)
        transport.abort()
        if self.carrying is not None:
            self.carrying.cancel()
        if self.made.done() and not self.made.cancelled() and self.made.exception() is None:
            self.made.result().close()


def _is_ours(record: logging.LogRecord) -> bool:
    """Return whether an error is ours: aiohttp has a traceback for each that a stranger makes."""
    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, HttpProcessingError | ConnectionError)


_log = logging.getLogger(__name__)
_log.addFilter(_is_ours)


class _Handlers(web.Server):
    """The HTTP connections; tells which are over."""

    def __init__(
        self,
        serve: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]],
        on_loss: Callable[[asyncio.BaseProtocol], None],
    ) -> None:
        super().__init__(serve, access_log=None, logger=_log)
        self._on_loss = on_loss

    def connection_lost(
        self, handler: web.RequestHandler, exc: BaseException | None = None
    ) -> None:
        """A connection is over."""
        super().connection_lost(handler, exc)
        self._on_loss(handler)


def dialler_of(remote: str, forwarded: str) -> str:
    """The host that dialled: behind a proxy on this machine, the one that the proxy names last."""
    last = forwarded.rpartition(",")[2].strip()
    with contextlib.suppress(ValueError):
        if remote in PROXIES and last:
            return str(ipaddress.ip_address(last))
    return remote


async def _bridged(web_socket: AnySocket, inner: socket.socket) -> None:
    """Carry bytes both ways until either end is closed."""
    inner.setblocking(False)
    up = asyncio.get_running_loop().create_task(_send(web_socket, inner))
    try:
        await _receive(web_socket, inner)
    finally:
        up.cancel()
        await asyncio.gather(up, return_exceptions=True)
        inner.close()
        await web_socket.close()


async def _send(web_socket: AnySocket, inner: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    with contextlib.suppress(OSError, RuntimeError):  # closed meanwhile
        while piece := await loop.sock_recv(inner, PIECE_BYTES):
            await web_socket.send_bytes(piece)
    await web_socket.close()


async def _receive(web_socket: AnySocket, inner: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    with contextlib.suppress(OSError):
        async for message in web_socket:
            if message.type is not aiohttp.WSMsgType.BINARY:
                return
            await loop.sock_sendall(inner, message.data)


def _context(certificate: Path) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(certificate)
    except (OSError, ssl.SSLError) as error:
        raise Unusable(
            f"network.relay_certificate: {certificate}: {reason_of(error)}; it is one PEM file "
            "with the chain of certificates and the private key"
        ) from error
    return context
