"""A simulated connection, as two kernels see it.

Bytes arrive in order, delayed by the latency and by the bytes before them. A path that is cut is
tried again until `USER_TIMEOUT_S`; then the connection ends.

Units:   virtual seconds, bytes.
Errors:  the reader gets LinkLost when either side ends.
"""

from collections import deque
from typing import Protocol

from p2pswarm.base.errors import LinkLost, SwarmError
from p2pswarm.base.ids import Address
from p2pswarm.sim.clock import SimClock
from p2pswarm.sim.loop import CLOCK_STEP_S
from p2pswarm.sim.world import Host, World

USER_TIMEOUT_S = 20.0  # data unacknowledged for so long ends it, as in net/os/sockets.py
RETRY_S = 1.0  # between two tries on a path that is cut


class Reader(Protocol):
    """What reads a connection at one end."""

    def data(self, data: bytes) -> None:
        """Bytes came."""
        ...

    def over(self, error: SwarmError) -> None:
        """The connection ended; called once, last."""
        ...


class Socket:
    """One end of a connection, as the kernel sees it."""

    def __init__(
        self,
        world: World,
        clock: SimClock,
        alive: "dict[Socket, None]",
        host: Host,
        remote: Address,
    ) -> None:
        """`alive`: all sockets of the world that have not ended."""
        self.host = host
        self.remote = remote
        self.clock = clock
        self.far: Socket
        self.reader: Reader
        self.ended = False
        """Whether nothing more is sent or received at this end."""
        self._told = False
        self._world = world
        self._alive = alive
        self._on_way: deque[bytes | None] = deque()
        """The items that are under way, in order; None is the end."""
        self._held: deque[bytes | None] = deque()
        """The items that wait because the path is cut."""
        self._held_since_s = 0.0
        self._last_s = 0.0
        alive[self] = None

    def write(self, data: bytes) -> None:
        """Send; the simulated kernel buffers without limit."""
        if not self.ended:
            self._post(data)

    def close(self, reason: SwarmError | None = None) -> None:
        """End: the other side learns it after all that was written; our reader gets `reason`."""
        if not self.ended:
            self._post(None)
            self.die()
        if reason is not None and not self._told:
            self._told = True
            self.clock.call_soon(self.reader.over, reason)

    def die(self) -> None:
        """End without telling our reader or the other side."""
        self.ended = True
        self._alive.pop(self, None)

    def backlog_s(self, allowed_bytes: int) -> float:
        """Seconds until no more than `allowed_bytes` wait for the uplink."""
        rate = min(self.host.up_bytes_per_s, self._world.path_bytes_per_s(self.host, self.far.host))
        now_s = self.clock.time()
        wait_s = self._world.queued_s(self.host, self.far.host, now_s) - allowed_bytes / rate
        return wait_s if wait_s > CLOCK_STEP_S else 0.0  # a smaller wait would not move the clock

    def _post(self, item: bytes | None) -> None:
        if self._held:
            self._held.append(item)
            return
        now_s = self.clock.time()
        came_s = self._world.arrival_s(self.host, self.far.host, len(item or b""), now_s)
        if came_s is None:
            self._held.append(item)
            self._held_since_s = now_s
            self.clock.call_later(RETRY_S, self._retry)
            return
        self._last_s = max(self._last_s, came_s)
        self._on_way.append(item)
        self.clock.call_at(self._last_s, self.far.arrived, self._on_way)

    def _retry(self) -> None:
        held, self._held = self._held, deque()
        if self.clock.time() - self._held_since_s >= USER_TIMEOUT_S:
            self._end(LinkLost(f"{self.remote}: Connection timed out"))
            return
        since_s = self._held_since_s
        for item in held:
            self._post(item)
        if self._held:
            self._held_since_s = since_s

    def arrived(self, on_way: "deque[bytes | None]") -> None:
        """The next item from the other end."""
        item = on_way.popleft()
        if self.ended or not self.host.alive:
            return
        if item is None:
            self._end(LinkLost(f"{self.remote}: closed by the peer"))
        else:
            self.reader.data(item)

    def _end(self, error: SwarmError) -> None:
        if not self._told:
            self._told = True
            self.die()
            self.reader.over(error)
