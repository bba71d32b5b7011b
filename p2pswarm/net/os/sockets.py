"""SEAM 1 over real TCP sockets.

The first bytes are read with `loop.sock_recv`, so that the socket can still leave
asyncio for the threads of `net/os/bulk_threads.py`. The sizes of socket buffers are never
set, because that ends the kernel's own tuning and was slower wherever we measured.

Errors:  an OSError becomes Unusable in `listen`, DialFailed in `dial`, LinkLost elsewhere.
"""

import asyncio
import contextlib
import errno
import logging
import socket
import struct
import sys
import threading
from array import array
from collections.abc import Mapping
from contextlib import AbstractContextManager
from functools import partial
from typing import cast

from p2pswarm.base.errors import DialFailed, LinkLost, NobodyThere, Unusable
from p2pswarm.base.ids import Address
from p2pswarm.net.os import arrival_filter
from p2pswarm.net.os.base import CROWDED_BYTES, BulkMachine, BulkPipe, ControlMachine
from p2pswarm.net.os.bulk_threads import SocketBulkPipe
from p2pswarm.net.os.happy_eyeballs import Resolved, Resolver, first_connected

OUT_OF_FILES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)  # until others close
GONE_IN_BACKLOG = (errno.ECONNABORTED, errno.EPROTO, errno.ECONNRESET)  # it left too early


def reason_of(error: Exception) -> str:
    """The reason of a failure, in one line and without the address."""
    if isinstance(error, ConnectionRefusedError):
        return "Connection refused"  # asyncio's text has the address instead
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__


READ_BYTES = 16 * 1024  # our own buffer: asyncio's, new for each read, costs 20 us
READ_BYTES_MAX = 64 * 1024  # one control record, for a connection that has filled the small buffer


class ControlProtocol(asyncio.BufferedProtocol):
    """Makes a ControlPipe of an asyncio transport, and passes what it receives to the user."""

    def __init__(self, user: ControlMachine, label: str) -> None:
        self._user = user
        self._label = label
        self._buffer = memoryview(bytearray(READ_BYTES))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection is up: from now on this object is the pipe."""
        connection = cast("asyncio.Transport", transport)  # uvloop's class does not derive from it
        connection.set_write_buffer_limits(CROWDED_BYTES)
        self._connection = connection
        self.send = connection.write
        self.abort = connection.abort
        self._user.on_open(self)

    def close(self) -> None:
        """Send the bytes that wait, say that there are no more, and read until the peer ends it.

        A kernel answers bytes for a closed socket with a reset, and the peer that sent them loses
        what it has not read yet: our last words (RFC 2525, section 2.17).
        """
        try:
            self._connection.write_eof()
        except OSError:  # the peer has reset it: nobody is there to read
            self._connection.abort()

    def get_buffer(self, sizehint: int) -> memoryview:
        """The memory into which asyncio reads the next bytes."""
        del sizehint
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        """`nbytes` came; after one read that fills the buffer, a larger one replaces it."""
        self._user.on_data(bytes(self._buffer[:nbytes]))
        if nbytes == READ_BYTES == len(self._buffer):
            self._buffer = memoryview(bytearray(READ_BYTES_MAX))

    def pause_writing(self) -> None:
        """More than CROWDED_BYTES wait in memory."""
        self._user.pause_writing()

    def resume_writing(self) -> None:
        """Few bytes wait in memory again."""
        self._user.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection ended."""
        reason = "closed" if exc is None else reason_of(exc)
        self._user.on_loss(LinkLost(f"{self._label}: {reason}"))


_log = logging.getLogger(__name__)

BACKLOG = 256  # length of the kernel's queue; the transport limits what it accepts
USER_TIMEOUT_MS = 20_000  # the path is gone if data stays unacknowledged this long
BULK_TIMEOUT_MS = 5_000  # such a one is soon replaced, and TCP repairs two losses in less
NOTSENT_LOWAT_BYTES = 256 * 1024  # a later, more urgent chunk waits behind at most this much
BULK_CONGESTION = b"bbr"  # it does not take a loss for congestion; the kernel may refuse it
OUT_OF_FILES_PAUSE_S = 0.1  # time for other connections to close
ACCEPTED_IN_A_ROW = 4  # 0.5 ms; more between two handshakes of strangers would starve these

EVERYWHERE_V6 = "::"
EVERYWHERE = ("0.0.0.0", EVERYWHERE_V6)  # noqa: S104  to bind

IPPROTO_TCP = socket.IPPROTO_TCP
SO_ATTACH_FILTER = 26 if sys.platform == "linux" else None  # the socket module does not name it
_PROGRAM = struct.Struct("@HP")  # how many instructions, and where they are
TCP_CONGESTION = getattr(socket, "TCP_CONGESTION", None)  # these three exist on Linux only
TCP_NOTSENT_LOWAT = getattr(socket, "TCP_NOTSENT_LOWAT", None)
TCP_USER_TIMEOUT = getattr(socket, "TCP_USER_TIMEOUT", None)


