"""ChannelDemand: when a link asks for bulk connections, and for others in the place of broken ones.

Source:  docs/paths.md, docs/bulk.md.
"""

from p2pswarm.base.ids import Address
from p2pswarm.net.bulk.connection_count import BestCount, ConnectionCount, GoodputMeter
from p2pswarm.net.config import TransportConfig
from p2pswarm.net.link.events import BulkSpare, BulkWanted
from p2pswarm.net.link.path import Path, PathKind

AGAIN_S = 1.0  # between a connection that joined and the one that replaces it: no storm of joins
BULK_MAX = 16  # the most that any path is asked for: each costs two threads
NUMBERS_MAX = 4096  # remembered: far more than are on their way at a time
SIDE = 1 << 31  # set in the numbers of the side that accepted the link's first path


def goes_elsewhere(path: Path, remote: Address, live: int) -> bool:
    """Return whether a connection of a punched path goes by a relay although others do not need to.

    The first one may: else there would be none. `live`: how many have joined.
    """
    return live > 0 and path.kind is PathKind.PUNCHED and bool(remote.circuit)


class ChannelDemand:
    """The bulk connections of one link, as one side wants them.

    The side that dialled the link's path dials them; the other side asks it to. Each is known to
    both sides by the number under which it joined, and no number joins twice. Who dials them also
    finds out how many are best (`connection_count.py`), and remembers it for the next link to this
    peer.
    """

    def __init__(self, config: TransportConfig, *, dialled: bool) -> None:
        self._config = config
        self._next = 0 if dialled else SIDE
        self._pending: dict[int, None] = {}  # numbers of ours whose answer has not come
        self._numbers: dict[int, None] = {}
        self._newest = -1
        self.live = 0
        """The number of those that are joined."""
        self.wanted = 0
        """The number that there should be; 0 before the first tensor."""
        self.by_s: float | None = None
        """The time by which the first one must have joined that the peer dials."""
        self._joined_at_s = 0.0
        self.again_at_s: float | None = None
        """The time at which to ask for `missing`."""
        self._most = config.bulk_connections_max
        self._best = BestCount()
        self._count: ConnectionCount | None = None  # None: it stays as it is
        self._meter = GoodputMeter()

    def on_path(self, most: int, best: BestCount) -> None:
        """Note how many a new path may have, and what is remembered of this peer's paths."""
        self._most, self._best = min(most, self._config.bulk_connections_max), best

    def want(self, rtt_s: float, now_s: float) -> int:
        """Return how many to dial for a first tensor."""
        config = self._config
        self.wanted = config.bulk_connections
        if rtt_s >= config.far_s:
            self.wanted = max(self.wanted, config.bulk_connections_far)
        if rtt_s >= config.grow_rtt_s:
            count = self._count = ConnectionCount(self.wanted, self._most, now_s, self._best.count)
            self.wanted = count.wanted
        return self.wanted

    def on_work(self, carried_bytes: int, now_s: float) -> bool:
        """Note that a transfer is under way, and what was carried; whether the deadline changed."""
        if self._count is None or self._meter.at_s is not None:
            return False
        self._meter.begin(carried_bytes, now_s)
        return True

    def measure(
        self, carried_bytes: int, now_s: float, *, busy: bool
    ) -> BulkWanted | BulkSpare | None:
        """Look at what was carried; how many to dial or to give up now. Changes the deadline."""
        goodput = self._meter.on_deadline(carried_bytes, now_s, busy=busy)
        if goodput is None or self._count is None:
            return None
        changed = self._count.on_goodput(goodput, self.live, now_s)
        self._best.count = self._count.settled
        if not changed:
            return None
        self._meter.settle()
        self.wanted = self._count.wanted
        if self.wanted < self.live:
            return BulkSpare(self.live - self.wanted)
        return BulkWanted(self.missing())

    @property
    def measure_at_s(self) -> float | None:
        """The time at which to call `measure`."""
        return self._meter.at_s

    def ask(self, now_s: float) -> None:
        """Note that the peer was asked to dial."""
        self.wanted = max(self.wanted, 1)
        self.by_s = now_s + self.patience_s

    @property
    def patience_s(self) -> float:
        """The time that the peer has to dial the first one."""
        return self._config.dial_s + self._config.handshake_s

    def take_number(self) -> int:
        """The number of the next connection that we dial."""
        number = self._next
        self._next += 1
        self._pending[number] = None
        return number

    def withdraw(self, number: int) -> bool:
        """Note that a connection of ours does not join, if it has not; whether the number is ours.

        The peer may have let it join, and then says that it is over before we know that it began.
        """
        self._pending.pop(number, None)
        return (number >= SIDE) is (self._next >= SIDE) and number < self._next

    @property
    def is_hopeless(self) -> bool:
        """Return whether no connection is there, and none that we dial is coming."""
        return not self.live and not self._pending

    def may_join(self, number: int) -> bool:
        """Return whether a connection may still join: it was answered, or its number claimed."""
        return number in self._pending or number in self._numbers

    def claim(self, number: int) -> bool:
        """Let a connection that the peer dialled join under this number; returns whether it may."""
        ours = self._next >= SIDE
        if (number >= SIDE) is ours or number in self._numbers:
            return False
        if number <= self._newest - NUMBERS_MAX or self.live >= self._config.bulk_connections_max:
            return False
        self.live += 1
        self._numbers[number] = None
        self._newest = max(self._newest, number)
        while len(self._numbers) > NUMBERS_MAX:
            del self._numbers[min(self._numbers)]
        return True

    def unclaim(self) -> None:
        """Note that a connection whose number was claimed has not joined."""
        self.live -= 1

    def on_join(self, number: int, now_s: float) -> None:
        """Note that one has joined; one that the peer dialled was counted with its claim."""
        if number in self._pending:
            del self._pending[number]
            self.live += 1
        self.wanted = max(self.wanted, 1)
        self.by_s = None
        self._joined_at_s = now_s
        self._meter.settle()

    def on_loss(self, now_s: float) -> None:
        """Note that one has ended."""
        self.live -= 1
        self.again_at_s = max(now_s, self._joined_at_s + AGAIN_S)
        self._meter.settle()

    def on_failure(self, now_s: float) -> None:
        """Note that one could not be made: the others must do, or another may replace it."""
        if self._count is not None and self.live:
            self._count.on_refusal(self.live, now_s)
            self.wanted = self._count.wanted
        else:
            self.again_at_s = now_s + AGAIN_S

    def on_path_change(self) -> None:
        """Note that the connections of the old path are of no use."""
        self.wanted = 0
        self.by_s = self.again_at_s = None
        self._count, self._meter = None, GoodputMeter()

    def missing(self) -> int:
        """Return how many to dial in the place of those that ended."""
        self.again_at_s = None
        return max(0, self.wanted - self.live - len(self._pending))
