"""Slots: who gets one of a limited number, by group of addresses.

Ids are free, and addresses of one network nearly so. So what is scarce is shared between networks
first, then within each: handshakes, links, bulk connections, and handlers of calls.

Errors:  Busy, DialFailed or BadHandshake where nobody can make way.
Source:  max-min fairness; `net/os/addresses.py` for the groups; Choudhury and Hahne, "Dynamic queue
         length thresholds for shared-memory packet switches" (1998), with alpha 1, for handlers.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Generic, TypeVar

from p2pswarm.base.errors import BadHandshake, Busy, DialFailed
from p2pswarm.base.ids import PeerId
from p2pswarm.net.os.addresses import address_groups

G = TypeVar("G", bound=Hashable)
T = TypeVar("T", bound=Hashable)


class GroupCounter(Counter[G]):
    """The number of items in each group: of a network, a host, a peer, or several of them at once.

    A group without any takes no memory, so the groups that strangers choose are bounded by what
    they hold.
    """

    def add(self, group: G) -> None:
        """Count one more."""
        self[group] += 1

    def remove(self, group: G) -> None:
        """Count one less."""
        if self[group] > 1:
            self[group] -= 1
        else:
            del self[group]


class _Group(Generic[T]):
    """The slots of one group: its own, and those of the groups within."""

    __slots__ = ("_by_size", "_largest", "inner", "items", "size")

    def __init__(self) -> None:
        self.items: dict[T, None] = {}  # in the order in which they came
        self.inner: dict[str, _Group[T]] = {}
        self.size = 0
        self._by_size: dict[int, dict[str, None]] = {}  # the groups within
        self._largest = 0

    def largest(self) -> "_Group[T]":
        """The largest group within; of several, the one that has been so large the longest."""
        return self.inner[next(iter(self._by_size[self._largest]))]

    def grow(self, name: str, by: int) -> "_Group[T]":
        """Note that the group `name` within changes by 1 or -1; returns that group."""
        group = self.inner.get(name)
        if group is None:
            group = self.inner[name] = _Group()
        alike = self._by_size.get(group.size)
        if alike is not None:
            del alike[name]
            if not alike:
                del self._by_size[group.size]
        group.size += by
        if group.size:
            self._by_size.setdefault(group.size, {})[name] = None
        else:
            del self.inner[name]
        if group.size > self._largest or self._largest not in self._by_size:
            self._largest = group.size
        return group


class FairSlots(Generic[T]):
    """The holders of slots, by group.

    Who holds few slots is safe from who holds many. If all are taken, the next to go is the oldest
    of the largest group: of the widest kind first, then of the largest one within it, and so on. So
    a crowd displaces its own members, however many ids or addresses of its network it uses.

    Each step costs the same however many slots there are, because sizes change by one.
    """

    def __init__(self) -> None:
        self._all: _Group[T] = _Group()
        self._groups: dict[T, tuple[str, ...]] = {}

    def __len__(self) -> int:
        return len(self._groups)

    def __contains__(self, item: T) -> bool:
        return item in self._groups

    def add(self, item: T, groups: tuple[str, ...]) -> None:
        """Give `item` a slot; `groups`: those that it belongs to, the widest first."""
        self._groups[item] = groups
        group = self._all
        for name in groups:
            group = group.grow(name, 1)
        group.items[item] = None

    def remove(self, item: T) -> tuple[str, ...]:
        """Free the slot of `item`, if it has one; returns the groups that it was in."""
        groups = self._groups.pop(item, ())
        group = self._all
        for name in groups:
            group = group.grow(name, -1)
        group.items.pop(item, None)
        return groups

    def count(self, groups: tuple[str, ...]) -> int:
        """Return how many slots a group holds; `groups`: those that it is in, and itself."""
        group: _Group[T] | None = self._all
        for name in groups:
            group = None if group is None else group.inner.get(name)
        return 0 if group is None else group.size

    def next_to_go(self) -> Iterator[T]:
        """The slots of the largest group, the oldest first."""
        group = self._all
        while group.inner:
            group = group.largest()
        return iter(group.items)


class HandshakeSlots:
    """The connections in handshake; each has a number, its ticket.

    A connection is *silent* until its first message is complete, then it is *answered*. An honest
    dialler's first message comes with the connection itself, so it is silent for no time and
    answered for a round trip; a connection that never says anything stays silent. Both kinds have
    slots of their own. If they are taken, the oldest connection of the largest group of addresses
    makes way. So silence displaces only silence, a crowd displaces its own, and who is far away has
    the time that its round trip takes.

    A connection that has to become a WebSocket first costs much more. From its first byte on it is
    *upgrading*, also when it has become one, until its peer has proven itself.
    """

    def __init__(self, silent_max: int, answered_max: int, upgrading_max: int = 0) -> None:
        self._silent_max = silent_max
        self._answered_max = answered_max
        self._upgrading_max = upgrading_max
        self._silent: FairSlots[int] = FairSlots()
        self._answered: FairSlots[int] = FairSlots()
        self._upgrading: FairSlots[int] = FairSlots()
        self._upgraded: set[int] = set()
        """Of those that are upgrading, the ones whose first message was complete."""
        self._next = 0

    def enter(self, host: str) -> tuple[int, int | None]:
        """The ticket of a new connection, and the ticket of the one that it displaces, if any."""
        ticket = self._next
        self._next += 1
        return ticket, self._admit(ticket, address_groups(host), self._silent, self._silent_max)

    def on_answer(self, ticket: int) -> int | None:
        """Note that a first message was complete; returns the ticket that it displaces, if any."""
        if ticket in self._upgrading:
            self._upgraded.add(ticket)
            return None
        groups = self._silent.remove(ticket)
        return self._admit(ticket, groups, self._answered, self._answered_max) if groups else None

    def on_upgrade(self, ticket: int, host: str) -> int | None:
        """Note that a connection upgrades, and from which host, as far as is known by now.

        Called again when a proxy has named another host. Returns the ticket that it displaces, if
        any; it may be its own.
        """
        if not self._silent.remove(ticket) and not self._upgrading.remove(ticket):
            return None  # displaced a moment ago
        return self._admit(ticket, address_groups(host), self._upgrading, self._upgrading_max)

    def has_answer(self, ticket: int) -> bool:
        """Return whether a connection was answered."""
        return ticket in self._answered or ticket in self._upgraded

    def leave(self, ticket: int) -> None:
        """Forget a handshake that has succeeded or failed, or was displaced."""
        self._silent.remove(ticket)
        self._answered.remove(ticket)
        self._upgrading.remove(ticket)
        self._upgraded.discard(ticket)

    def _admit(
        self, ticket: int, groups: tuple[str, ...], slots: FairSlots[int], most: int
    ) -> int | None:
        slots.add(ticket, groups)
        if len(slots) <= most:
            return None
        displaced = next(slots.next_to_go())
        self.leave(displaced)
        return displaced


PEER_LINKS_MAX = 4  # of one peer: a pair that was dialled at once, and two paths that were lost
BUSY_SHARE = 0.25  # of all slots: a site behind one address has fewer machines in one run

L = TypeVar("L", bound=Hashable)


class LinkUse(Enum):
    """The user of a link."""

    NOBODY = auto()
    THEM = auto()
    """Streams are open, all opened by the peer."""
    US = auto()
    """A stream of ours is open, or a tensor is under way."""


def least_used(
    crowd: Sequence[L], use: Callable[[L], LinkUse], uses: Iterable[LinkUse]
) -> L | None:
    """The first of `crowd` with the first of `uses` that any has; None if none has one."""
    return next((link for wanted in uses for link in crowd if use(link) is wanted), None)


class LinkSlots(Generic[L]):
    """The links that are up, by peer and by group of addresses.

    A newcomer gets in at the cost of the largest group of addresses, where the oldest link that
    nobody uses makes way. A link that only its peer uses makes way where one host holds BUSY_SHARE
    of all slots: else a few streams that never end would hold them for ever. A link with a stream
    of ours or a tensor never does. One peer has a few links at most: two that dial each other at
    once have two, and each path that is lost without a word leaves one behind for 15 s.
    """

    def __init__(self, most: int, use: Callable[[L], LinkUse]) -> None:
        self._most = most
        self._use = use
        self._slots: FairSlots[L] = FairSlots()
        self._peers: dict[PeerId, list[L]] = {}

    def make_room(self, peer: PeerId) -> list[L]:
        """The links to close before one more of `peer` comes up; DialFailed if it must not."""
        alike = self._peers.get(peer, [])
        if len(alike) >= PEER_LINKS_MAX:
            return alike[: len(alike) - PEER_LINKS_MAX + 1]
        if len(self._slots) < self._most:
            return []
        crowd = list(self._slots.next_to_go())
        uses = [LinkUse.NOBODY]
        if len(crowd) > self._most * BUSY_SHARE:
            uses.append(LinkUse.THEM)
        if (least := least_used(crowd, self._use, uses)) is not None:
            return [least]
        raise DialFailed(f"{self._most} links are up already, and none can make way")

    def add(self, link: L, peer: PeerId, host: str) -> None:
        """Count a link that came up; `host`: the peer's, as the network sees it."""
        self._slots.add(link, address_groups(host))
        self._peers.setdefault(peer, []).append(link)

    def remove(self, link: L, peer: PeerId) -> None:
        """Forget a link that is over, if it is counted."""
        if not self._slots.remove(link):
            return
        self._peers[peer].remove(link)
        if not self._peers[peer]:
            del self._peers[peer]


