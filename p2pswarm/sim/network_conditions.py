"""The places of the simulated machines, and the delays of their links.

Source:  Dabek et al., "Vivaldi" (SIGCOMM 2004), for latency as a distance.
"""

import hashlib
import math
import random
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from p2pswarm.base.ids import Address, PeerId
from p2pswarm.plan.network import RegionNetwork

SQUARE_MEDIAN = 0.512  # median distance of two random points of a unit square
RTO_LEAST_S = 0.2  # Linux waits at least so long before it sends a lost packet again
PORT = 4000
GBIT_BYTES = 125e6  # in a Gbit
HOSTS_MAX = 1 << 24  # as many as 10.0.0.0/8 has addresses
_EVENT = struct.Struct("<dIIQ")


Place = tuple[float, float] | int
"""A point (x, y) of the unit square, or the number of a region of the network."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldConfig:
    """The network of a simulated world."""

    rtt_median_s: float = 0.1
    """Median round trip between two hosts placed at random."""
    rtt_least_s: float = 0.004
    """Round trip between two hosts at one place: the last miles."""
    jitter: float = 0.0
    """A message is late by up to this share of its latency."""
    bandwidth_bytes_per_s: float = math.inf
    """The rate of each host's uplink and downlink."""
    loss: float = 0.0
    """Chance that a message has to be sent again."""
    dial_rtts: float = 0.0
    """Round trips to make a link before the first request to a peer (TCP 1, Noise XX 1)."""
    links_max: int = 256
    """Links that a host keeps; the one used longest ago goes first."""
    through_codec: bool = False
    """Encode and decode every message, as a check; its size is exact then."""
    bulk_scale: float = 1.0
    """A byte of a tensor stands for so many: large tensors need not be in memory then."""
    network: RegionNetwork | None = None
    """The latencies and rates between hosts that were placed in its regions."""

    def __post_init__(self) -> None:
        if not 0 <= self.rtt_least_s <= self.rtt_median_s:
            raise ValueError(f"rtt_least_s={self.rtt_least_s} is not in 0..rtt_median_s")
        if not 0 <= self.loss < 1:
            raise ValueError(f"loss={self.loss} is not in [0, 1)")
        if not 0 < self.bulk_scale < math.inf:
            raise ValueError(f"bulk_scale={self.bulk_scale} is not above 0")


@dataclass(slots=True, eq=False)
class Host:
    """One machine."""

    index: int
    peer: PeerId
    address: Address
    x_s: float
    y_s: float
    up_bytes_per_s: float
    down_bytes_per_s: float
    alive: bool = True
    island: int = 0
    """Hosts on different islands cannot reach each other."""
    late_s: float = 0.0
    """The latency that its link adds to every path while it is slow."""
    up_free_s: float = 0.0
    """When the uplink will have sent everything that it was given."""
    down_free_s: float = 0.0
    region: int | None = None
    """Its place in the rows of the network, if it is in one."""
    path_free_s: dict[int, float] = field(default_factory=dict)
    """When each path that has a rate will have carried what we gave it, by the other's index."""
    sent_bytes: int = 0