NOT_OURS = "; name an address of this machine with --listen, or :PORT for all of them"
PRIVILEGED = (
    "; another program has it alone, or Windows keeps it: choose another port with --listen"
    if sys.platform == "win32"
    else "; ports below 1024 are root's: choose another, or let this Python have them with setcap"
)
LISTEN_REMEDIES = {
    errno.EADDRINUSE: "; choose another port with --listen",
    errno.EADDRNOTAVAIL: NOT_OURS,
    errno.EACCES: PRIVILEGED,
}


class SocketNet:
    """The operating system's network."""

    def __init__(self) -> None:
        self._resolver = Resolver()
        self._hosts: dict[int, str] = {}
        """The host at which each port listens: a dial from it comes from the same address."""

    async def listen(self, at: Address) -> "SocketListener":
        """Bind and listen; raises Unusable if the address cannot be bound."""
        _require_watching(asyncio.get_running_loop())
        try:
            family, name = (await self._resolver.resolve(at))[0]
            sock = _unbound(family, name)
        except OSError as error:
            raise Unusable(f"cannot listen on {at}: {reason_of(error)}{NOT_OURS}") from error
        try:
            _require_free(family, name)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.setblocking(False)
            sock.bind(name)
            sock.listen(BACKLOG)
            _share_port(sock)  # after `listen`: another node is still told that the port is taken
        except OSError as error:
            sock.close()
            remedy = LISTEN_REMEDIES.get(error.errno or 0, "")
            raise Unusable(f"cannot listen on {at}: {reason_of(error)}{remedy}") from error
        listener = SocketListener(sock)
        self._hosts[listener.address.port] = listener.address.host
        return listener

    async def dial(self, to: Address, from_port: int = 0) -> "SocketConnection":
        """Connect to the first address of the host's name that answers; raises DialFailed."""
        if to.web or to.circuit:  # else we would speak to the relay as if it were the peer
            raise DialFailed(f"{to}: only TCP is dialled here, without relays")
        if from_port and from_port not in self._hosts:
            raise ValueError(f"nothing listens at port {from_port}, so no dial can come from it")
        own = Address(self._hosts[from_port], from_port) if from_port else None
        connect = partial(_connect, own=own)
        try:
            return await first_connected(await self._resolver.resolve(to), connect)
        except ConnectionRefusedError as error:
            raise NobodyThere(f"{to}: {reason_of(error)}") from error
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
        self.address = _address(sock.getsockname())
        self.in_a_row = 0
        """The number of connections that were accepted since none was waiting."""

    async def accept(self) -> "SocketConnection":
        """The next connection; raises LinkLost. Cancel this call before `close`.

        A crowd that connects as fast as we accept does not hold the event loop, and who was
        displaced is closed before many more come.
        """
        if self.in_a_row % ACCEPTED_IN_A_ROW == ACCEPTED_IN_A_ROW - 1:
            await asyncio.sleep(0)
        while True:
            try:
                sock, name = await self._accepted()
            except OSError as error:
                if error.errno in OUT_OF_FILES:
                    self.in_a_row = 0  # that others wait says nothing of how fast they come
                    await asyncio.sleep(self._pause_s)
                elif error.errno not in GONE_IN_BACKLOG:
                    raise LinkLost(f"listener {self.address}: {reason_of(error)}") from error
            else:
                self.in_a_row += 1
                return SocketConnection(sock, _address(name))

    async def _accepted(self) -> tuple[socket.socket, tuple[str | int, ...]]:
        """Accept without losing a connection when cancelled, which `loop.sock_accept` may."""
        while True:
            try:
                return self._sock.accept()
            except BlockingIOError:
                self.in_a_row = 0
            await _readable(self._sock)

    def thin(self, levels: Mapping[str, int]) -> None:
        """Have the kernel drop first packets from these networks, where it can: on Linux."""
        if SO_ATTACH_FILTER is None:
            return
        code = array("B", arrival_filter.program(levels))
        at, length = code.buffer_info()
        described = _PROGRAM.pack(length // arrival_filter.INSTRUCTION_BYTES, at)
        try:
            self._sock.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, described)
        except OSError as error:  # the memory of a socket's options is used up: the old one stays
            _log.info("%s: no filter for floods: %s", self.address, reason_of(error))

    def close(self) -> None:
        """Stop listening."""
        self._sock.close()