class BulkSlots(Generic[L]):
    """The bulk connections that have joined, by link and by group of addresses.

    A peer joins up to 16 to each link, and nobody needs to have asked for them. If all slots are
    taken, a link of the largest group of addresses makes way: the oldest that nobody uses, then the
    oldest that only its peer uses. A link with a stream of ours or a tensor never does.
    """

    def __init__(self, most: int, use: Callable[[L], LinkUse]) -> None:
        self._most = most
        self._use = use
        self._slots: FairSlots[tuple[L, int]] = FairSlots()
        self._numbers: dict[L, dict[int, None]] = {}

    def make_room(self, link: L) -> list[L]:
        """The links to close before one more connection joins `link`."""
        if len(self._slots) < self._most:
            return []
        crowd = [other for other, _ in self._slots.next_to_go() if other is not link]
        least = least_used(crowd, self._use, (LinkUse.NOBODY, LinkUse.THEM))
        if least is not None:
            return [least]
        raise BadHandshake(f"{self._most} bulk connections have joined, and none can make way")

    def add(self, link: L, number: int, host: str) -> None:
        """Count a connection that joins `link`, whose peer is at `host`, under `number`."""
        self._numbers.setdefault(link, {})[number] = None
        self._slots.add((link, number), address_groups(host))

    def leave(self, link: L, number: int) -> None:
        """Forget a connection that has ended, if it is counted."""
        numbers = self._numbers.get(link, {})
        if number in numbers:
            del numbers[number]
            self._slots.remove((link, number))

    def remove(self, link: L) -> None:
        """Forget the connections of a link that is over."""
        for number in self._numbers.pop(link, {}):
            self._slots.remove((link, number))


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerLimits:
    """The most handlers that may run at once; calls and streams are counted separately."""

    per_peer: int = 256
    """Handlers for one peer: enough for a window of microbatches and its DHT calls."""
    total: int = 4096
    """Handlers for all peers: a task and its buffers take about 10 KiB."""


class ConcurrencyLimit:
    """The handlers that run, for each peer, for each network and in all.

    Ids are free, so a limit for each peer bounds nobody. One network may have as many handlers as
    are free: alone it gets half of all, which is enough for a run behind one address, and each
    further one that is greedy gets half of what the others leave.
    """

    def __init__(self, limits: HandlerLimits) -> None:
        self._limits = limits
        self._running: GroupCounter[bytes | str] = GroupCounter()
        """By peer, as the bytes of its id, which keep their hash, and by network."""
        self.count = 0

    def enter(self, peer: PeerId, network: str = "") -> None:
        """Count a handler for `peer` in `network`, if that counts; Busy if a limit is reached."""
        mine, near = self._running[peer.raw], self._running[network]
        free = self._limits.total - self.count
        if mine >= self._limits.per_peer or not free or near > free:
            raise Busy(f"{mine} calls of yours and {self.count} in all are under way")
        self._running.add(peer.raw)
        if network:
            self._running.add(network)
        self.count += 1

    def leave(self, peer: PeerId, network: str = "") -> None:
        """Count a handler of `peer` that has ended."""
        self.count -= 1
        self._running.remove(peer.raw)
        if network:
            self._running.remove(network)
