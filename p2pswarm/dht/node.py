"""The DHT of one node: publish a value, get what others published, find peers.

What is asked of whom is for the machines to say (`lookup.py`, `get_value.py`,
`put_value.py`); here they are joined with the table, the store and the network.

Units:   seconds on the loop's clock; `_ms` milliseconds since 1970 on the wall clock.
Errors:  NoRoute, Refused and Unusable as told at each method; ValueError when we are misused.
Source:  Maymounkov and Mazieres, "Kademlia" (2002); BEP 44 for signed values.
"""

import asyncio
import random
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any, Self

from p2pswarm.crypto.identity import Identity
from p2pswarm.dht.config import DhtConfig
from p2pswarm.dht.get_value import GetOptions, GetValue
from p2pswarm.dht.lookup import Lookup, LookupOptions
from p2pswarm.dht.messages import (
    Find,
    Found,
    Get,
    Got,
    Identified,
    Identify,
    Ping,
    Pong,
    Record,
    Store,
    Stored,
    contact_of,
    contacts_in,
)
from p2pswarm.dht.publications import Publication, Publications
from p2pswarm.dht.put_value import PutOptions, PutValue
from p2pswarm.dht.query_runner import QueryRunner, RunningQuery
from p2pswarm.dht.record_store import RecordStore, Verdict
from p2pswarm.dht.records import SignatureCache, sign
from p2pswarm.dht.responder import NOBODY, Responder
from p2pswarm.dht.routing_table import Table
from p2pswarm.dht.store_batches import BatchedRecord
from p2pswarm.dht.timeouts import TimeoutEstimator
from p2pswarm.dht.upkeep import NAP_S, Upkeep
from p2pswarm.errors import NoRoute, Refused, Unusable
from p2pswarm.ids import Contact, PeerId
from p2pswarm.rpc.base import Rpc

EXPIRE_EVERY_S = 10.0  # reads check the time themselves; this only frees memory
PROVE_AFTER_S = 0.5  # after it was read, when nobody waits any more
REPUBLISH_TOGETHER = 16  # records of ours that are placed again at once
MISSES_MAX = 4096  # keys remembered as not found


