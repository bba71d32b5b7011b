"""Dht: the DHT of one node; it publishes values, gets the values of others and finds peers.

Source:  Maymounkov and Mazieres, "Kademlia" (2002); BEP 44 for signed values.
"""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from functools import partial
from typing import Any

from p2pswarm.base.errors import SwarmError
from p2pswarm.base.ids import Contact, PeerId
from p2pswarm.base.loop_clock import Alarm, now_s, wait_until
from p2pswarm.base.tasks import Closing
from p2pswarm.discovery.dht.call_outcomes import TimeoutEstimator, raw_id
from p2pswarm.discovery.dht.config import DhtConfig
from p2pswarm.discovery.dht.crowding import PATIENCE_S, Spread, keys_elsewhere
from p2pswarm.discovery.dht.get_value import GetValue, ValueReader
from p2pswarm.discovery.dht.long_values_io import LongValues
from p2pswarm.discovery.dht.lookup import FindNode, Lookup
from p2pswarm.discovery.dht.messages import Find, Get, Got, Identify, Ping, Record, Store, Stored
from p2pswarm.discovery.dht.partition_healing import unknown_neighbours
from p2pswarm.discovery.dht.put_value import (
    BatchedRecord,
    Publisher,
    PutValue,
    holders_of,
)
from p2pswarm.discovery.dht.query_runner import HolderSearch, QueryRunner, RunningQuery, learn
from p2pswarm.discovery.dht.records import RecordStore, SignatureCache, merge
from p2pswarm.discovery.dht.responder import QueryProxy, Request, Responder, to_be_carried
from p2pswarm.discovery.dht.routing_table import Table
from p2pswarm.discovery.dht.upkeep import (
    BootstrapReply,
    Duty,
    GreetSeed,
    GreetStranger,
    JoinRound,
    LookRound,
    PublishAgain,
    Upkeep,
    contacts_through,
    worth_a_lookup,
)
from p2pswarm.net.crypto.identity import Identity
from p2pswarm.net.rpc.base import Rpc
from p2pswarm.net.wire.message import Message

log = logging.getLogger(__name__)

HELLO_S = 3.0  # to dial a seed that may be dead or far away, and to get its answer


Records = dict[bytes, Record]


