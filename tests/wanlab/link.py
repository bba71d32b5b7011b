"""What a link does to packets: rate, a drop-tail queue, delay, jitter and loss.

`LinkQueue` is a value that is told "this packet came now" and answers when its
last bit reaches the far end, or that it never does. It holds no packets: a
single number, when the transmitter falls idle, stands for the whole queue,
since rate times the time until then is what waits. The same lines serve the
live emulator and the property tests.

Segments that travel as one large packet (TSO) are judged one by one, as the
packets that they would be on a real wire.

Units:   seconds (`_s`) on the caller's monotonic clock, bits per second, wire
         bytes: IP packet and `FRAME_OVERHEAD_BYTES`.
Errors:  ValueError for settings that no link can have.
Source:  the order rate, queue, delay, loss follows Linux's tc-tbf and tc-netem.
"""

import math
import random
from dataclasses import dataclass

FRAME_OVERHEAD_BYTES = 14  # the Ethernet header, which Linux's own shapers charge too
ROUNDING_BYTES = 0.5  # a clock of 1e6 s in a double is exact to 0.2 bytes at 10 Gbit/s
QUEUE_BYTES_MIN = 96 * 1024  # 64 full packets: less than any router has


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """One direction between two hosts."""

    rate_bits_per_s: float | None = 200e6
    """None: no limit."""
    delay_s: float = 0.05
    """One way, without the time that the queue and the rate take."""
    queue_bytes: int | None = None
    """What may wait before the tail is dropped. None: rate times twice the delay."""
    loss: float = 0.0
    """Share of packets that vanish on the way, independently. 1.0 cuts the link."""
    jitter_s: float = 0.0
    """Up to so much more delay, uniformly; packets keep their order."""

    def __post_init__(self) -> None:
        if self.rate_bits_per_s is not None and not self.rate_bits_per_s > 0:
            raise ValueError(f"a link's rate is above 0 bit/s or None, not {self.rate_bits_per_s}")
        if not 0 <= self.loss <= 1:
            raise ValueError(f"a link loses a share in 0..1, not {self.loss}")
        if not 0 <= self.delay_s < math.inf or not 0 <= self.jitter_s < math.inf:
            raise ValueError(f"delays are 0 s or more, not {self.delay_s} and {self.jitter_s}")
        if self.queue_bytes is not None and self.queue_bytes < 0:
            raise ValueError(f"a queue holds 0 bytes or more, not {self.queue_bytes}")

    @property
    def queue_limit_bytes(self) -> float:
        """The queue that this link has."""
        if self.queue_bytes is not None:
            return self.queue_bytes
        if self.rate_bits_per_s is None:
            return math.inf
        return max(QUEUE_BYTES_MIN, self.rate_bits_per_s / 8 * 2 * self.delay_s)

    def __str__(self) -> str:
        rate = "no rate limit"
        if self.rate_bits_per_s is not None:
            queue_kb = self.queue_limit_bytes / 1e3
            rate = f"{self.rate_bits_per_s / 1e6:g} Mbit/s, queue {queue_kb:.0f} kB"
        jitter = f" + 0..{self.jitter_s * 1e3:g} ms" if self.jitter_s else ""
        return f"{rate}, {self.delay_s * 1e3:g} ms one way{jitter}, loss {self.loss:g}"


@dataclass(slots=True)
class LinkCounts:
    """What a link saw since it was made. A segment of a large packet counts as a packet."""

    packets: int = 0
    """Those that entered the queue."""
    wire_bytes: int = 0
    """Of those that entered the queue, with `FRAME_OVERHEAD_BYTES` each."""
    dropped: int = 0
    """Packets that found the queue full."""
    lost: int = 0
    """Packets that entered the queue and vanished on the way."""


@dataclass(frozen=True, slots=True)
class Run:
    """Neighbouring segments of one train that arrive together."""

    first: int
    stop: int
    """One past the last."""
    arrive_s: float


