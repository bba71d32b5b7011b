"""The queue of strangers' handshakes, which groups of addresses leave in turn.

Source:  hierarchical round robin, for items of equal cost; `net/os/addresses.py` for the groups.
"""

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

from p2pswarm.net.os.addresses import address_groups

T = TypeVar("T", bound=Hashable)


class _QueueGroup(Generic[T]):
    """A group: its own items, and the groups within that have any. The first is next."""

    __slots__ = ("inner", "items")

    def __init__(self) -> None:
        self.items: OrderedDict[T, None] = OrderedDict()
        self.inner: OrderedDict[str, _QueueGroup[T]] = OrderedDict()


class FairQueue(Generic[T]):
    """The items that wait, by group.

    Groups of the widest kind take turns, then the groups within each, and so on; within the
    smallest group the oldest comes first. So an item waits for one turn of each other group beside
    its own at each level, however many a group has. Each step costs the same however many wait.
    """

    def __init__(self) -> None:
        self._all: _QueueGroup[T] = _QueueGroup()
        self._groups: dict[T, tuple[str, ...]] = {}

    def __len__(self) -> int:
        return len(self._groups)

    def __contains__(self, item: T) -> bool:
        return item in self._groups

    def add(self, item: T, groups: tuple[str, ...]) -> None:
        """Let `item` wait, once; `groups`: those that it belongs to, the widest first."""
        self._groups[item] = groups
        group = self._all
        for name in groups:
            group = group.inner.setdefault(name, _QueueGroup())
        group.items[item] = None

    def remove(self, item: T) -> None:
        """Forget `item`, if it waits."""
        groups = self._groups.pop(item, None)
        if groups is not None:
            self._take(item, groups)

    def next(self) -> T | None:
        """Take out whose turn it is; None if nobody waits."""
        if not self._groups:
            return None
        group = self._all
        while group.inner:
            name, inner = next(iter(group.inner.items()))
            group.inner.move_to_end(name)  # the others of its kind come before its next turn
            group = inner
        item = next(iter(group.items))
        self._take(item, self._groups.pop(item))
        return item

    def _take(self, item: T, groups: tuple[str, ...]) -> None:
        path = [self._all]
        for name in groups:
            path.append(path[-1].inner[name])
        del path[-1].items[item]
        for name in reversed(groups):
            inner = path.pop()
            if inner.items or inner.inner:
                return
            del path[-1].inner[name]


SHARE = 0.25  # of the loop's time: a thousand computations a second, and training keeps the most
BURST_S = 0.02  # so much at once: 40 peers that join together do not wait
COST_MAX_S = 0.005  # counted at most: a pause of the whole process is nobody's computation


class HandshakeQueue:
    """The computations that wait, each under its handshake's ticket.

    A first message costs us the most of what a stranger can make us do: 0.23 ms of cryptography for
    55 bytes, and its proof as much again. Places bound memory, not this. So each computation of a
    handshake that we accept waits for its turn: groups of addresses take turns, and after each
    computation nobody has a turn before the others that use the loop had their part.

    Who has our answer and proves itself comes in turn with those who say their first words: a flood
    of first messages, which are cheap to make, does not hold up those who were answered. So a
    dialler of a network of its own waits for one turn of each other network that floods us, at
    most, and for little more at its proof: 10 ms beside one network, 0.25 s beside a hundred.
    """

    def __init__(self, share: float = SHARE) -> None:
        """`share`: of the loop's time, above 0 and at most 1."""
        self._share = share
        self._first_messages: FairQueue[int] = FairQueue()
        self._proofs: FairQueue[int] = FairQueue()
        self._proof_is_next = True
        self._paid_until_s = 0.0
        """The time at which all that was computed so far is paid for, at our share."""

    def __len__(self) -> int:
        """Return how many wait."""
        return len(self._first_messages) + len(self._proofs)

    def enter(self, ticket: int, host: str, *, answered: bool = False) -> None:
        """Let a handshake wait for a turn; `answered`: it had our answer, and this is its proof."""
        waiting = self._proofs if answered else self._first_messages
        waiting.add(ticket, address_groups(host))

    def leave(self, ticket: int) -> None:
        """Forget a handshake that waits no more."""
        self._first_messages.remove(ticket)
        self._proofs.remove(ticket)

    def next(self, now_s: float) -> int | None:
        """Take out the ticket whose turn it is; None if nobody waits, or it is too early."""
        at_s = self.next_deadline_s()
        if at_s is None or now_s < at_s:
            return None
        proof = bool(self._proofs) and (self._proof_is_next or not self._first_messages)
        self._proof_is_next = not proof
        return (self._proofs if proof else self._first_messages).next()

    def charge(self, cost_s: float, now_s: float) -> None:
        """Note that a computation has taken `cost_s`; may set the deadline."""
        owed_from_s = max(self._paid_until_s, now_s)
        self._paid_until_s = owed_from_s + min(cost_s, COST_MAX_S) / self._share

    def next_deadline_s(self) -> float | None:
        """Return when to call `next`; None while nobody waits."""
        return self._paid_until_s - BURST_S / self._share if len(self) else None
