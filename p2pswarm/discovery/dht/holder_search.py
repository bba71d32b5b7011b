"""HolderSearch: finds the peers that are to hold a key's records, also around a crowded key.

It runs lookups and waits for them; what a crowd is, and where to look instead, is in `crowding.py`.

Units:   seconds on the loop's clock.
Errors:  none: whoever fails is not found.
"""

import asyncio
import random
from collections.abc import Iterable, Sequence
from itertools import islice

from p2pswarm.base.ids import Contact
from p2pswarm.discovery.dht.crowding import (
    PATIENCE_S,
    CrowdedKeys,
    Spread,
    closest_of,
    crowd_within,
    distances_to,
    members,
    points_around,
    size_of,
)
from p2pswarm.discovery.dht.find_node import FindNode
from p2pswarm.discovery.dht.lookup import Lookup, LookupOptions
from p2pswarm.discovery.dht.query_runner import QueryRunner
from p2pswarm.discovery.dht.routing_table import Table


class HolderSearch:
    """The lookups of one node for the peers closest to keys."""

    def __init__(self, table: Table, runner: QueryRunner, rng: random.Random) -> None:
        self._table = table
        self._runner = runner
        self._rng = rng
        self._config = table.config
        self._crowded = CrowdedKeys()

    def lookup(
        self,
        target: bytes,
        settle: int,
        size: float = 0.0,
        patience_s: float | None = None,
        shunned: tuple[bytes, int] | None = None,
    ) -> Lookup:
        """A lookup that begins with the contacts in our table; see `LookupOptions`."""
        lookup = self._empty(target, settle, size, patience_s, shunned)
        near = self._table.nearest(target, len(self._table) if shunned else self._config.k)
        contacts = (each.contact for each in near)
        lookup.learned(islice((c for c in contacts if not lookup.shuns(c)), self._config.k))
        return lookup

    def lookup_across(self, target: bytes, met: Sequence[Contact]) -> Lookup:
        """A lookup that begins with a peer of another part of the DHT and those it has named.

        Of our own part it hears only as far as the other knows it. With our own contacts, which are
        closer to the target than those that we met, it would never ask the other part at all.
        """
        lookup = self._empty(target, self._config.k)
        learn(lookup, met)
        return lookup

    def _empty(
        self,
        target: bytes,
        settle: int,
        size: float = 0.0,
        patience_s: float | None = None,
        shunned: tuple[bytes, int] | None = None,
    ) -> Lookup:
        config, recorder = self._config, self._runner.recorder
        options = LookupOptions(
            width=config.k,
            settle=settle,
            patience_s=patience_s or config.lookup_s,
            least_scope=config.least_scope,
            size=size,
            shunned=shunned,
        )
        own, timeouts = self._table.own.raw, recorder.timeouts
        return Lookup(target, own, options, timeouts, self._now_s(), recorder.hearsay)

    async def closest(self, key: bytes) -> list[Contact]:
        """The k servers closest to a key, closest first; some of the last may be dead."""
        lookup = self.lookup(key, self._config.beta)
        await self._run([lookup])
        return lookup.closest(self._config.k)

    async def holders(self, key: bytes) -> tuple[list[Contact], Spread]:
        """The servers closest to a key, and how they are spread; call `region` for a crowd."""
        now_s, replicas = self._now_s(), self._config.replicas
        near = self._table.nearest(key, self._config.k)
        found = [each.contact for each in near]
        if self.crowded(key):
            return found, Spread.CROWDED
        size = size_of(self._table)
        if self._table.sure(key, near[:replicas], replicas, now_s):
            spread = Spread.of(distances_to(key, found), size)
        else:
            found = await self.closest(key)
            spread = Spread.of(distances_to(key, found), size)
            if spread is Spread.CROWDED:  # some of them may be invented: see who answers
                lookup = self.lookup(key, replicas, size, PATIENCE_S)
                await self._run([lookup])
                found = lookup.closest(self._config.k)
                spread = Spread.CROWDED if lookup.crowded else Spread.DENSE
        if spread is Spread.CROWDED:
            self.saw_crowd(key)
        return found, spread

    def known(self, key: bytes) -> list[Contact]:
        """The contacts of our table that are closest to a key."""
        return [each.contact for each in self._table.nearest(key, self._config.k)]

    def knows_all(self, key: bytes) -> bool:
        """Whether the swarm is so small that all of it holds every record."""
        return len(self.known(key)) < self._config.k

    def crowded(self, key: bytes) -> bool:
        """Whether a crowd was seen around a key a short time ago."""
        return self._crowded.holds(key, self._now_s())

    def saw_crowd(self, key: bytes) -> None:
        """Note a crowd around a key."""
        self._crowded.add(key, self._now_s())

    async def region(self, key: bytes, closest: Iterable[Contact]) -> list[Contact]:
        """The peers around a crowded key whatever ids are there, with the closest, at random.

        The closest are among them because others may see no crowd, and use only these.
        """
        region = self._crowded.region(key, self._now_s())
        if not region:
            size = size_of(self._table)
            points = points_around(key, size, self._rng)
            round_it, settle = (key, crowd_within(size)), self._config.replicas
            lookups = [
                self.lookup(each, settle, patience_s=PATIENCE_S, shunned=round_it)
                for each in points
            ]
            amid = closest_of(key, points)  # honest peers stand in the crowd, too
            lookups.append(self.lookup(amid, settle, patience_s=PATIENCE_S))
            await self._run(lookups)
            region = members([each.met(self._config.k) for each in lookups], self._rng)
            self._crowded.learned(key, region, self._now_s())
        return members([list(closest), region], self._rng)

    async def _run(self, lookups: list[Lookup]) -> None:
        for running in [self._runner.start_query(FindNode(each)) for each in lookups]:
            await running.wait()

    def _now_s(self) -> float:
        return asyncio.get_running_loop().time()


def learn(lookup: Lookup, met: Sequence[Contact]) -> None:
    """Add a peer that has answered, and the contacts that it named; nothing if there is none."""
    if met:
        lookup.learned(met[:1])
        lookup.learned(met[1:], met[0])
