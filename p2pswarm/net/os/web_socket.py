"""Connections over WebSocket: binary messages that carry the bytes of a connection in order.

Each WebSocket is joined with one end of a pair of local sockets. The other end is a connection like
any other, so everything above works over it, and blocking threads do, too.

What has not become a WebSocket some seconds after it was accepted is closed, and the number of HTTP
connections is limited; after that, the transport limits strangers as on any port.

Errors:  DialFailed; Unusable if the port or the certificate cannot be used.
Source:  docs/relays.md, "Over WebSocket"; RFC 6455.
"""

import asyncio
import contextlib
import ipaddress
import socket
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Self

import aiohttp
from aiohttp import web

from p2pswarm.base.errors import DialFailed, Unusable
from p2pswarm.base.ids import Address
from p2pswarm.net.os.base import Connection
from p2pswarm.net.os.sockets import SocketConnection, reason_of

PATH = "/p2pswarm"
MESSAGE_BYTES_MAX = 1024 * 1024  # of one message that we take; we send PIECE_BYTES at most
PIECE_BYTES = 128 * 1024
HEARTBEAT_S = 20.0  # proxies close what is silent for a minute
CLOSING_S = 1.0  # for the other side to say goodbye, too
UPGRADE_S = 5.0  # as long as a handshake may take
CONNECTIONS_MAX = 1024  # HTTP connections: as many as a node has links

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


class WebListener:
    """A port for WebSockets. Use it as a context manager."""

    def __init__(
        self,
        at: Address,
        accept: Callable[[Connection], None],
        certificate: Path | None = None,
        upgrade_s: float = UPGRADE_S,
    ) -> None:
        """`accept`: takes each connection. `certificate`: a PEM file with the chain and the key."""
        self._at = at
        self._accept = accept
        self._certificate = certificate
        self._upgrade_s = upgrade_s
        self._upgraded: dict[asyncio.BaseProtocol, None] = {}
        self._handlers = web.Server(self._serve, access_log=None)
        self._server: asyncio.Server | None = None

    @property
    def address(self) -> Address:
        """The bound address, as those dial it who dial it directly."""
        assert self._server is not None
        name = self._server.sockets[0].getsockname()
        return Address(str(name[0]), int(name[1]), web="wss" if self._certificate else "ws")

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        tls = _context(self._certificate) if self._certificate else None
        try:
            self._server = await loop.create_server(
                self._arrived, self._at.host, self._at.port, ssl=tls
            )
        except OSError as error:
            raise Unusable(f"cannot listen on {self._at}: {reason_of(error)}") from error
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        await self._handlers.shutdown(0)

    def _arrived(self) -> asyncio.BaseProtocol:
        if len(self._handlers.connections) >= CONNECTIONS_MAX:
            return _Refusing()
        handler = self._handlers()
        asyncio.get_running_loop().call_later(self._upgrade_s, self._check, handler)
        return handler

    def _check(self, handler: web.RequestHandler) -> None:
        """Close a connection that has not become a WebSocket."""
        if handler not in self._upgraded and handler.transport is not None:
            handler.transport.abort()

    async def _serve(self, request: web.BaseRequest) -> web.StreamResponse:
        web_socket = web.WebSocketResponse(
            timeout=CLOSING_S,
            max_msg_size=MESSAGE_BYTES_MAX,
            heartbeat=HEARTBEAT_S,
            compress=False,
        )
        if request.path != PATH or not web_socket.can_prepare(request):
            return web.Response(text="this is a node of p2pswarm, which speaks WebSocket here\n")
        await web_socket.prepare(request)
        self._upgraded[request.protocol] = None
        try:
            await self._carry(web_socket, request)
        finally:
            del self._upgraded[request.protocol]
        return web_socket

    async def _carry(self, web_socket: web.WebSocketResponse, request: web.BaseRequest) -> None:
        """Make a connection of a WebSocket, and carry its bytes until it ends."""
        try:
            ours, inner = socket.socketpair()
        except OSError:  # this process has no files left
            await web_socket.close(code=aiohttp.WSCloseCode.TRY_AGAIN_LATER)
            return
        forwarded = request.headers.get("X-Forwarded-For", "")
        remote = Address(dialler_of(request.remote or "", forwarded), 0)
        self._accept(SocketConnection(ours, remote))
        await _bridged(web_socket, inner)


def dialler_of(remote: str, forwarded: str) -> str:
    """The host that dialled: behind a proxy on this machine, the one that the proxy names last."""
    last = forwarded.rpartition(",")[2].strip()
    with contextlib.suppress(ValueError):
        if ipaddress.ip_address(remote).is_loopback and last:
            return str(ipaddress.ip_address(last))
    return remote or "unknown"


class _Refusing(asyncio.Protocol):
    """A connection too many."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.abort()


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
