"""Two threads per bulk socket: one fills the machine's memory, one sends its buffers.

Errors:  a fault of the machine, wherever it is called, ends its pipe and is shown. Whatever ends
         the pipe reaches the machine once, as `on_loss`, before the socket is shut down.
         `on_release` follows when both threads have ended and it is closed.
Source:  docs/figures.md, bandwidth_sweep.
"""

import asyncio
import contextlib
import socket
import struct
import sys
import threading
from collections.abc import Callable
from queue import SimpleQueue

from p2pswarm.base.errors import BadRecord, LinkLost, SwarmError
from p2pswarm.net.os.base import BulkMachine
from p2pswarm.net.os.event_loop import clock_of
from p2pswarm.net.os.system_limits import WATCHED_MAX

_ACKED = struct.Struct("=Q")
_ACKED_AT = 120  # after 24 numbers of 32 bits, two of them packed, and the two pacing rates
_BYTES = _ACKED_AT + _ACKED.size


def acknowledged_bytes(sock: socket.socket) -> int | None:
    """Return how many bytes the other end has acknowledged; None off Linux, or before Linux 4.1.

    Source: Linux, include/uapi/linux/tcp.h, `struct tcp_info`; bytes_acked is RFC 4898's
    tcpEStatsAppHCThruOctetsAcked.
    """
    info = b""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):  # no TCP connection, or over
            info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _BYTES)
    return None if len(info) < _BYTES else int(_ACKED.unpack_from(info, _ACKED_AT)[0])


class SocketBulkPipe:
    """A bulk socket and its threads.

    Tensors do not pass through the event loop. Receiving, sending and AEAD all release the
    interpreter's lock, so two plain blocking threads move 2 GB/s where asyncio moves 1.5, and the
    loop stays free for small calls. The threads know no rules: they ask the machine where bytes
    go, and tell it when the bytes are there.

    The receiving thread starts with the first byte, the sending one with the first `wake`. So a
    pipe on which nothing happens costs no thread, however many a peer opens. Where an event loop
    watches few sockets, it costs one that waits.
    """

    def __init__(
        self,
        sock: socket.socket,
        machine: BulkMachine,
        label: str,
        *,
        loop_waits: bool = WATCHED_MAX is None,
    ) -> None:
        """`loop_waits`: the event loop waits for the first byte, and else a thread."""
        self._sock = sock
        self._machine = machine
        self._label = label
        self._loop = asyncio.get_running_loop()
        self._wakeups: SimpleQueue[None] = SimpleQueue()
        self._guard = threading.RLock()
        self._running = 1  # what waits for the first byte; and each thread
        self._sending = False
        self._ended: SwarmError | None = None
        self._threads: list[threading.Thread] = []
        self._loop_waits = loop_waits
        if loop_waits:
            self._loop.add_reader(sock, self._readable)
        elif not self._start(self._wait_for_first, "wait"):
            self._in_loop(self._readable)

    def wake(self) -> None:
        """Let the sending thread ask the machine again."""
        with self._guard:
            if self._ended is not None:
                return
            start, self._sending = not self._sending, True
            if start:
                self._start(self._send, "tx")
        self._wakeups.put(None)

    def acknowledged_bytes(self) -> int | None:
        """Return how many bytes the kernel at the other end has; None if ours does not say."""
        with self._guard:  # so that the number of the socket is not another one's by now
            return None if self._running == 0 else acknowledged_bytes(self._sock)

    def close(self) -> None:
        """End the pipe; `on_release` follows when both threads have ended."""
        self._end(LinkLost(f"{self._label}: closed"))

    def _readable(self) -> None:
        """The first byte has come, or the end."""
        if self._loop_waits:
            self._loop.remove_reader(self._sock)
        self._run(self._begin)

    def _wait_for_first(self) -> None:
        with contextlib.suppress(OSError):  # the pipe is over: that is told where it is noted
            self._sock.recv(1, socket.MSG_PEEK)
        self._in_loop(self._readable)

    def _begin(self) -> None:
        if self._ended is None and self._machine.expects_bytes():
            self._sock.setblocking(True)  # uvloop has changed it
            self._start(self._receive, "rx")
        elif self._sock.recv(1):  # it waits for nothing: there is a byte, or the end
            raise BadRecord("bytes where nothing was granted")
        else:
            raise LinkLost(f"{self._label}: the peer closed it")

    def _start(self, body: Callable[[], None], duty: str) -> bool:
        """Start a thread; if the system has none left, the pipe ends."""
        thread = threading.Thread(
            target=self._run, args=(body,), name=f"bulk-{duty} {self._label}", daemon=True
        )
        with self._guard:
            self._running += 1
            self._threads.append(thread)
        try:
            thread.start()
        except RuntimeError as error:
            self._threads.remove(thread)
            self._end(LinkLost(f"{self._label}: {error}"))
            self._leave()
            return False
        return True

    def _run(self, body: Callable[[], None]) -> None:
        """Run a part of the pipe's work; whatever ends it wrongly ends the pipe."""
        try:
            body()
        except SwarmError as error:
            self._end(error)
        except OSError as error:
            self._end(LinkLost(f"{self._label}: {error.strerror or error}"))
        except BaseException as error:
            self._end(LinkLost(f"{self._label}: {error!r}"))
            raise
        finally:
            self._leave()

    def _receive(self) -> None:
        machine, receive_into = self._machine, self._sock.recv_into
        while True:
            buffer = machine.next_in()
            while buffer:
                got = receive_into(buffer, 0, socket.MSG_WAITALL)
                if got == 0:
                    raise LinkLost(f"{self._label}: the peer closed it")
                buffer = buffer[got:]
            self._tell(machine.on_fill())

    def _send(self) -> None:
        machine, send_all = self._machine, self._sock.sendall
        now_s = clock_of(self._loop)
        while self._ended is None:
            out = machine.next_out(now_s())
            if out is None:
                self._wakeups.get()
                continue
            send_all(out)
            self._tell(machine.on_write())

    def _tell(self, event: Callable[[], None] | None) -> None:
        if event is not None:
            self._in_loop(lambda: self._carry_out(event))

    def _carry_out(self, event: Callable[[], None]) -> None:
        """Call what a machine has for the event loop, which shows what it raises."""
        try:
            event()
        except BaseException as error:
            self._end(LinkLost(f"{self._label}: {error!r}"))
            raise

    def _end(self, error: SwarmError) -> None:
        """End both threads; only the first reason counts."""
        with self._guard:
            if self._ended is not None:
                return
            self._ended = error
        self._in_loop(lambda: self._machine.on_loss(error))
        with contextlib.suppress(OSError):  # the peer has closed it: both threads see it
            self._sock.shutdown(socket.SHUT_RDWR)
        self._wakeups.put(None)

    def _leave(self) -> None:
        with self._guard:
            self._running -= 1
            last = self._running == 0
        if last:
            self._sock.close()
            self._in_loop(self._release)

    def _release(self) -> None:
        for thread in self._threads:
            thread.join()  # each has left its loop: this takes no time
        self._machine.on_release()

    def _in_loop(self, call: Callable[[], None]) -> None:
        try:
            self._loop.call_soon_threadsafe(call)
        except RuntimeError:  # the loop is closed: nobody is left to tell
            self._end(LinkLost(f"{self._label}: the event loop is closed"))