class ValueGetter:
    """Gets the values of a key, also of one around which ids were ground.

    It runs queries and waits for them; whom they ask is decided by `get_value.py`, and where to
    look for a crowded key by `crowding.py`.
    """

    def __init__(
        self,
        table: Table,
        reader: ValueReader,
        runner: QueryRunner,
        search: HolderSearch,
        wall_s: Callable[[], float],
        was_read: Callable[[], None],
    ) -> None:
        """`was_read`: called when records of our own store were read."""
        self._table = table
        self._reader = reader
        self._runner = runner
        self._search = search
        self._wall_s = wall_s
        self._was_read = was_read
        self._under_way: dict[tuple[bytes, int], tuple[RunningQuery, GetValue]] = {}

    async def get(self, key: bytes, quorum: int) -> Records:
        """The newest records of a key by subkey; empty if there are none."""
        if quorum == 1 and (records := await self._held(key)):
            return records
        records = {}
        if not self._search.crowded(key):
            missed = self._reader.misses.holds(key, now_s())
            if missed and (key, quorum) not in self._under_way:
                return {}
            records = await self._ask(key, quorum)
            if not self._search.crowded(key) and (records or self._search.knows_all(key)):
                return records
        if not (records and quorum == 1):
            merge(records, (await self._get_elsewhere(key, quorum)).values())
        return records

    async def _ask(self, key: bytes, quorum: int, patience_s: float | None = None) -> Records:
        """Ask those closest to a key; notes whether a crowd stands there."""
        under_way = self._under_way.get((key, quorum))
        if under_way is None:
            under_way = self._start(key, quorum, patience_s)
        running, get_value = under_way
        await running.wait()
        if get_value.lookup.crowded:
            self._search.saw_crowd(key)
        return dict(get_value.records)

    async def _get_elsewhere(self, key: bytes, quorum: int) -> Records:
        """Get from where a key's records are besides: under other keys, and around a crowded key.

        The other keys cost little if nobody stands next to them. What is crowded, too, is looked
        for around, all at once.
        """
        places, crowded = keys_elsewhere(key), self._search.crowded
        self._reader.misses.forget(key)
        calm = [self._ask(each, quorum, PATIENCE_S) for each in places if not crowded(each)]
        records = await _first(calm, enough=quorum == 1)
        if not (records and quorum == 1):
            around = [self._get_around(each, quorum) for each in [key, *places] if crowded(each)]
            merge(records, (await _first(around, enough=quorum == 1)).values())
        if not records and not crowded(key):
            self._reader.misses.add(key, now_s())
        return records or await self._held(key, anyway=True)

    async def _get_around(self, key: bytes, quorum: int) -> Records:
        """Get from the region of a crowded key, whose closest peers may all be hostile."""
        holders = await self._search.region(key, self._table.closest(key))
        request = Get(key, b"", False, 0)
        get_value = self._reader.among(request, quorum, holders, now_s(), self._wall_s())
        await self._run(key, quorum, get_value).wait()
        return dict(get_value.records)

    async def _held(self, key: bytes, *, anyway: bool = False) -> Records:
        """Return what we hold ourselves; between two pages others have their turn."""
        records: Records = {}
        now_ms = int(1000 * self._wall_s())
        for number, page in enumerate(self._reader.held(key, now_ms, anyway=anyway)):
            if number:
                await asyncio.sleep(0)
            records |= page
        self._was_read()
        return records

    def _start(
        self, key: bytes, quorum: int, patience_s: float | None
    ) -> tuple[RunningQuery, GetValue]:
        get_value = self._reader.query(key, quorum, now_s(), self._wall_s(), patience_s)
        running = self._run(key, quorum, get_value)
        if not get_value.finished:
            self._under_way[key, quorum] = running, get_value
        return running, get_value

    def _run(self, key: bytes, quorum: int, get_value: GetValue) -> RunningQuery:
        on_result = partial(self._on_result, key, quorum, get_value)
        return self._runner.start_query(get_value, on_result)

    def _on_result(self, key: bytes, quorum: int, get_value: GetValue) -> None:
        self._under_way.pop((key, quorum), None)
        for contact, record in self._reader.on_outcome(key, get_value, now_s()):
            self._runner.post(contact, BatchedRecord(record))


async def _first(gets: Iterable[Awaitable[Records]], *, enough: bool) -> Records:
    """The records of several gets; of the first that finds any if that is `enough`."""
    records: Records = {}
    tasks = [asyncio.ensure_future(each) for each in gets]
    try:
        for ended in asyncio.as_completed(tasks):
            merge(records, (await ended).values())
            if records and enough:
                break
    finally:
        for task in tasks:
            task.cancel()
    return records


PROVE_AFTER_S = 0.5  # after a record was read: the check delays no answer
PROVE_PAUSE_S = 0.05  # between some checks and the next: they take a tenth of a processor