class World:
    """All hosts and the paths between them; determined by the seed and the calls.

    Without a network, latency is a distance: hosts are points of a plane whose coordinates are
    seconds. So the triangle inequality holds for latencies, as it mostly does in the Internet.
    With a network of regions (`plan/network.py`), the latency and the rate of a path are those of
    its regions.

    A host's uplink and downlink are queues, and so is a path that has a rate: bytes pass one after
    another. Whoever sends much sends it in chunks, the next when the queues are empty. So streams
    share a link fairly, and what one cannot use is left to the others (docs/simulation.md). A lost
    packet is a delay, as in TCP.
    """

    def __init__(
        self, seed: int, config: WorldConfig, changed: Callable[[], None] = lambda: None
    ) -> None:
        """`changed` is called when paths were cut or are whole again."""
        self.config = config
        self._changed = changed
        self._cuts: dict[tuple[int, int], int] = {}
        """The number of cuts of each path, by the indices of its hosts."""
        self.rng = random.Random(seed)
        self.hosts: dict[bytes, Host] = {}
        """By peer id, in the order in which they were placed."""
        self._at: dict[str, Host] = {}
        self._side_s = (config.rtt_median_s - config.rtt_least_s) / 2 / SQUARE_MEDIAN
        self._events = hashlib.blake2b(digest_size=16)

    def place(
        self,
        peer: PeerId,
        at: Place | None = None,
        address: Address | None = None,
    ) -> Host:
        """A new host, at random or `at` a place; `address`: None for any."""
        index = len(self.hosts)
        if peer.raw in self.hosts or index >= HOSTS_MAX:
            raise ValueError(f"no place for {peer}: already here, or the world is full")
        region = at if isinstance(at, int) else None
        x, y = at if isinstance(at, tuple) else (self.rng.random(), self.rng.random())
        rate = self.config.bandwidth_bytes_per_s
        if address is None:
            address = Address(f"10.{index >> 16}.{index >> 8 & 255}.{index & 255}", PORT)
        host = Host(
            index, peer, address, x * self._side_s, y * self._side_s, rate, rate, region=region
        )
        self.hosts[peer.raw] = self._at[address.host] = host
        return host

    def at(self, address: Address) -> Host | None:
        """The host that has this address, at any port."""
        return self._at.get(address.host)

    def partition(self, *islands: Iterable[PeerId]) -> None:
        """Cut the world into these islands; all other hosts are on one more island."""
        self._place_on_one_island()
        for number, members in enumerate(islands, start=1):
            for peer in members:
                self.hosts[peer.raw].island = number
        self._changed()

    def heal(self) -> None:
        """Make it one world again; paths that were cut one by one stay so."""
        self._place_on_one_island()
        self._changed()

    def cut(self, paths: Iterable[tuple[Host, Host]]) -> None:
        """Let nothing pass from the first host of each path to the second."""
        for a, b in paths:
            self._cuts[a.index, b.index] = self._cuts.get((a.index, b.index), 0) + 1
        self._changed()

    def mend(self, paths: Iterable[tuple[Host, Host]]) -> None:
        """Take one cut of each of these paths away."""
        for a, b in paths:
            cuts = self._cuts.pop((a.index, b.index)) - 1
            if cuts:
                self._cuts[a.index, b.index] = cuts
        self._changed()

    def one_way_s(self, a: Host, b: Host) -> float:
        """Latency without jitter, loss and queues."""
        if a.region is not None and b.region is not None and self.config.network is not None:
            return self.config.network.rtt_s[a.region][b.region] / 2 + a.late_s + b.late_s
        way_s = self.config.rtt_least_s / 2 + math.hypot(a.x_s - b.x_s, a.y_s - b.y_s)
        return way_s + a.late_s + b.late_s

    def connected(self, a: Host, b: Host) -> bool:
        """Return whether a packet from `a` would come to `b` now."""
        if self._cuts and (a.index, b.index) in self._cuts:
            return False
        return a.alive and b.alive and a.island == b.island

    def _place_on_one_island(self) -> None:
        for host in self.hosts.values():
            host.island = 0

    def arrival_s(self, source: Host, target: Host, size_bytes: int, now_s: float) -> float | None:
        """Return when bytes that `source` sends now reach `target`; None if they never will."""
        self._events.update(_EVENT.pack(now_s, source.index, target.index, size_bytes))
        source.sent_bytes += size_bytes
        if not self.connected(source, target):
            return None
        way_s = self.one_way_s(source, target)
        config = self.config
        if config.jitter:
            way_s *= 1 + config.jitter * self.rng.random()
        retry_s = max(RTO_LEAST_S, 2 * way_s)
        while config.loss and self.rng.random() < config.loss:
            way_s += retry_s
            retry_s *= 2
        # A message enters both queues when it is sent. So a message from far away does not delay
        # one from near by that was sent after it.
        source.up_free_s = max(now_s, source.up_free_s) + size_bytes / source.up_bytes_per_s
        target.down_free_s = max(now_s, target.down_free_s) + size_bytes / target.down_bytes_per_s
        free_s = max(source.up_free_s, target.down_free_s)
        rate = math.inf if config.network is None else self.path_bytes_per_s(source, target)
        if rate < math.inf:
            path_s = max(now_s, source.path_free_s.get(target.index, 0.0)) + size_bytes / rate
            source.path_free_s[target.index] = path_s
            free_s = max(free_s, path_s)
        return free_s + way_s

    def path_bytes_per_s(self, a: Host, b: Host) -> float:
        """The rate of a path between two regions, beside what the hosts' own links have."""
        network = self.config.network
        if network is None or a.region is None or b.region is None:
            return math.inf
        return network.gbps[a.region][b.region] * GBIT_BYTES

    def queued_s(self, source: Host, target: Host, now_s: float) -> float:
        """Seconds until all queues on a path have sent what they were given."""
        path_s = source.path_free_s.get(target.index, 0.0)
        return max(0.0, max(source.up_free_s, path_s, target.down_free_s) - now_s)

    @property
    def digest(self) -> str:
        """The digest of everything sent so far: the times, senders, receivers and sizes."""
        return self._events.hexdigest()