class LinkQueue:
    """The state of one link."""

    def __init__(self, link: Link, rng: random.Random) -> None:
        self._rng = rng
        self._idle_s = -math.inf  # when the transmitter falls idle
        self._last_arrive_s = -math.inf
        self.counts = LinkCounts()
        self._settle(link)

    @property
    def link(self) -> Link:
        """The settings now in force."""
        return self._link

    def change(self, link: Link, now_s: float) -> None:
        """Put other settings in force: what waits leaves at the new rate.

        What was pushed before keeps the arrival it was promised; what comes
        after never overtakes it.
        """
        waiting_bytes = self.waiting_bytes(now_s)
        self._settle(link)
        self._idle_s = now_s + waiting_bytes * self._s_per_byte

    def waiting_bytes(self, now_s: float) -> float:
        """What waits or is being transmitted; 0 on a link without a rate."""
        if not self._s_per_byte:
            return 0.0
        return max(0.0, self._idle_s - now_s) / self._s_per_byte

    def push(self, packet_bytes: int, now_s: float) -> float | None:
        """A packet of so many wire bytes comes: when it arrives, or None if never."""
        waiting_bytes = self.waiting_bytes(now_s)
        full_bytes = self._queue_limit_bytes + ROUNDING_BYTES
        if waiting_bytes > ROUNDING_BYTES and waiting_bytes + packet_bytes > full_bytes:
            self.counts.dropped += 1
            return None
        self._idle_s = max(self._idle_s, now_s) + packet_bytes * self._s_per_byte
        self.counts.packets += 1
        self.counts.wire_bytes += packet_bytes

        if self._until_loss == 0:
            self._until_loss = self._draw_until_loss()
            self.counts.lost += 1
            return None
        self._until_loss -= 1
        return self._arrival_s()

    def push_train(self, count: int, packet_bytes: int, last_bytes: int, now_s: float) -> list[Run]:
        """Segments come at once, all alike but the last: which of them arrive, and when.

        The same as `count` calls of `push`, at the price of one where nothing is lost.
        """
        train_bytes = (count - 1) * packet_bytes + last_bytes
        fits = self.waiting_bytes(now_s) + train_bytes + ROUNDING_BYTES < self._queue_limit_bytes
        if fits and self._until_loss >= count and not self._link.jitter_s:
            self._until_loss -= count
            self._idle_s = max(self._idle_s, now_s) + train_bytes * self._s_per_byte
            self.counts.packets += count
            self.counts.wire_bytes += train_bytes
            return [Run(0, count, self._arrival_s())]

        runs: list[Run] = []
        for i in range(count):
            arrive_s = self.push(packet_bytes if i < count - 1 else last_bytes, now_s)
            if arrive_s is None:
                continue
            if runs and runs[-1].stop == i:
                runs[-1] = Run(runs[-1].first, i + 1, arrive_s)
            else:
                runs.append(Run(i, i + 1, arrive_s))
        return runs

    def _settle(self, link: Link) -> None:
        self._link = link
        self._s_per_byte = 8 / link.rate_bits_per_s if link.rate_bits_per_s is not None else 0.0
        self._queue_limit_bytes = link.queue_limit_bytes
        self._until_loss = self._draw_until_loss()

    def _arrival_s(self) -> float:
        arrive_s = self._idle_s + self._link.delay_s
        if self._link.jitter_s:
            arrive_s += self._rng.uniform(0, self._link.jitter_s)
        self._last_arrive_s = max(self._last_arrive_s, arrive_s)
        return self._last_arrive_s

    def _draw_until_loss(self) -> float:
        """How many packets get through before the next is lost: a geometric draw."""
        loss = self._link.loss
        if loss in (0, 1):
            return math.inf if loss == 0 else 0
        return math.floor(math.log(1 - self._rng.random()) / math.log1p(-loss))
