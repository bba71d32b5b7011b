"""PartitionHealing: how a DHT that was cut apart, or that began in parts, becomes one again.

Source:  hivemind issue #624, a swarm that stayed in two halves; docs/dht.md, "Halves that meet
         again".
"""

import random
from collections.abc import Sequence

from p2pswarm.base.ids import Contact, PeerId
from p2pswarm.discovery.dht.routing_table import Table


def unknown_neighbours(met: Sequence[Contact], table: Table) -> list[Contact]:
    """The peers next to us that we do not know, of those that the first one names."""
    k, own = table.config.k, int.from_bytes(table.own.raw)
    nearest = table.nearest(table.own.raw, k)
    radius = nearest[-1].number ^ own if len(nearest) == k else 1 << 256
    return [
        each
        for each in met[1:]
        if each.peer is not None
        and each.peer != table.own
        and int.from_bytes(each.peer.raw) ^ own < radius
        and table.get(each.peer.raw) is None
    ]


PROBE_S = 5.0  # between two calls to peers that are gone
PROBE_LATE_S = 20.0  # the same, when nobody was lost or found again for `FRESH_S`
FRESH_S = 900.0  # cuts that people mend are shorter
FOUND_AGAIN_S = 0.5  # until the next, when one has answered: there may be more behind it
REMEMBERED_S = 3600.0  # as long as the DHT keeps anything
REMEMBERED_MAX = 128  # half of a table of 1,000 peers
NEWCOMER_S = 3.0  # between two greetings of strangers: each may lead to a lookup
MERGING_S = 60.0  # between two rounds of lookups at every distance; and how long one may take
SETTLED_S = (0.5, 1.5)  # a newcomer joins for so long; and not all neighbours greet it together
JITTER = 0.2
NEVER_S = float("inf")


class PartitionHealing:
    """The peers that one node greets, so that no part of the DHT stays apart.

    Two rules do it. A peer that left our table because it did not answer is remembered, and
    greeted again now and then: the first that answers after a cut has healed tells of its part.
    And a stranger that asks us something is greeted, too: if it names peers next to us that we do
    not know, it has been in another part. Then we look up our own id again, and an id at every
    distance, through the peers that it named; so its part hears of us everywhere, and does the
    same. Whoever joins a whole DHT names nobody new next to us, and costs us one call.

    There is no way to tell a cut from peers that have ended, so both are asked. What that costs
    has a bound: one call in `PROBE_S`, and one in `NEWCOMER_S`, whoever and however many come and
    go.

    At most `REMEMBERED_MAX` peers are remembered.
    """

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._lost: dict[PeerId, tuple[Contact, float]] = {}
        """Each with the time at which it was lost; the latest last."""
        self._losses: list[PeerId] = []
        """Those since the last call of `losses`."""
        self._probe_s = NEVER_S
        self._fresh_s = -NEVER_S
        """Time at which somebody was lost or found again last."""
        self._newcomer: Contact | None = None
        """The stranger that came last."""
        self._greet_s = NEVER_S
        self._greeted_s = -NEVER_S
        self._others: Sequence[Contact] = ()
        self._merged_s: float | None = None
        """Time of the last look at every distance; at first, of the first stranger."""

    def on_loss(self, contact: Contact, now_s: float) -> None:
        """Note that a peer has left the table because it did not answer."""
        assert contact.peer is not None, "a table has no contacts without an id"
        self._lost.pop(contact.peer, None)
        self._lost[contact.peer] = contact, now_s
        self._losses.append(contact.peer)
        if len(self._lost) > REMEMBERED_MAX:
            del self._lost[self._rng.choice(list(self._lost))]  # so that no loss hides another
        self._fresh_s = now_s
        self._probe_s = min(self._probe_s, now_s + self._pause_s(now_s))

    def losses(self) -> list[PeerId]:
        """The peers that were lost since the last call."""
        losses, self._losses = self._losses, []
        return losses

    def on_entry(self, contact: Contact, now_s: float) -> None:
        """Note that a peer has entered the table."""
        assert contact.peer is not None, "a table has no contacts without an id"
        if self._lost.pop(contact.peer, None) is not None:
            self._fresh_s = now_s
            self._probe_s = now_s + FOUND_AGAIN_S if self._lost else NEVER_S

    def on_stranger(self, contact: Contact, now_s: float) -> None:
        """Note that a peer that was found where it says, and was not in the table, has come."""
        if self._merged_s is None:
            self._merged_s = now_s  # who is new itself hears of neighbours from everybody
        if self._newcomer is None:
            settled_s = now_s + self._rng.uniform(*SETTLED_S)
            self._greet_s = max(settled_s, self._greeted_s + NEWCOMER_S)
        self._newcomer = contact

    def on_partition(self, named: Sequence[Contact], now_s: float) -> bool:
        """A stranger has named these, next to us; whether to look at every distance now."""
        if self._merged_s is None or now_s < self._merged_s + MERGING_S:
            return False
        self._merged_s, self._others = now_s, list(named)
        return True

    def others(self, now_s: float) -> Sequence[Contact]:
        """Those through whom another part is looked at, while that lasts."""
        fresh = self._merged_s is not None and now_s < self._merged_s + MERGING_S
        return self._others if fresh else ()

    def newcomer(self, now_s: float) -> Contact | None:
        """The stranger to greet now; None if it is not time, or nobody came."""
        if now_s < self._greet_s:
            return None
        newcomer, self._newcomer = self._newcomer, None
        self._greeted_s, self._greet_s = now_s, NEVER_S
        return newcomer

    def probe(self, now_s: float) -> Contact | None:
        """The peer to ask again now; None if it is not time, or nobody is missing."""
        if now_s < self._probe_s:
            return None
        for peer, (_, lost_s) in list(self._lost.items()):
            if lost_s + REMEMBERED_S <= now_s:
                del self._lost[peer]
        if not self._lost:
            self._probe_s = NEVER_S
            return None
        self._probe_s = now_s + self._pause_s(now_s)
        return self._rng.choice(list(self._lost.values()))[0]

    def next_deadline_s(self) -> float | None:
        """Return when the next of both is due; None if nothing is."""
        due_s = min(self._probe_s, self._greet_s)
        return None if due_s == NEVER_S else due_s

    def _pause_s(self, now_s: float) -> float:
        pause_s = PROBE_S if now_s < self._fresh_s + FRESH_S else PROBE_LATE_S
        return pause_s * self._rng.uniform(1 - JITTER, 1 + JITTER)
