"""Seeds: the addresses that a node was started with, and when to greet them again.

If a swarm starts in two halves, because its seeds cannot reach each other, it stays in
two halves unless a node greets the other seeds again. So for a while after the start a
node greets all seeds repeatedly, and later one random seed at a time.

Units:   seconds on the caller's monotonic clock.
Errors:  none.
Source:  hivemind issue #624, a swarm that stayed in two halves.
"""

import random
from collections.abc import Iterable

from p2pswarm.base.ids import Address, Contact, PeerId
from p2pswarm.discovery.dht.config import DhtConfig

SEEDS_MAX = 64  # more entry points do not help, and every newcomer greets them all


class Seeds:
    """The seeds, without this node itself."""

    def __init__(self, own: Contact, config: DhtConfig, rng: random.Random) -> None:
        self._own = own
        self._config = config
        self._rng = rng
        self._peers: dict[Address, PeerId | None] = {}
        self._start_s = 0.0
        self._due_s = float("inf")

    def start(self, contacts: Iterable[Contact], now_s: float) -> list[Contact]:
        """Store the seeds; returns all that are to be greeted, at once."""
        for contact in contacts:
            ours = contact.address == self._own.address or contact.peer == self._own.peer
            if not ours and len(self._peers) < SEEDS_MAX:
                self._peers[contact.address] = contact.peer
        self._start_s = now_s
        self._postpone(now_s)
        return self._all()

    def learned(self, address: Address, peer: PeerId | None) -> None:
        """Note which peer answered at a seed's address; None if no peer did."""
        if address in self._peers:
            self._peers[address] = peer

    def is_us(self, address: Address) -> None:
        """Forget a seed that is this node itself, under another address."""
        self._peers.pop(address, None)

    def due(self, now_s: float) -> list[Contact]:
        """The seeds to greet now."""
        if now_s < self._due_s or not self._peers:
            return []
        everybody = self._all()
        young = now_s <= self._start_s + self._config.seeds_all_s
        self._postpone(now_s)
        return everybody if young else [self._rng.choice(everybody)]

    def next_deadline_s(self) -> float | None:
        """The time of the next greeting; None without seeds."""
        return self._due_s if self._peers else None

    def _all(self) -> list[Contact]:
        return [Contact(peer, address) for address, peer in self._peers.items()]

    def _postpone(self, now_s: float) -> None:
        config = self._config
        young = now_s < self._start_s + config.seeds_all_s
        pause_s = config.seeds_all_every_s if young else config.seeds_one_every_s
        self._due_s = now_s + pause_s * self._rng.uniform(1 - config.jitter, 1 + config.jitter)
