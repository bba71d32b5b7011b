"""SEAM 1 over real TCP sockets.

First bytes are read with `loop.sock_recv`, so that a socket can still leave
asyncio for the threads of `net/bulk_threads.py`. Socket buffers are never set: that
would end the kernel's own tuning and was slower wherever we measured.

Units:   seconds, bytes.
Errors:  OSError is translated here: Unusable (listen), DialFailed (dial), LinkLost.
"""

import asyncio
import contextlib
import errno
import ipaddress
import socket
import threading
from contextlib import AbstractContextManager
from typing import cast

from p2pswarm.errors import DialFailed, LinkLost, Unusable
from p2pswarm.ids import Address
from p2pswarm.net.base import CROWDED_BYTES, BulkMachine, BulkPipe, ControlMachine
from p2pswarm.net.bulk_threads import SocketBulkPipe

BACKLOG = 256  # the kernel's queue; the transport bounds what it takes from it
USER_TIMEOUT_MS = 20_000  # unacknowledged data for so long: the path is gone
NOTSENT_LOWAT_BYTES = 256 * 1024  # a later, more urgent chunk waits behind no more than this
READ_BYTES = 16 * 1024  # kept: asyncio's own buffer, fresh each time, costs 20 us a read
READ_BYTES_MAX = 64 * 1024  # one control record, for a connection that fills the first one
OUT_OF_FILES_PAUSE_S = 0.1  # time for others to close theirs
OUT_OF_FILES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
GONE_IN_BACKLOG = (errno.ECONNABORTED, errno.EPROTO, errno.ECONNRESET)

IPPROTO_TCP = socket.IPPROTO_TCP
TCP_CONGESTION = getattr(socket, "TCP_CONGESTION", None)  # Linux names
TCP_NOTSENT_LOWAT = getattr(socket, "TCP_NOTSENT_LOWAT", None)
TCP_USER_TIMEOUT = getattr(socket, "TCP_USER_TIMEOUT", None)

Resolved = tuple[int, tuple[str | int, ...]]


class SocketNet:
    """The operating system's network."""

    async def listen(self, at: Address) -> "SocketListener":
        """Bind and listen; raises Unusable if the address cannot be bound."""
        try:
            family, name = (await _resolve(at))[0]
            sock = socket.socket(family, socket.SOCK_STREAM)
        except OSError as error:
            raise Unusable(f"cannot listen on {at}: {_reason(error)}") from error
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.setblocking(False)
            sock.bind(name)
            sock.listen(BACKLOG)
        except OSError as error:
            sock.close()
            remedy = (
                "; choose another port with --listen" if error.errno == errno.EADDRINUSE else ""
            )
            raise Unusable(f"cannot listen on {at}: {_reason(error)}{remedy}") from error
        return SocketListener(sock)

    async def dial(self, to: Address) -> "SocketConnection":
        """Connect, trying each address of the host's name; raises DialFailed."""
        try:
            candidates = await _resolve(to)
        except OSError as error:
            raise DialFailed(f"{to}: {_reason(error)}") from error
        for family, name in candidates:
            try:
                return await _connect(family, name)
            except OSError as error:
                failure = error
        raise DialFailed(f"{to}: {_reason(failure)}") from failure

    def lock(self) -> AbstractContextManager[object]:
        """Bulk machines run in threads here."""
        return threading.Lock()


class SocketListener:
    """A listening socket."""

    def __init__(self, sock: socket.socket, pause_s: float = OUT_OF_FILES_PAUSE_S) -> None:
        """`pause_s`: how long to wait for others to close their files when none are left."""
        self._sock = sock
        self._pause_s = pause_s
        self._address = _address(sock.getsockname())

    @property
    def address(self) -> Address:
        """What was bound, with the real port."""
        return self._address

    async def accept(self) -> "SocketConnection":
        """The next connection. Cancel this before `close`."""
        while True:
            try:
                sock, name = await _accept(self._sock)
            except OSError as error:
                if error.errno in OUT_OF_FILES:
                    await asyncio.sleep(self._pause_s)
                elif error.errno not in GONE_IN_BACKLOG:
                    raise LinkLost(f"listener {self._address}: {_reason(error)}") from error
            else:
                return SocketConnection(sock, _address(name))

    def close(self) -> None:
        """Stop listening."""
        self._sock.close()


