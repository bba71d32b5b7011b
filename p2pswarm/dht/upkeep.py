"""Into the DHT, and staying there: bootstrap, seeds, lookups of contacts, refreshing.

All seeds are greeted at once and the first that answers is enough, so a dead seed
costs nothing. They go on being greeted, because two halves of a swarm that started
apart find each other only through a seed of the other half.

Units:   seconds on the loop's clock.
Errors:  NoRoute if no seed answers.
Source:  Maymounkov and Mazieres (2002), 2.3 and 2.4; hivemind issue #624.
"""

import asyncio
import logging
import random
from collections.abc import Sequence

from p2pswarm.dht.find_node import FindNode
from p2pswarm.dht.lookup import Lookup, LookupOptions
from p2pswarm.dht.messages import Identified, Identify, contact_of, contacts_in
from p2pswarm.dht.query_runner import QueryRunner, RunningQuery
from p2pswarm.dht.routing_table import Table
from p2pswarm.dht.seeds import Seeds
from p2pswarm.dht.timeouts import TimeoutEstimator
from p2pswarm.errors import BadMessage, NoRoute, SwarmError
from p2pswarm.ids import Contact

log = logging.getLogger(__name__)

HELLO_S = 3.0  # an address that may be dead or far away, and has to be dialled
NAP_S = 1.0  # between looks at what is due


class Upkeep:
    """Knows the way to others, and keeps knowing it."""

    def __init__(
        self,
        own: Contact,
        runner: QueryRunner,
        table: Table,
        timeouts: TimeoutEstimator,
        rng: random.Random,
    ) -> None:
        assert own.peer is not None
        self._own = own.peer.raw
        self._runner = runner
        self._table = table
        self._timeouts = timeouts
        self._rng = rng
        self._config = table.config
        self._seeds = Seeds(own, table.config, rng)
        self._joining: tuple[RunningQuery, Lookup] | None = None

    async def bootstrap(self, seeds: Sequence[Contact]) -> None:
        """Join through any of the seeds; without any, or as the only one, there is nothing to do.

        Returns when one has answered and the first round of a lookup of ourselves is done.
        Raises NoRoute if none answers; they go on being greeted all the same.
        """
        loop = asyncio.get_running_loop()
        greet = self._seeds.start(seeds, loop.time())
        if not greet:
            return
        joined: asyncio.Future[bool] = loop.create_future()
        silent = 0

        async def enter(seed: Contact) -> None:
            nonlocal silent
            met = await self._greet(seed)
            silent += not met
            if not joined.done() and (met or silent == len(greet)):
                joined.set_result(met)

        for seed in greet:
            self._runner.start(enter(seed))
        if not await joined and len(self._seeds):
            addresses = ", ".join(str(seed.address) for seed in greet)
            raise NoRoute(f"no answer from {addresses}: is a node running and reachable there?")

    async def _greet(self, seed: Contact) -> bool:
        """Learn who a seed is and whom it knows; returns when we have looked round from there."""
        try:
            reply = await self._runner.rpc.call(
                seed, Identify(self._runner.listen_address, self._own), HELLO_S
            )
            if not isinstance(reply, Identified):
                raise BadMessage(f"{type(reply).__name__} is no answer to Hello")
            met = [contact_of(reply.peer, str(seed.address)), *contacts_in(reply.peer_list)]
        except SwarmError as error:
            log.info("seed %s: %s", seed.address, error)
            self._seeds.learned(seed.address, None)
            return False
        if reply.peer == self._own:
            self._seeds.is_us(seed.address)
            return False
        self._seeds.learned(seed.address, met[0].peer)
        strangers = [each for each in met if each.peer and not self._table.get(each.peer.raw)]
        if strangers or self._joining is None:
            await self._join(met)
        return True

    async def _join(self, met: list[Contact]) -> None:
        """Look for those closest to ourselves, and so make ourselves known to them."""
        if self._joining is None or self._joining[1].finished:
            known = self._table.nearest(self._own, self._config.k)
            lookup = self.lookup(self._own, self._config.k)
            lookup.learned([*met, *[each.contact for each in known]])
            search = FindNode(
                lookup, self._runner.listen_address, min(len(met), self._config.alpha)
            )
            running = self._runner.start_query(search, lambda: self._looked(lookup))
            self._joining = running, lookup
        else:
            running, lookup = self._joining
            lookup.learned(met)
            running.step()
        await running.wait()

    def lookup(self, target: bytes, settle: int) -> Lookup:
        """A lookup of contacts."""
        options = LookupOptions(
            width=self._config.k, settle=settle, patience_s=self._config.lookup_s
        )
        now_s = asyncio.get_running_loop().time()
        return Lookup(target, self._own, options, self._timeouts, now_s)

    async def search(self, target: bytes) -> list[Contact]:
        """The k servers closest to an id, closest first; the last of them perhaps dead."""
        lookup = self.lookup(target, self._config.beta)
        await self._search(lookup)
        return lookup.closest(self._config.k)

    async def _search(self, lookup: Lookup) -> None:
        near = self._table.nearest(lookup.target, self._config.k)
        lookup.learned([each.contact for each in near])
        await self._runner.start_query(FindNode(lookup, self._runner.listen_address)).wait()

    def _looked(self, lookup: Lookup) -> None:
        """All of the k closest have been asked."""
        answered = lookup.heard_from()[: self._config.k]
        self._table.refreshed(lookup.target, answered, asyncio.get_running_loop().time())

    async def greet_seeds(self) -> None:
        """For ever: greet the seeds that are due."""
        while True:
            await asyncio.sleep(NAP_S)
            for seed in self._seeds.due(asyncio.get_running_loop().time()):
                self._runner.start(self._greet_again(seed))

    async def _greet_again(self, seed: Contact) -> None:
        await self._greet(seed)

    async def refresh(self) -> None:
        """For ever: look into buckets that nobody has looked into for long."""
        while True:
            await asyncio.sleep(NAP_S)
            now_s = asyncio.get_running_loop().time()
            joining = self._joining is not None and not self._joining[1].finished
            if joining or now_s < self._table.next_refresh_s():
                continue
            for target in self._table.stale(now_s, self._rng):
                await self._refresh(target)
            await self._refresh(self._own)

    async def _refresh(self, target: bytes) -> None:
        lookup = self.lookup(target, self._config.k)
        await self._search(lookup)
        self._looked(lookup)
