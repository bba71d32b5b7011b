"""Two connections joined by a relay: what comes from one goes to the other, byte for byte.

Source:  docs/relays.md; docs/figures.md: os.splice and threads of the kernel's cost the same.
"""

import asyncio
import contextlib
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from p2pswarm.net.os.base import Connection
from p2pswarm.net.os.sockets import SocketConnection, set_if_known

PIECE_BYTES = 256 * 1024
DROP = socket.MSG_TRUNC if sys.platform == "linux" else 0
"""Linux drops without a copy. Others copy, which is as good; Windows refuses the flag."""
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

    def on_bytes(self, flow: PacedFlow, nbytes: int) -> bool:
        """`flow` has carried so much; False: it carries no more until `resume` is called."""
        ...


class Splicer:
    """Joins connections. One for each event loop."""

    def __init__(self, half_closed_s: float = HALF_CLOSED_S) -> None:
        """`half_closed_s`: so long one direction may go on when the other has ended."""
        self.half_closed_s = half_closed_s
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
    """Two sockets that are joined.

    Bytes stay in the kernel until the other side's kernel has taken them: they are looked at,
    sent, and then dropped from where they came (MSG_PEEK, MSG_TRUNC). So a reader that stands
    still costs no memory here, all directions of all circuits use one buffer, and TCP's own window
    stops the sender.
    """

    def __init__(
        self,
        splicer: Splicer,
        sockets: tuple[socket.socket, socket.socket],
        pace: Pace | None,
        ended: Callable[[], None],
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self._half_closed_s = splicer.half_closed_s
        self._ended = ended
        self._closing: asyncio.TimerHandle | None = None
        self._sockets = sockets
        self.over = False
        """True when both connections are closed."""
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
    def carried_bytes(self) -> int:
        """The bytes that both directions have carried."""
        return sum(direction.carried_bytes for direction in self._directions)

    def close(self) -> None:
        """End both connections. Any number of times."""
        if self.over:
            return
        self.over = True
        if self._closing is not None:
            self._closing.cancel()
        for sock in self._sockets:
            self.loop.remove_reader(sock)
            self.loop.remove_writer(sock)
            sock.close()
        self._ended()

    def on_half_close(self) -> None:
        """A direction has ended; the other one has some time."""
        if all(direction.done for direction in self._directions):
            self.close()
        elif self._closing is None:
            self._closing = self.loop.call_later(self._half_closed_s, self.close)


@dataclass(eq=False)
class _SpliceDirection:
    """Carries from one socket to the other."""

    splice: Splice
    buffer: memoryview
    source: socket.socket
    sink: socket.socket
    pace: Pace | None
    carried_bytes: int = 0
    done: bool = False

    def resume(self) -> None:
        """Read on."""
        if not self.splice.over:
            self.splice.loop.add_reader(self.source, self._readable)

    def _readable(self) -> None:
        """Pass on what the sink takes of what has come."""
        try:
            got = self.source.recv_into(self.buffer, 0, socket.MSG_PEEK)
            if not got:
                self._end()
                return
            sent = self.sink.send(self.buffer[:got])
        except (BlockingIOError, InterruptedError):
            self._wait_for_sink()
        except OSError:
            self.splice.close()
        else:
            if self._drop(sent):
                self._passed_on(sent, all_of_it=sent == got)
            else:
                self.splice.close()

    def _drop(self, nbytes: int) -> bool:
        """Take from the source what was sent; False if it is gone, because the source was reset."""
        while nbytes:
            try:
                dropped = self.source.recv_into(self.buffer, nbytes, DROP)
            except OSError:
                return False
            if not dropped:
                return False
            nbytes -= dropped
        return True

    def _passed_on(self, sent: int, *, all_of_it: bool) -> None:
        self.carried_bytes += sent
        if self.pace is not None and not self.pace.on_bytes(self, sent):
            self.splice.loop.remove_reader(self.source)
        elif not all_of_it:
            self._wait_for_sink()

    def _wait_for_sink(self) -> None:
        self.splice.loop.remove_reader(self.source)
        self.splice.loop.add_writer(self.sink, self._writable)

    def _writable(self) -> None:
        self.splice.loop.remove_writer(self.sink)
        self.resume()

    def _end(self) -> None:
        """Pass on that the source sends no more."""
        self.splice.loop.remove_reader(self.source)
        self.done = True
        try:
            self.sink.shutdown(socket.SHUT_WR)
        except OSError:  # the sink is gone, too
            self.splice.close()
        else:
            self.splice.on_half_close()