class Dht(Closing):
    """One node's part in the DHT. Use it as a context manager: it owns its tasks."""

    def __init__(
        self,
        rpc: Rpc,
        identity: Identity,
        config: DhtConfig,
        rng: random.Random,
        wall_s: Callable[[], float],
    ) -> None:
        """`rpc` must be listening already if we are a server; `wall_s` gives seconds since 1970."""
        peer = identity.peer_id
        self.config = config
        self.table = Table(peer, config)
        self.timeouts = TimeoutEstimator(config)
        self.contact = Contact(peer, rpc.contact.address)
        self._own = peer
        self._wall_s = wall_s
        signatures = SignatureCache()
        self.store = RecordStore(config, signatures)
        self._changed = asyncio.Event()
        """Set when something may be due sooner than `maintain` expects."""
        self._runner = QueryRunner(
            peer, rpc, self.table, self.timeouts, self._keep, self._changed.set
        )
        unverified = self._runner.recorder.unverified
        self._reader = ValueReader(
            peer, self.table, self.store, self.timeouts, signatures, unverified
        )
        self._answers = Responder(
            peer, self.table, self.store, self._runner.recorder, self._reader.misses, rpc.cards
        )
        self._proxy = QueryProxy(peer, config, self.timeouts, signatures, unverified)
        self._publisher = Publisher(identity, config, rng)
        self._healing = self._runner.recorder.healing
        self._upkeep = Upkeep(
            self.contact, self.table, self.store, self._publisher, rng, self._healing
        )
        self._search = HolderSearch(self.table, self._runner, rng)
        self._getter = ValueGetter(
            self.table, self._reader, self._runner, self._search, wall_s, self._prove_soon
        )
        self.long_values = LongValues(partial(self.put, republish=False), self.get)
        """Puts and reads values of more than 4 KiB."""
        self._joining: tuple[RunningQuery, Lookup] | None = None
        self._proving = Alarm(self._prove)
        if config.server:
            self._serve(rpc)

    async def close(self) -> None:
        """End every request under way; tasks that wait for one are cancelled."""
        self._proving.cancel()
        await self._runner.close()

    @property
    def calls(self) -> int:
        """Requests sent so far."""
        return self._runner.calls

    def _now_ms(self) -> int:
        return int(1000 * self._wall_s())

    # Joining

    async def bootstrap(self, seeds: Sequence[Contact]) -> None:
        """Join through any of the seeds; do nothing if there is none besides ourselves.

        Returns when one seed has answered and the first round of a lookup of our own id is done.
        Raises NoRoute if none answers; `maintain` still goes on greeting them.
        """
        greeted = self._upkeep.seeds.start(seeds, now_s())
        self._changed.set()
        if not greeted:
            return
        joining = JoinRound(greeted)
        over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        for seed in greeted:
            self._runner.start(self._enter(seed, joining, over))
        await over
        if joining.failure is not None:
            raise joining.failure

    def on_link_end(self, peer: PeerId) -> None:
        """Note that a link to a peer has ended; if it is a seed, somebody is greeted there soon."""
        self._upkeep.seeds.on_loss(peer, now_s())
        self._changed.set()

    async def _enter(self, seed: Contact, joining: JoinRound, over: asyncio.Future[None]) -> None:
        try:
            joining.on_reply(seed, await self._greet(seed))
        except asyncio.CancelledError:
            over.cancel()
            raise
        if joining.over and not over.done():
            over.set_result(None)

    async def _greet(self, seed: Contact) -> BootstrapReply:
        """Ask a seed for its id and contacts; if these are new, look up our own id."""
        known_seeds = self._upkeep.seeds
        try:
            met = await self._identify(seed)
        except SwarmError as error:
            log.info("seed %s: %s", seed.address, error)
            known_seeds.on_answer(seed.address, None, now_s())
            return BootstrapReply.SILENT
        if met[0].peer == self._own:
            known_seeds.on_own_address(seed.address)
            return BootstrapReply.OURSELVES
        known_seeds.on_answer(seed.address, met[0].peer, now_s())
        self.table.on_successor(met[0])
        self._on_neighbours(met)
        if worth_a_lookup(met, self.table, joined_before=self._joining is not None):
            await self._join(met)
        return BootstrapReply.ANSWERED

    async def _greet_stranger(self, stranger: Contact) -> None:
        """Ask a peer whom it knows next to us; look up our own id if we do not know them."""
        try:
            met = await self._identify(stranger)
        except SwarmError as error:
            log.info("%s: %s", stranger.address, error)
            return
        if self._on_neighbours(met):
            await self._join(met)

    async def _identify(self, contact: Contact) -> list[Contact]:
        """The peer at a contact's address, and those that it knows next to us."""
        reply = await self._runner.rpc.call(contact, Identify(self._own.raw), HELLO_S)
        return contacts_through(contact, reply, self._runner.recorder.unverified)

    def _on_neighbours(self, met: list[Contact]) -> bool:
        """Return whether the first of these names neighbours that we do not know.

        In that case it has been in another part of the DHT, and every distance is looked at.
        """
        unknown = unknown_neighbours(met, self.table)
        if unknown and self._healing.on_partition([met[0], *unknown], now_s()):
            self._upkeep.merge()
        return bool(unknown)

    async def _join(self, met: list[Contact]) -> None:
        """Look up our own id; the peers closest to us then know us, too."""
        if self._joining is None or self._joining[1].finished:
            lookup = self._search.lookup(self._own.raw, self.config.k)
            learn(lookup, met)
            query = FindNode(lookup, min(len(met), self.config.alpha))
            self._upkeep.joining = True
            running = self._runner.start_query(query, lambda: self._on_join(lookup))
            self._joining = running, lookup
        else:
            running, lookup = self._joining
            learn(lookup, met)
            running.step()
        await running.wait()

    def _on_join(self, lookup: Lookup) -> None:
        self._upkeep.joining = False
        self._on_refresh(lookup)

    # Finding peers

    async def closest(self, key: bytes) -> list[Contact]:
        """The k servers closest to a key, closest first; some of the last may be dead."""
        return await self._search.closest(key)

    def _on_refresh(self, lookup: Lookup) -> None:
        """Tell the table of a lookup that has asked all of the k closest."""
        answered = [raw_id(each) for each in lookup.responders(self.config.k)]
        self.table.on_refresh(lookup.target, answered, now_s())
        self._changed.set()

    # Upkeep

    async def maintain(self) -> None:
        """Run until cancelled: greet seeds, publish again, refresh buckets, expire records."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                self._changed.clear()
                for duty in self._upkeep.drain(now_s(), self._now_ms()):
                    tasks.create_task(self._do(duty))
                await wait_until(self._changed, self._upkeep.next_deadline_s())

    async def _do(self, duty: Duty) -> None:
        try:
            match duty:
                case GreetSeed():
                    await self._greet(duty.seed)
                case GreetStranger():
                    await self._greet_stranger(duty.stranger)
                case LookRound():
                    await self._look_round(duty)
                case PublishAgain():
                    record = self._publisher.sign(duty.publication, self._now_ms())
                    await self._place(record, waited_for=False)
        finally:
            self._upkeep.on_done(duty, now_s())
            self._changed.set()

    async def _look_round(self, duty: LookRound) -> None:
        others = self._healing.others(now_s())
        if across := bool(duty.across and others):
            lookup = self._search.lookup_across(duty.target, others)
        else:
            lookup = self._search.lookup(duty.target, self.config.k)
            learn(lookup, others)
        await self._runner.start_query(FindNode(lookup)).wait()
        if not across:
            self._on_refresh(lookup)

    # Publishing

    async def put(
        self, key: bytes, subkey: bytes, value: bytes, ttl_s: float, *, republish: bool = True
    ) -> int:
        """Publish a value of ours for `ttl_s`, and again before it expires if `republish`.

        Returns how many peers hold it so far. Raises NoRoute if no peer could be asked,
        Refused if no peer keeps it, Unusable if our clock is wrong, ValueError over a limit.
        """
        now_ms = self._now_ms()
        publication = self._publisher.publication(key, subkey, value, ttl_s, now_ms)
        record = self._publisher.sign(publication, now_ms)
        if republish:
            self._publisher.keep(publication, now_s())
            self._changed.set()
        return holders_of(await self._place(record, waited_for=True), self._own)

    def withdraw(self, key: bytes, subkey: bytes) -> None:
        """Stop publishing a value; it is gone when its time to live is over."""
        self._publisher.withdraw(key, subkey)

    async def _place(self, record: Record, *, waited_for: bool, copy: bool = False) -> PutValue:
        """Store a record with the peers closest to its key; we may be one of them.

        It is stored under other keys, too, each a `copy`; who waits does so for a crowded key only.
        """
        self._reader.misses.forget(record.key)
        found, spread = await self._search.holders(record.key)
        near = self._publisher.candidates(record.key, found, self.contact)
        copies = [] if copy or len(near) < self.config.k else self._publisher.copies(record)
        storing = self._store(record, near, spread, waited_for=waited_for)
        if waited_for and copies and spread is not Spread.CROWDED:
            self._runner.start(self._place_later(copies))
            copies = []
        if not copies:
            return await storing
        places = [self._place(each, waited_for=waited_for, copy=True) for each in copies]
        placed, *elsewhere = await asyncio.gather(storing, *places)
        for of_copy in elsewhere:
            placed.held_by += of_copy.held_by
        return placed

    async def _place_later(self, copies: Sequence[Record]) -> None:
        for each in copies:
            await self._place(each, waited_for=False, copy=True)

    async def _store(
        self, record: Record, holders: Sequence[Contact], spread: Spread, *, waited_for: bool
    ) -> PutValue:
        if spread is Spread.CROWDED:
            holders = await self._search.region(record.key, holders)
        failure_share = self.timeouts.failure_share
        options = self._publisher.options(failure_share, spread, waited_for=waited_for)
        put_value = PutValue(record, holders, options, self.timeouts)
        await self._runner.start_query(put_value).wait()
        return put_value

    # Getting

    async def get(self, key: bytes, quorum: int = 1) -> dict[bytes, Record]:
        """The newest records of a key by subkey; empty if there are none.

        With a quorum of 1 the first holder's answer counts, or our own if we are a holder. A
        larger quorum merges the answers of that many holders, so that nothing is missing.
        """
        return await self._getter.get(key, quorum)

    @property
    def clocks_differ(self) -> bool:
        """True if the last get found only what is over, or too far ahead, by our clock."""
        return self._reader.clocks_differ

    @property
    def unsure(self) -> bool:
        """True if the last get found nothing, and not all who were asked have answered."""
        return self._reader.unsure

    # Answering

    def _serve(self, rpc: Rpc) -> None:
        rpc.serve_unary(Identify, self._on_request)
        rpc.serve_unary(Find, self._on_request)
        rpc.serve_unary(Store, self._on_request)
        rpc.serve_unary(Ping, self._on_request)
        rpc.serve_unary(Get, self._on_get)

    def _on_request(self, peer: PeerId, request: Request) -> Message:
        reply = self._answers.answer(peer, request, now_s(), self._now_ms())
        self._runner.drain()
        if isinstance(request, Store):
            self._changed.set()
        return reply

    def _on_get(self, peer: PeerId, request: Get) -> Coroutine[Any, Any, Message] | Message:
        got = self._on_request(peer, request)
        assert isinstance(got, Got)
        self._prove_soon()
        return self._carry(request, got) if to_be_carried(request, got) else got

    def _prove_soon(self, pause_s: float = PROVE_AFTER_S) -> None:
        if self.store.unproven:
            self._proving.set(now_s() + pause_s)

    def _prove(self) -> None:
        self.store.prove()
        self._prove_soon(PROVE_PAUSE_S)

    async def _carry(self, request: Get, got: Got) -> Got:
        if not self._proxy.begin():
            return got
        try:
            near = self.table.closest(request.key)
            get_value = self._proxy.query(request, near, now_s(), self._wall_s())
            await self._runner.start_query(get_value).wait()
        finally:
            self._proxy.on_end()
        return self._proxy.answer(get_value, got)

    def _keep(self, peer: PeerId, request: Store) -> Stored:
        stored = self._answers.store(peer, request, self._now_ms())
        self._changed.set()
        return stored
