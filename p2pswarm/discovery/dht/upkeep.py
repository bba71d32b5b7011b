"""Upkeep: the work that a node does from time to time to stay in the DHT.

There are five kinds of work: greet seeds again, greet who is gone or new, publish our own
values again, refresh buckets, and forget expired records. `poll` returns the duties that the pump
is to do, and forgets expired records itself.

Refreshing makes one lookup at a time, because it is never urgent. It waits while the node
joins, and pauses for REFRESH_PAUSE_S after a round, so that buckets that appear together
are refreshed in one round.

Units:   seconds on the caller's monotonic clock; `_ms` milliseconds since 1970 on the wall clock.
Errors:  none.
Source:  Maymounkov and Mazieres, "Kademlia" (2002), 2.3; hivemind issue #624, for
         greeting seeds again.
"""

import random
from collections import deque
from dataclasses import dataclass

from p2pswarm.base.ids import Contact
from p2pswarm.discovery.dht.publications import Publication, Publications
from p2pswarm.discovery.dht.record_store import RecordStore
from p2pswarm.discovery.dht.reunion import Reunion
from p2pswarm.discovery.dht.routing_table import Table
from p2pswarm.discovery.dht.seeds import Seeds

EXPIRE_EVERY_S = 10.0  # a read checks the time itself; expiring only frees memory
EXPIRE_PAUSE_S = 0.05  # between two portions, each of some milliseconds
REFRESH_PAUSE_S = 1.0  # joining fills several buckets in less time
REPUBLISH_TOGETHER = 16  # of our values, at the same time


@dataclass(frozen=True, slots=True)
class GreetSeed:
    """Greet a seed again, or a peer that is gone."""

    seed: Contact


@dataclass(frozen=True, slots=True)
class GreetStranger:
    """Ask a peer that has come whom it knows next to us."""

    stranger: Contact


@dataclass(frozen=True, slots=True)
class LookRound:
    """Look up an id, to refresh the bucket in which it lies."""

    target: bytes
    across: bool = False
    """Whether to begin in the other part of the DHT that was met, and there alone."""


@dataclass(frozen=True, slots=True, eq=False)
class PublishAgain:
    """Publish a value of ours again."""

    publication: Publication


Duty = GreetSeed | GreetStranger | LookRound | PublishAgain


class Upkeep:
    """Tells which duties are due, and when the next one is."""

    def __init__(
        self,
        own: Contact,
        table: Table,
        store: RecordStore,
        publications: Publications,
        rng: random.Random,
        reunion: Reunion,
    ) -> None:
        assert own.peer is not None
        self._own = own.peer.raw
        self._table = table
        self._store = store
        self._publications = publications
        self._rng = rng
        self._reunion = reunion
        self.seeds = Seeds(own, table.config, rng)
        self.joining = False
        """Whether we look up our own id to join; refreshing waits for it."""
        self._to_publish: deque[Publication] = deque()
        self._publishing = 0
        self._rounds: deque[LookRound] = deque()
        self._refreshing = False
        self._rest_s: float | None = None
        """No round of refreshing begins before this time; None until the first `poll`."""
        self._expire_s = 0.0
        """No record is expired before this time."""
        self._wall_less_loop_s = 0.0

    def poll(self, now_s: float, now_ms: int) -> list[Duty]:
        """The duties to do now; call `done` at the end of each."""
        self._wall_less_loop_s = now_ms / 1000 - now_s
        if self._rest_s is None:
            self._rest_s = now_s + REFRESH_PAUSE_S
            self._expire_s = now_s + EXPIRE_EVERY_S
        self._expire(now_s, now_ms)
        duties: list[Duty] = [GreetSeed(seed) for seed in self.seeds.due(now_s)]
        duties += self._reunite(now_s)
        duties += self._publish(now_s)
        duties += self._refresh(now_s)
        return duties

    def done(self, duty: Duty, now_s: float) -> None:
        """Note that a duty was done or given up."""
        if isinstance(duty, PublishAgain):
            self._publishing -= 1
        elif isinstance(duty, LookRound):
            self._refreshing = False
            self._rest_s = now_s + REFRESH_PAUSE_S

    def next_deadline_s(self) -> float | None:
        """When to poll again, unless a duty ends earlier; None if nothing will be due."""
        deadlines_s = (
            self.seeds.next_deadline_s(),
            None if self.joining else self._reunion.next_deadline_s(),
            self._publications.next_deadline_s(),
            self._next_refresh_s(),
            self._next_expiry_s(),
        )
        return min((each for each in deadlines_s if each is not None), default=None)

    def _expire(self, now_s: float, now_ms: int) -> None:
        due_s = self._next_expiry_s()
        if due_s is not None and due_s <= now_s:
            self._store.expire(now_ms)
            next_ms = self._store.next_expiry_ms()
            more = next_ms is not None and next_ms <= now_ms
            self._expire_s = now_s + (EXPIRE_PAUSE_S if more else EXPIRE_EVERY_S)

    def _next_expiry_s(self) -> float | None:
        first_ms = self._store.next_expiry_ms()
        if first_ms is None:
            return None
        return max(self._expire_s, first_ms / 1000 - self._wall_less_loop_s)

    def _reunite(self, now_s: float) -> list[Duty]:
        """Greet who is gone, and who came close; joining goes first."""
        if self.joining:
            return []
        gone, stranger = self._reunion.probe(now_s), self._reunion.newcomer(now_s)
        duties: list[Duty] = [GreetSeed(gone)] if gone is not None else []
        return duties if stranger is None else [*duties, GreetStranger(stranger)]

    def merge(self) -> None:
        """Another part of the DHT was met: look at every distance, ourselves last."""
        self._rounds.extendleft(
            LookRound(each, across=True) for each in self._table.at_every_distance(self._rng)
        )  # the nearest first: who is there does the same
        self._rounds.append(LookRound(self._own))

    def _publish(self, now_s: float) -> list[Duty]:
        self._to_publish += self._publications.due(now_s)
        duties: list[Duty] = []
        while self._to_publish and self._publishing < REPUBLISH_TOGETHER:
            publication = self._to_publish.popleft()
            if self._publications.keeps(publication):
                self._publishing += 1
                duties.append(PublishAgain(publication))
        return duties

    def _refresh(self, now_s: float) -> list[Duty]:
        due_s = self._next_refresh_s()
        if due_s is not None and due_s <= now_s:
            soon_s = now_s + REFRESH_PAUSE_S  # so that buckets stay in one round
            targets = [*self._table.stale(soon_s, self._rng), self._own]
            self._rounds += [LookRound(each) for each in targets]
        if not self._rounds or self._refreshing:
            return []
        self._refreshing = True
        return [self._rounds.popleft()]

    def _next_refresh_s(self) -> float | None:
        """When the next round of refreshing begins; None during a round or while joining."""
        stale_s = self._table.next_refresh_s()
        if stale_s is None or self._rest_s is None:
            return None
        if self.joining or self._refreshing or self._rounds:
            return None
        return max(stale_s, self._rest_s)
