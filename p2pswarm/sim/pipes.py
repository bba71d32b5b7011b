"""What a simulated connection becomes: a control pipe or a bulk pipe.

Bulk pipes run on the loop where real ones have threads.

Units:   virtual seconds, bytes.
Errors:  the machine gets them when the pipe ends, as `net/os/base.py` says.
"""

from collections import deque
from collections.abc import Callable

from p2pswarm.base.errors import LinkLost, SwarmError
from p2pswarm.net.os.base import CROWDED_BYTES, BulkMachine, ControlMachine
from p2pswarm.sim.tcp import Socket

KERNEL_BYTES = 256 * 1024  # unsent bytes that a kernel takes, as NOTSENT_LOWAT in net/os/sockets.py


class SimControlPipe:
    """A connection that pushes: implements `ControlPipe`."""

    def __init__(self, socket: Socket, user: ControlMachine) -> None:
        self._socket = socket
        self._user = user
        self._crowded = False
        self._unsent: deque[tuple[float, int]] = deque()
        """When each write will have left, and its bytes: those of bulk pipes do not count here."""
        self._unsent_bytes = 0
        socket.reader = self

    def send(self, data: bytes) -> None:
        """Write now; what the uplink has not taken waits in memory."""
        self._socket.write(data)
        self._unsent.append((self._socket.host.up_free_s, len(data)))
        self._unsent_bytes += len(data)
        if self._waiting_bytes() > CROWDED_BYTES and not self._crowded:
            self._crowded = True
            self._socket.clock.call_at(self._unsent[-1][0], self._drained)
            self._user.pause_writing()

    def close(self) -> None:
        """Send what waits, then end."""
        self._socket.close(LinkLost("closed"))

    abort = close

    def data(self, data: bytes) -> None:
        """From the socket: bytes came."""
        self._user.on_data(data)

    def over(self, error: SwarmError) -> None:
        """From the socket: it ended."""
        self._user.on_loss(error)

    def _drained(self) -> None:
        if self._waiting_bytes() > CROWDED_BYTES and not self._socket.ended:
            self._socket.clock.call_at(self._unsent[-1][0], self._drained)
        else:
            self._crowded = False
            self._user.resume_writing()

    def _waiting_bytes(self) -> int:
        now_s = self._socket.clock.time()
        while self._unsent and self._unsent[0][0] <= now_s:
            self._unsent_bytes -= self._unsent.popleft()[1]
        return self._unsent_bytes


class SimBulkPipe:
    """A connection that drives a bulk machine from the loop: implements `BulkPipe`."""

    def __init__(self, socket: Socket, machine: BulkMachine) -> None:
        self._socket = socket
        self._machine = machine
        self._buffer = machine.next_in()
        self._awake = False
        socket.reader = self

    def wake(self) -> None:
        """There is something to send."""
        if not self._awake:
            self._awake = True
            self._socket.clock.call_soon(self._send)

    def acknowledged_bytes(self) -> int | None:
        """Unknown: the simulated kernel does not say."""
        return None

    def close(self) -> None:
        """End it."""
        self._socket.close(LinkLost("closed"))

    def data(self, data: bytes) -> None:
        """From the socket: fill the machine's buffers."""
        rest = memoryview(data)
        try:
            while rest and not self._socket.ended:
                n = min(len(rest), len(self._buffer))
                self._buffer[:n] = rest[:n]
                self._buffer, rest = self._buffer[n:], rest[n:]
                if not self._buffer:
                    self._tell(self._machine.on_fill())
                    self._buffer = self._machine.next_in()
        except SwarmError as error:
            self._socket.close(error)

    def over(self, error: SwarmError) -> None:
        """From the socket: it ended."""
        self._machine.on_loss(error)
        self._socket.clock.call_soon(self._machine.on_release)

    def _send(self) -> None:
        """Send until nothing is left, or until the kernel would take no more."""
        socket = self._socket
        while not socket.ended:
            wait_s = socket.backlog_s(KERNEL_BYTES)
            if wait_s > 0:
                socket.clock.call_later(wait_s, self._send)
                return
            out = self._machine.next_out(socket.clock.time())
            if out is None:
                break
            socket.write(bytes(out))
            self._tell(self._machine.on_write())
        self._awake = False

    def _tell(self, event: Callable[[], None] | None) -> None:
        if event is not None:
            self._socket.clock.call_soon(event)