class SocketConnection:
    """A connected socket that has not become a control or a bulk pipe yet."""

    def __init__(self, sock: socket.socket, remote: Address) -> None:
        self._sock: socket.socket | None = sock
        self.remote = remote
        self.closed = False
        """True if `close` ended it: it has become no pipe."""
        sock.setblocking(False)
        set_if_known(sock, socket.TCP_NODELAY, 1)
        set_if_known(sock, TCP_USER_TIMEOUT, USER_TIMEOUT_MS)

    async def receive(self, n: int) -> bytes:
        """Exactly `n` bytes; raises LinkLost if the connection ends first."""
        loop, sock = asyncio.get_running_loop(), self._socket()
        parts: list[bytes] = []
        while n:
            try:
                part = await loop.sock_recv(sock, n)
            except OSError as error:
                raise LinkLost(f"{self.remote}: {reason_of(error)}") from error
            if not part:
                raise LinkLost(f"{self.remote}: closed by the peer")
            parts.append(part)
            n -= len(part)
        return b"".join(parts)

    async def wait_for_data(self) -> None:
        """Wait until the peer has said something, and take nothing of it; raises LinkLost."""
        sock = self._socket()
        while True:
            try:
                if sock.recv(1, socket.MSG_PEEK):
                    return
            except BlockingIOError:
                await _readable(sock)
            except OSError as error:
                raise LinkLost(f"{self.remote}: {reason_of(error)}") from error
            else:
                raise LinkLost(f"{self.remote}: closed by the peer")

    async def send(self, data: bytes) -> None:
        """Write all of `data`; raises LinkLost if the connection ends first."""
        try:
            await asyncio.get_running_loop().sock_sendall(self._socket(), data)
        except OSError as error:
            raise LinkLost(f"{self.remote}: {reason_of(error)}") from error

    async def become_control(self, user: ControlMachine) -> None:
        """Hand the socket to an asyncio transport."""
        protocol = ControlProtocol(user, str(self.remote))
        loop = asyncio.get_running_loop()
        try:
            await loop.connect_accepted_socket(lambda: protocol, self.release())
        except OSError as error:
            raise LinkLost(f"{self.remote}: {reason_of(error)}") from error

    def become_bulk(self, machine: BulkMachine) -> BulkPipe:
        """Hand the socket to two threads."""
        sock = self.release()
        set_if_known(sock, TCP_CONGESTION, BULK_CONGESTION)
        set_if_known(sock, TCP_NOTSENT_LOWAT, NOTSENT_LOWAT_BYTES)
        set_if_known(sock, TCP_USER_TIMEOUT, BULK_TIMEOUT_MS)
        sock.setblocking(True)
        return SocketBulkPipe(sock, machine, str(self.remote))

    def close(self) -> None:
        """Close the socket, unless a pipe has taken it over."""
        if self._sock is not None:
            self.release().close()
            self.closed = True

    def _socket(self) -> socket.socket:
        assert self._sock is not None, "the connection is closed or has become something else"
        return self._sock

    def release(self) -> socket.socket:
        """Give the socket away; this object must not be used any more."""
        sock, self._sock = self._socket(), None
        return sock


async def _readable(sock: socket.socket) -> None:
    """Wait until a socket has something to read."""
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    loop.add_reader(sock, readable.set)
    try:
        await readable.wait()
    finally:
        loop.remove_reader(sock)


async def _connect(to: Resolved, own: Address | None) -> SocketConnection:
    family, name = to
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        if own is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            _share_port(sock)
            sock.bind(("" if own.host in EVERYWHERE else own.host, own.port))
        await asyncio.get_running_loop().sock_connect(sock, name)
        return SocketConnection(sock, _address(sock.getpeername()))
    except BaseException:
        sock.close()
        raise


def _address(name: tuple[str | int, ...]) -> Address:
    return Address(str(name[0]), int(name[1]))


def _unbound(family: int, name: tuple[str | int, ...]) -> socket.socket:
    """A socket that can be bound to an address."""
    sock = socket.socket(family, socket.SOCK_STREAM)
    if family == socket.AF_INET6:  # [::] is all of this host, whatever its sysctl says
        only = str(name[0]) != EVERYWHERE_V6
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, only)
    return sock


if sys.platform == "win32":

    def _require_free(family: int, name: tuple[str | int, ...]) -> None:
        """Raise OSError if anybody is at an address: SO_REUSEADDR would take it from them here.

        Dials come from the port at which we listen, so the listener cannot have it alone.
        """
        if name[1]:
            with _unbound(family, name) as trial:
                trial.setsockopt(socket.SOL_SOCKET, socket.SO_EXCLUSIVEADDRUSE, 1)
                trial.bind(name)

    def _share_port(sock: socket.socket) -> None:
        """SO_REUSEADDR is enough for that here."""

    def _require_watching(loop: asyncio.AbstractEventLoop) -> None:
        """Raise Unusable for the usual loop of this system, which cannot watch a socket."""
        if isinstance(loop, asyncio.ProactorEventLoop):
            raise Unusable(
                "asyncio.run takes a loop here that cannot watch sockets: use `with "
                "asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner: runner.run(...)`"
            )
else:

    def _require_free(_family: int, _name: tuple[str | int, ...]) -> None:
        """`bind` says by itself whether anybody listens there."""

    def _share_port(sock: socket.socket) -> None:
        """Let the port of a socket be that of others of ours, which do the same."""
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)

    def _require_watching(_loop: asyncio.AbstractEventLoop) -> None:
        """Every loop watches sockets here."""


def set_if_known(sock: socket.socket, option: int | None, value: int | bytes) -> None:
    """Set an option if the kernel has and allows it; connections also work without."""
    if option is not None:
        with contextlib.suppress(OSError):
            sock.setsockopt(IPPROTO_TCP, option, value)
