"""Two connections joined by a relay: what comes from one goes to the other, byte for byte.

All directions of all circuits use one buffer: what was read is sent in the same call of the event
loop. Only what the other side's kernel does not take is copied, and nothing more is read until it
has gone. So a circuit costs memory only while its reader is slow, at most PIECE_BYTES a direction,
and TCP's own window stops the sender.

Units:   bytes, seconds.
Errors:  none: whatever ends a connection ends the splice.
Source:  docs/relays.md; bench/relay.py: os.splice and threads of the kernel's cost the same.
"""

import asyncio
import contextlib
import socket
from collections.abc import Callable
from typing import Protocol

from p2pswarm.net.base import Connection
from p2pswarm.net.sockets import SocketConnection, set_if_known

PIECE_BYTES = 256 * 1024
HALF_CLOSED_S = 15.0  # the time for the other direction to end: links end both ways at once
KEEPALIVE_AFTER_S, KEEPALIVE_EVERY_S, KEEPALIVE_PROBES = 30, 10, 3  # NATs forget after 1 min and up

TCP_KEEPIDLE = getattr(socket, "TCP_KEEPIDLE", None)
TCP_KEEPINTVL = getattr(socket, "TCP_KEEPINTVL", None)
TCP_KEEPCNT = getattr(socket, "TCP_KEEPCNT", None)


class PacedFlow(Protocol):
    """One direction of a splice."""

    def resume(self) -> None:
        """Carry on."""
        ...


class Pace(Protocol):
    """Decides when a direction may carry more."""

    def carried(self, flow: PacedFlow, nbytes: int) -> bool:
        """`flow` has carried so much; False: it carries no more until `resume` is called."""
        ...


class Splicer:
    """Joins connections. One for each event loop."""

    def __init__(self) -> None:
        self.buffer = memoryview(bytearray(PIECE_BYTES))
        """For whoever has just been called: nothing stays in it."""

    def join(
        self, one: Connection, other: Connection, pace: Pace | None, ended: Callable[[], None]
    ) -> "Splice":
        """Take over two connections; `ended` is called once, when both are closed."""
        assert isinstance(one, SocketConnection)
        assert isinstance(other, SocketConnection)
        return Splice(self, (one.release(), other.release()), pace, ended)


class Splice:
    """Two sockets that are joined."""

    def __init__(
        self,
        splicer: Splicer,
        sockets: tuple[socket.socket, socket.socket],
        pace: Pace | None,
        ended: Callable[[], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._ended = ended
        self._closing: asyncio.TimerHandle | None = None
        self._sockets = sockets
        self._over = False
        for sock in sockets:
            sock.setblocking(False)
            with contextlib.suppress(OSError):  # macOS: the peer has gone; the first read tells
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            set_if_known(sock, TCP_KEEPIDLE, KEEPALIVE_AFTER_S)
            set_if_known(sock, TCP_KEEPINTVL, KEEPALIVE_EVERY_S)
            set_if_known(sock, TCP_KEEPCNT, KEEPALIVE_PROBES)
        one, other = sockets
        self._directions = (
            _SpliceDirection(self, splicer.buffer, one, other, pace),
            _SpliceDirection(self, splicer.buffer, other, one, pace),
        )
        for direction in self._directions:
            direction.resume()

    @property
    def over(self) -> bool:
        """Whether both connections are closed."""
        return self._over

    @property
    def carried_bytes(self) -> int:
        """What both directions have carried."""
        return sum(direction.carried_bytes for direction in self._directions)

    def close(self) -> None:
        """End both connections. Any number of times."""
        if self._over:
            return
        self._over = True
        if self._closing is not None:
            self._closing.cancel()
        for sock in self._sockets:
            self._loop.remove_reader(sock)
            self._loop.remove_writer(sock)
            sock.close()
        self._ended()

    def half_closed(self) -> None:
        """A direction has ended; the other one has some time."""
        if all(direction.done for direction in self._directions):
            self.close()
        elif self._closing is None:
            self._closing = self._loop.call_later(HALF_CLOSED_S, self.close)


class _SpliceDirection:
    """Carries from one socket to the other."""

    def __init__(
        self,
        splice: Splice,
        buffer: memoryview,
        source: socket.socket,
        sink: socket.socket,
        pace: Pace | None,
    ) -> None:
        self._splice = splice
        self._buffer = buffer
        self._source = source
        self._sink = sink
        self._pace = pace
        self._loop = asyncio.get_running_loop()
        self._left = memoryview(b"")
        self._piece_bytes = 0
        self.carried_bytes = 0
        self.done = False

    def resume(self) -> None:
        """Read on."""
        if not self._splice.over:
            self._loop.add_reader(self._source, self._readable)

    def _readable(self) -> None:
        try:
            got = self._source.recv_into(self._buffer)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self._splice.close()
            return
        if got:
            self._piece_bytes = got
            self._send(self._buffer[:got], reading=True)
        else:
            self._end()

    def _writable(self) -> None:
        self._send(self._left, reading=False)

    def _send(self, data: memoryview, *, reading: bool) -> None:
        """Send what was read; read on only when all of it has gone."""
        try:
            sent = self._sink.send(data)
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError:
            self._splice.close()
            return
        if sent < len(data):
            if reading:  # the buffer is for the next one to be called
                self._loop.remove_reader(self._source)
                self._loop.add_writer(self._sink, self._writable)
                self._left = memoryview(bytes(data[sent:]))
            else:
                self._left = data[sent:]
            return
        if not reading:
            self._left = memoryview(b"")
            self._loop.remove_writer(self._sink)
        self.carried_bytes += self._piece_bytes
        if self._pace is not None and not self._pace.carried(self, self._piece_bytes):
            self._loop.remove_reader(self._source)
        elif not reading:
            self.resume()

    def _end(self) -> None:
        """Pass on that the source sends no more."""
        self._loop.remove_reader(self._source)
        self.done = True
        try:
            self._sink.shutdown(socket.SHUT_WR)
        except OSError:  # the sink is gone, too
            self._splice.close()
        else:
            self._splice.half_closed()