class SocketConnection:
    """A connected socket that has not become a control or a bulk pipe yet."""

    def __init__(self, sock: socket.socket, remote: Address) -> None:
        self._sock: socket.socket | None = sock
        self._remote = remote
        sock.setblocking(False)
        _set_if_known(sock, socket.TCP_NODELAY, 1)
        _set_if_known(sock, TCP_USER_TIMEOUT, USER_TIMEOUT_MS)

    @property
    def remote(self) -> Address:
        """The other end."""
        return self._remote

    async def receive(self, n: int) -> bytes:
        """Exactly `n` bytes."""
        loop, sock = asyncio.get_running_loop(), self._socket()
        parts: list[bytes] = []
        while n:
            try:
                part = await loop.sock_recv(sock, n)
            except OSError as error:
                raise LinkLost(f"{self._remote}: {_reason(error)}") from error
            if not part:
                raise LinkLost(f"{self._remote}: closed by the peer")
            parts.append(part)
            n -= len(part)
        return b"".join(parts)

    async def send(self, data: bytes) -> None:
        """Write all of it."""
        try:
            await asyncio.get_running_loop().sock_sendall(self._socket(), data)
        except OSError as error:
            raise LinkLost(f"{self._remote}: {_reason(error)}") from error

    async def become_control(self, user: ControlMachine) -> None:
        """Hand the socket to an asyncio transport."""
        protocol = _ControlProtocol(user, str(self._remote))
        loop = asyncio.get_running_loop()
        try:
            await loop.connect_accepted_socket(lambda: protocol, self._release())
        except OSError as error:
            raise LinkLost(f"{self._remote}: {_reason(error)}") from error

    def become_bulk(self, machine: BulkMachine) -> BulkPipe:
        """Hand the socket to two threads."""
        sock = self._release()
        _set_if_known(sock, TCP_CONGESTION, b"bbr")
        _set_if_known(sock, TCP_NOTSENT_LOWAT, NOTSENT_LOWAT_BYTES)
        sock.setblocking(True)
        return SocketBulkPipe(sock, machine, str(self._remote))

    def close(self) -> None:
        """Close the socket, if it is still ours."""
        if self._sock is not None:
            self._release().close()

    def _socket(self) -> socket.socket:
        assert self._sock is not None, "the connection is closed or has become something else"
        return self._sock

    def _release(self) -> socket.socket:
        sock, self._sock = self._socket(), None
        return sock


class _ControlProtocol(asyncio.BufferedProtocol):
    """An asyncio transport seen as a ControlPipe, and the way from it to the user."""

    def __init__(self, user: ControlMachine, label: str) -> None:
        self._user = user
        self._label = label
        self._room = memoryview(bytearray(READ_BYTES))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        stream = cast("asyncio.Transport", transport)  # uvloop's own derives from nothing
        stream.set_write_buffer_limits(CROWDED_BYTES)
        self.send = stream.write
        self.close = stream.close
        self.abort = stream.abort
        self._user.opened(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        del sizehint
        return self._room

    def buffer_updated(self, nbytes: int) -> None:
        self._user.received(bytes(self._room[:nbytes]))
        if nbytes == READ_BYTES == len(self._room):
            self._room = memoryview(bytearray(READ_BYTES_MAX))

    def pause_writing(self) -> None:
        self._user.pause_writing()

    def resume_writing(self) -> None:
        self._user.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        reason = "closed" if exc is None else _reason(exc)
        self._user.lost(LinkLost(f"{self._label}: {reason}"))


async def _accept(listener: socket.socket) -> tuple[socket.socket, tuple[str | int, ...]]:
    """`loop.sock_accept` loses a connection if cancelled as it comes; this cannot."""
    loop = asyncio.get_running_loop()
    while True:
        try:
            return listener.accept()
        except BlockingIOError:
            pass
        knocked = asyncio.Event()
        loop.add_reader(listener, knocked.set)
        try:
            await knocked.wait()
        finally:
            loop.remove_reader(listener)


async def _connect(family: int, name: tuple[str | int, ...]) -> SocketConnection:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, name)
        return SocketConnection(sock, _address(sock.getpeername()))
    except BaseException:
        sock.close()
        raise


async def _resolve(address: Address) -> list[Resolved]:
    """Where a host is; a number needs no question, and no thread to ask it."""
    try:
        version = ipaddress.ip_address(address.host).version
    except ValueError:
        found = await asyncio.get_running_loop().getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM
        )
        return [(family, (str(name[0]), *map(int, name[1:]))) for family, _, _, _, name in found]
    if version == 4:  # noqa: PLR2004
        return [(socket.AF_INET, (address.host, address.port))]
    return [(socket.AF_INET6, (address.host, address.port))]


def _address(name: tuple[str | int, ...]) -> Address:
    return Address(str(name[0]), int(name[1]))


def _reason(error: Exception) -> str:
    if isinstance(error, ConnectionRefusedError):
        return "Connection refused"  # asyncio puts the address in its place
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__


def _set_if_known(sock: socket.socket, option: int | None, value: int | bytes) -> None:
    """Best effort: the option makes things better where the kernel has and allows it."""
    if option is not None:
        with contextlib.suppress(OSError):
            sock.setsockopt(IPPROTO_TCP, option, value)