class Dht:
    """One node's part in the DHT. Use it as a context manager: it owns its tasks."""

    def __init__(
        self,
        rpc: Rpc,
        identity: Identity,
        config: DhtConfig,
        rng: random.Random,
        wall_s: Callable[[], float],
    ) -> None:
        """`rpc` must be listening already if we are a server; `wall_s` tells seconds since 1970."""
        peer = identity.peer_id
        self.config = config
        self.table = Table(peer, config)
        self.timeouts = TimeoutEstimator(config)
        self._identity = identity
        self._wall_s = wall_s
        self._signatures = SignatureCache()
        self.store = RecordStore(peer, config, self._signatures)
        self.contact = Contact(peer, rpc.contact.address)
        self._runner = QueryRunner(self.contact, rpc, self.table, self.timeouts, self._keep)
        self._answers = Responder(peer, self.table, self.store)
        self._upkeep = Upkeep(self.contact, self._runner, self.table, self.timeouts, rng)
        self._publications = Publications(config, rng)
        self._gets: dict[tuple[bytes, int], tuple[RunningQuery, GetValue]] = {}
        self._misses: dict[bytes, float] = {}
        self._seq = 0
        self._carrying = 0
        self._proving: asyncio.TimerHandle | None = None
        if config.server:
            self._serve(rpc)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """End every request under way; whoever waits for one is cancelled."""
        if self._proving is not None:
            self._proving.cancel()
        await self._runner.close()

    async def bootstrap(self, seeds: Sequence[Contact]) -> None:
        """Join through any of the seeds, all greeted at once; see `Upkeep.bootstrap`."""
        await self._upkeep.bootstrap(seeds)

    async def maintain(self) -> None:
        """Upkeep, until cancelled: seeds, our own values, stale buckets, expired records."""
        async with asyncio.TaskGroup() as loops:
            loops.create_task(self._upkeep.greet_seeds())
            loops.create_task(self._upkeep.refresh())
            loops.create_task(self._republish())
            loops.create_task(self._expire())

    async def closest(self, key: bytes) -> list[Contact]:
        """The k servers closest to a key, closest first; the last of them perhaps dead."""
        return await self._upkeep.search(key)

    @property
    def calls(self) -> int:
        """Requests sent so far."""
        return self._runner.calls

    def _now_ms(self) -> int:
        return int(1000 * self._wall_s())

    # Publishing

    async def put(
        self, key: bytes, subkey: bytes, value: bytes, ttl_s: float, *, republish: bool = True
    ) -> int:
        """Publish a value of ours for `ttl_s`, and again in time unless told otherwise.

        Returns how many peers have it so far. Raises NoRoute if nobody could be asked,
        Refused if nobody would keep it, Unusable if our clock is to blame.
        """
        if not 0 < ttl_s <= self.config.ttl_most_s:
            raise ValueError(f"a value lives up to {self.config.ttl_most_s:g} s, not {ttl_s}")
        now_s = asyncio.get_running_loop().time()
        self._seq = max(self._seq + 1, self._now_ms())
        publication = Publication(key, subkey, value, self._seq, ttl_s, now_s)
        record = self._signed(publication)
        if republish:
            self._publications.keep(publication, now_s)
        put_value = await self._place(record, waited_for=True)
        if put_value.holders:
            return put_value.holders
        refusals = sorted({Verdict(v).name for v in put_value.refusals if v in list(Verdict)})
        if {"EXPIRED", "FUTURE"} & set(refusals):
            raise Unusable("the clocks of other peers differ by minutes: set this machine's right")
        if refusals:
            raise Refused(f"nobody would keep the value: {', '.join(refusals)}")
        raise NoRoute("nobody could be reached to keep the value")

    def withdraw(self, key: bytes, subkey: bytes) -> None:
        """Publish a value no more; it is gone when its time to live is over."""
        self._publications.withdraw(key, subkey)

    def _signed(self, p: Publication) -> Record:
        expires_ms = self._now_ms() + int(1000 * p.ttl_s)
        return sign(self._identity, p.key, p.subkey, p.value, p.seq, expires_ms)

    async def _place(self, record: Record, *, waited_for: bool) -> PutValue:
        """Store a record with those closest to its key, ourselves perhaps among them."""
        config = self.config
        self._misses.pop(record.key, None)
        candidates = await self._holders(record.key)
        success = config.replicas_success if waited_for else 0
        calm = self.timeouts.failure_share <= config.calm_share
        options = PutOptions(
            replicas=config.replicas,
            success=success,
            first=success if calm or not waited_for else config.replicas,
            patience_s=config.lookup_s,
        )
        put_value = PutValue(
            record, self._runner.listen_address, candidates, options, self.timeouts
        )
        await self._runner.start_query(put_value).wait()
        return put_value

    async def _holders(self, key: bytes) -> list[Contact]:
        """The k closest to a key, ourselves included if we are one of them."""
        k, replicas = self.config.k, self.config.replicas
        near = self.table.nearest(key, k)
        now_s = asyncio.get_running_loop().time()
        if self.table.sure(key, near[:replicas], replicas, now_s):
            found = [each.contact for each in near]
        else:
            found = await self._upkeep.search(key)
        if self.config.server:
            ours = self._identity.peer_id.distance(key)
            distances = [each.peer.distance(key) for each in found if each.peer]
            at = next((i for i, other in enumerate(distances) if other > ours), len(distances))
            found.insert(at, self.contact)
        return found[:k]

    async def _republish(self) -> None:
        while True:
            await asyncio.sleep(NAP_S)
            due = self._publications.due(asyncio.get_running_loop().time())
            for start in range(0, len(due), REPUBLISH_TOGETHER):
                async with asyncio.TaskGroup() as group:
                    for publication in due[start : start + REPUBLISH_TOGETHER]:
                        record = self._signed(publication)
                        group.create_task(self._place(record, waited_for=False))

    # Getting

    async def get(self, key: bytes, quorum: int = 1) -> dict[bytes, Record]:
        """The newest records of a key by subkey; empty if there are none.

        With a quorum of 1 the first holder's answer is taken, ours if we are one. More are
        heard, and their answers merged, where it matters that nothing is missing.
        """
        if quorum == 1 and (records := self._held(key)):
            return records
        under_way = self._gets.get((key, quorum))
        if under_way is None:
            now_s = asyncio.get_running_loop().time()
            if self._misses.get(key, now_s) > now_s:
                return {}
            under_way = self._gather(key, quorum, now_s)
        running, get_value = under_way
        await running.wait()
        return dict(get_value.records)

    def _held(self, key: bytes) -> dict[bytes, Record]:
        """What we hold ourselves, if we are among those who should."""
        if key not in self.store:
            return {}
        near = self.table.nearest(key, self.config.replicas)
        if len(near) == self.config.replicas:
            farthest = near[-1].number ^ int.from_bytes(key)
            if self._identity.peer_id.distance(key) > farthest:
                return {}
        records = list(self.store.read(key, self._now_ms()))
        return {record.subkey: record for record in records if self._signatures.holds(record)}

    def _gather(self, key: bytes, quorum: int, now_s: float) -> tuple[RunningQuery, GetValue]:
        config = self.config
        near = self.table.nearest(key, config.k)
        sure = self.table.sure(key, near[: config.replicas], config.replicas, now_s)
        options = LookupOptions(
            width=config.k,
            settle=config.replicas,
            patience_s=config.lookup_s,
            first=quorum if sure else config.alpha,
            choice=config.replicas_success if sure else 1,
        )
        lookup = Lookup(key, self._identity.peer_id.raw, options, self.timeouts, now_s)
        lookup.learned([each.contact for each in (near[: config.replicas] if sure else near)])
        request = Get(self._runner.listen_address, key, b"", quorum > 1, 0)
        get_options = GetOptions(
            request=request,
            quorum=quorum,
            wall_less_loop_s=self._wall_s() - now_s,
            carried=0 if sure or quorum > 1 else config.carried,
        )
        get_value = GetValue(lookup, get_options, config, self._signatures)
        running = self._runner.start_query(
            get_value, lambda: self._gathered(key, quorum, get_value)
        )
        if not get_value.finished:
            self._gets[key, quorum] = running, get_value
        return running, get_value

    def _gathered(self, key: bytes, quorum: int, get_value: GetValue) -> None:
        """Remember what is not there, and put right who should have had it."""
        self._gets.pop((key, quorum), None)
        self._misses.pop(key, None)
        if not get_value.records:
            now_s = asyncio.get_running_loop().time()
            self._misses[key] = now_s + self.config.negative_s
            if len(self._misses) > MISSES_MAX:
                del self._misses[next(iter(self._misses))]
        for contact, records in get_value.repairs():
            for record in records:
                self._runner.post(contact, BatchedRecord(record, None))

    # Answering

    def _serve(self, rpc: Rpc) -> None:
        rpc.serve_unary(Identify, self._on_hello)
        rpc.serve_unary(Find, self._on_find)
        rpc.serve_unary(Get, self._on_get)
        rpc.serve_unary(Store, self._on_store)
        rpc.serve_unary(Ping, self._on_ping)

    def _met(self, peer: PeerId, listen_address: str) -> None:
        """Who asks us, and says where it can be dialled, is a server we have met."""
        if listen_address:
            self._runner.met(contact_of(peer.raw, listen_address))

    def _on_hello(self, peer: PeerId, request: Identify) -> Identified:
        self._met(peer, request.listen_address)
        return self._answers.hello(peer, request)

    def _on_find(self, peer: PeerId, request: Find) -> Found:
        self._met(peer, request.listen_address)
        return self._answers.find(peer, request)

    def _on_get(self, peer: PeerId, request: Get) -> Coroutine[Any, Any, Got] | Got:
        self._met(peer, request.listen_address)
        got = self._answers.get(peer, request, self._now_ms())
        if self.store.unproven and self._proving is None:
            loop = asyncio.get_running_loop()
            self._proving = loop.call_later(PROVE_AFTER_S, self._prove)
        if got.records or not request.hops:
            return got
        return self._carry(request, got)

    def _prove(self) -> None:
        self._proving = None
        self.store.prove()

    async def _carry(self, request: Get, got: Got) -> Got:
        """Ask those we know for the asker: we have links to them, it would have to dial."""
        config = self.config
        if self._carrying >= config.carrying:
            return got
        now_s = asyncio.get_running_loop().time()
        options = LookupOptions(
            width=config.k,
            settle=config.k,
            patience_s=config.carry_s,
            first=config.carry_width,
            asks=config.carry_width,
        )
        lookup = Lookup(request.key, self._identity.peer_id.raw, options, self.timeouts, now_s)
        lookup.learned(contacts_in(got.peer_list))
        ours = replace(
            request, listen_address=self._runner.listen_address, closer=False, hops=request.hops - 1
        )
        get_options = GetOptions(
            request=ours, quorum=1, wall_less_loop_s=self._wall_s() - now_s, pages=1
        )
        get_value = GetValue(lookup, get_options, config, self._signatures)
        self._carrying += 1
        try:
            await self._runner.start_query(get_value).wait()
        finally:
            self._carrying -= 1
        if not get_value.records or get_value.more:
            return got
        records = sorted(get_value.records.values(), key=lambda record: record.subkey)
        return Got(tuple(records), False, NOBODY)

    def _on_store(self, peer: PeerId, request: Store) -> Stored:
        self._met(peer, request.listen_address)
        for record in request.records:
            self._misses.pop(record.key, None)
        return self._keep(peer, request)

    def _keep(self, peer: PeerId, request: Store) -> Stored:
        return self._answers.store(peer, request, self._now_ms())

    def _on_ping(self, peer: PeerId, request: Ping) -> Pong:
        self._met(peer, request.listen_address)
        return Pong()

    async def _expire(self) -> None:
        while True:
            await asyncio.sleep(EXPIRE_EVERY_S)
            self.store.expire(self._now_ms())
