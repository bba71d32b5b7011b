"""SEAM 1 over real TCP sockets.

The first bytes are read with `loop.sock_recv`, so that the socket can still leave
asyncio for the threads of `net/bulk_threads.py`. The sizes of socket buffers are never
set, because that ends the kernel's own tuning and was slower wherever we measured.

Units:   seconds, bytes.
Errors:  an OSError becomes Unusable in `listen`, DialFailed in `dial`, LinkLost elsewhere.
"""

import asyncio
import contextlib
import errno
import socket
import threading
from contextlib import AbstractContextManager

from p2pswarm.errors import DialFailed, LinkLost, Unusable
from p2pswarm.ids import Address
from p2pswarm.net.base import BulkMachine, BulkPipe, ControlMachine
from p2pswarm.net.bulk_threads import SocketBulkPipe
from p2pswarm.net.control_protocol import ControlProtocol
from p2pswarm.net.happy_eyeballs import first_connected
from p2pswarm.net.os_errors import GONE_IN_BACKLOG, OUT_OF_FILES, reason_of
from p2pswarm.net.resolver import Resolved, Resolver

BACKLOG = 256  # length of the kernel's queue; the transport limits what it accepts
USER_TIMEOUT_MS = 20_000  # the path is gone if data stays unacknowledged this long
NOTSENT_LOWAT_BYTES = 256 * 1024  # a later, more urgent chunk waits behind at most this much
OUT_OF_FILES_PAUSE_S = 0.1  # time for other connections to close

EVERYWHERE_V6 = "::"

IPPROTO_TCP = socket.IPPROTO_TCP
TCP_CONGESTION = getattr(socket, "TCP_CONGESTION", None)  # these three exist on Linux only
TCP_NOTSENT_LOWAT = getattr(socket, "TCP_NOTSENT_LOWAT", None)
TCP_USER_TIMEOUT = getattr(socket, "TCP_USER_TIMEOUT", None)


class SocketNet:
    """The operating system's network."""

    def __init__(self) -> None:
        self._resolver = Resolver()

    async def listen(self, at: Address) -> "SocketListener":
        """Bind and listen; raises Unusable if the address cannot be bound."""
        try:
            family, name = (await self._resolver.resolve(at))[0]
            sock = socket.socket(family, socket.SOCK_STREAM)
        except OSError as error:
            raise Unusable(f"cannot listen on {at}: {reason_of(error)}") from error
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:  # [::] is all of this host, whatever its sysctl says
                only = str(name[0]) != EVERYWHERE_V6
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, only)
            sock.setblocking(False)
            sock.bind(name)
            sock.listen(BACKLOG)
        except OSError as error:
            sock.close()
            remedy = (
                "; choose another port with --listen" if error.errno == errno.EADDRINUSE else ""
            )
            raise Unusable(f"cannot listen on {at}: {reason_of(error)}{remedy}") from error
        return SocketListener(sock)

    async def dial(self, to: Address) -> "SocketConnection":
        """Connect to the first address of the host's name that answers; raises DialFailed."""
        if to.web or to.circuit:  # else we would speak to the relay as if it were the peer
            raise DialFailed(f"{to}: only TCP is dialled here, without relays")
        try:
            return await first_connected(await self._resolver.resolve(to), _connect)
        except OSError as error:
            raise DialFailed(f"{to}: {reason_of(error)}") from error

    def lock(self) -> AbstractContextManager[object]:
        """A real lock, because bulk machines run in threads here."""
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
        """The bound address, with the real port."""
        return self._address

    async def accept(self) -> "SocketConnection":
        """The next connection; raises LinkLost. Cancel this call before `close`."""
        while True:
            try:
                sock, name = await _accept(self._sock)
            except OSError as error:
                if error.errno in OUT_OF_FILES:
                    await asyncio.sleep(self._pause_s)
                elif error.errno not in GONE_IN_BACKLOG:
                    raise LinkLost(f"listener {self._address}: {reason_of(error)}") from error
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
        set_if_known(sock, socket.TCP_NODELAY, 1)
        set_if_known(sock, TCP_USER_TIMEOUT, USER_TIMEOUT_MS)

    @property
    def remote(self) -> Address:
        """The address of the other end."""
        return self._remote

    async def receive(self, n: int) -> bytes:
        """Exactly `n` bytes; raises LinkLost if the connection ends first."""
        loop, sock = asyncio.get_running_loop(), self._socket()
        parts: list[bytes] = []
        while n:
            try:
                part = await loop.sock_recv(sock, n)
            except OSError as error:
                raise LinkLost(f"{self._remote}: {reason_of(error)}") from error
            if not part:
                raise LinkLost(f"{self._remote}: closed by the peer")
            parts.append(part)
            n -= len(part)
        return b"".join(parts)

    async def send(self, data: bytes) -> None:
        """Write all of `data`; raises LinkLost if the connection ends first."""
        try:
            await asyncio.get_running_loop().sock_sendall(self._socket(), data)
        except OSError as error:
            raise LinkLost(f"{self._remote}: {reason_of(error)}") from error

    async def become_control(self, user: ControlMachine) -> None:
        """Hand the socket to an asyncio transport."""
        protocol = ControlProtocol(user, str(self._remote))
        loop = asyncio.get_running_loop()
        try:
            await loop.connect_accepted_socket(lambda: protocol, self.release())
        except OSError as error:
            raise LinkLost(f"{self._remote}: {reason_of(error)}") from error

    def become_bulk(self, machine: BulkMachine) -> BulkPipe:
        """Hand the socket to two threads."""
        sock = self.release()
        set_if_known(sock, TCP_CONGESTION, b"bbr")
        set_if_known(sock, TCP_NOTSENT_LOWAT, NOTSENT_LOWAT_BYTES)
        sock.setblocking(True)
        return SocketBulkPipe(sock, machine, str(self._remote))

    def close(self) -> None:
        """Close the socket, unless a pipe has taken it over."""
        if self._sock is not None:
            self.release().close()

    def _socket(self) -> socket.socket:
        assert self._sock is not None, "the connection is closed or has become something else"
        return self._sock

    def release(self) -> socket.socket:
        """Give the socket away; this object must not be used any more."""
        sock, self._sock = self._socket(), None
        return sock


async def _accept(listener: socket.socket) -> tuple[socket.socket, tuple[str | int, ...]]:
    """Accept without losing a connection when cancelled, which `loop.sock_accept` may."""
    loop = asyncio.get_running_loop()
    while True:
        try:
            return listener.accept()
        except BlockingIOError:
            pass
        readable = asyncio.Event()
        loop.add_reader(listener, readable.set)
        try:
            await readable.wait()
        finally:
            loop.remove_reader(listener)


async def _connect(to: Resolved) -> SocketConnection:
    family, name = to
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, name)
        return SocketConnection(sock, _address(sock.getpeername()))
    except BaseException:
        sock.close()
        raise


def _address(name: tuple[str | int, ...]) -> Address:
    return Address(str(name[0]), int(name[1]))


def set_if_known(sock: socket.socket, option: int | None, value: int | bytes) -> None:
    """Set an option if the kernel has and allows it; connections also work without."""
    if option is not None:
        with contextlib.suppress(OSError):
            sock.setsockopt(IPPROTO_TCP, option, value)
