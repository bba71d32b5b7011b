"""TLS at the accepting end of a socket: a handshake in steps that a caller bounds, then bytes.

The TLS of asyncio takes 256 KiB for a connection whose peer has shown nothing yet, and computes
whenever bytes come. Here a handshake takes some 50 KB, and each of its computations waits until the
caller lets it run. After it, the peer's bytes are carried to and from a plain socket.

Errors:  LinkLost if the peer leaves; BadHandshake if it speaks no TLS that we take.
"""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable, Coroutine

from p2pswarm.base.errors import BadHandshake, LinkLost, PathError
from p2pswarm.net.os.sockets import reason_of

RAW_BYTES = 16 * 1024  # one TLS record
PIECE_BYTES = 64 * 1024

Compute = Callable[[Callable[[], None]], Coroutine[None, None, None]]
"""Runs what costs much time, when its turn comes."""


class AcceptedTls:
    """The TLS of one accepted socket. Whoever made the socket closes it."""

    def __init__(self, sock: socket.socket, context: ssl.SSLContext) -> None:
        self._sock = sock
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._sending = asyncio.Lock()
        """Two tasks send: what is sealed, and what TLS says itself."""
        self._over = False

    async def shake_hands(self, compute: Compute) -> None:
        """Do the handshake; each step that computes goes through `compute`."""
        while not self._over:
            self._incoming.write(await self._some())
            try:
                await compute(self._step)
            finally:
                await self._flush()

    async def carry(self, plain: socket.socket) -> None:
        """Carry bytes between the peer and a plain socket, until either is closed."""
        plain.setblocking(False)
        sealing = asyncio.get_running_loop().create_task(self._seal(plain))
        try:
            await self._open(plain)
        finally:
            sealing.cancel()
            await asyncio.gather(sealing, return_exceptions=True)

    def _step(self) -> None:
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return
        except ssl.SSLError as error:
            raise BadHandshake(f"no TLS with it: {reason_of(error)}") from error
        self._over = True

    async def _open(self, plain: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        with contextlib.suppress(OSError, PathError):  # ssl.SSLError is an OSError
            while True:
                try:
                    data = self._tls.read(PIECE_BYTES)
                except ssl.SSLWantReadError:
                    await self._flush()
                    self._incoming.write(await self._some())
                    continue
                if not data:
                    return
                await loop.sock_sendall(plain, data)

    async def _seal(self, plain: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        with contextlib.suppress(OSError, PathError):
            while data := await loop.sock_recv(plain, PIECE_BYTES):
                self._tls.write(data)
                await self._flush()
            with contextlib.suppress(ssl.SSLError):
                self._tls.unwrap()  # says goodbye; the peer's is not waited for
            await self._flush()
            self._sock.shutdown(socket.SHUT_RDWR)  # ends `_open`

    async def _some(self) -> bytes:
        try:
            raw = await asyncio.get_running_loop().sock_recv(self._sock, RAW_BYTES)
        except OSError as error:
            raise LinkLost(reason_of(error)) from error
        if not raw:
            raise LinkLost("closed by the peer")
        return raw

    async def _flush(self) -> None:
        async with self._sending:
            if raw := self._outgoing.read():
                try:
                    await asyncio.get_running_loop().sock_sendall(self._sock, raw)
                except OSError as error:
                    raise LinkLost(reason_of(error)) from error
