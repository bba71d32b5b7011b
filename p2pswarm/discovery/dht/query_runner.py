"""QueryRunner: the pump of queries; HolderSearch runs those that find a key's holders."""

import asyncio
import random
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from itertools import islice

from p2pswarm.base.errors import BadMessage, SwarmError
from p2pswarm.base.ids import Contact, PeerId
from p2pswarm.base.loop_clock import Alarm, now_s
from p2pswarm.discovery.dht.call_outcomes import (
    CallOutcome,
    CallRecorder,
    TimeoutEstimator,
    outcome_of,
)
from p2pswarm.discovery.dht.crowding import (
    PATIENCE_S,
    Crowd,
    CrowdedKeys,
    Spread,
    closest_of,
    crowd_within,
    distances_to,
    members,
    points_around,
    size_of,
)
from p2pswarm.discovery.dht.lookup import FindNode, Lookup, LookupOptions, Query, QueryRequest
from p2pswarm.discovery.dht.messages import Identify, Ping, Store, Stored
from p2pswarm.discovery.dht.put_value import BatchedRecord, StoreBatcher, store_of, stored_in
from p2pswarm.discovery.dht.routing_table import Table
from p2pswarm.net.rpc.base import Rpc
from p2pswarm.net.wire.message import Message

CONFIRM_S = 3.0  # to dial an address that may be nobody's, and to hear who is there

KeepRecords = Callable[[PeerId, Store], Stored]
"""Keeps records in our own store; takes the sender and its request."""


class QueryRunner:
    """Sends the requests of queries in tasks that it owns, reports outcomes and keeps deadlines.

    A request runs to its end even if no task waits for it any more, because its outcome updates
    the routing table.
    """

    def __init__(
        self,
        own: PeerId,
        rpc: Rpc,
        table: Table,
        timeouts: TimeoutEstimator,
        keep: KeepRecords,
        changed: Callable[[], None],
    ) -> None:
        self.rpc = rpc
        self.keep = keep
        self.own = own
        self.running: dict[RunningQuery, None] = {}
        self.calls = 0
        """The number of requests sent so far."""
        self._table = table
        self._changed = changed
        self._depth = 0
        self._healing_s: float | None = None
        self.recorder = CallRecorder(table, timeouts, rpc.reach, rpc.cards)
        self._batcher = StoreBatcher(table.config.batches)
        self._batch_alarm = Alarm(self._flush)
        self._tasks: dict[asyncio.Task[None], None] = {}

    def start(self, work: Coroutine[None, None, None]) -> None:
        """Run `work` in a task that `close` ends."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)

    async def close(self) -> None:
        """End every query and task; tasks that wait for a query are cancelled."""
        for running in tuple(self.running):
            running.cancel()
        self._batch_alarm.cancel()
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def start_query(
        self, query: Query, finished: Callable[[], None] = lambda: None
    ) -> "RunningQuery":
        """Start a query; `finished` is called once, when it has ended."""
        running = RunningQuery(self, query, finished)
        running.step()
        return running

    async def call(self, contact: Contact, request: Message) -> Message | None:
        """Send one request; returns its reply, or None if none came."""
        begun_s = now_s()
        self.calls += 1
        reply: Message | None = None
        outcome = CallOutcome.ANSWERED
        try:
            deadline_s = self.recorder.deadline_s(contact, request)
            reply = await self.rpc.call(contact, request, deadline_s)
        except SwarmError as error:
            outcome = outcome_of(error)
        self.recorder.on_outcome(contact, request, outcome, begun_s, now_s())
        self.drain()
        return reply

    def drain(self) -> None:
        """Act on what calls have changed: ping contacts, check addresses, report what is due."""
        for contact in self.recorder.checks():
            self.start(self._ping(contact))
        for claimed in self.recorder.claims():
            self.start(self._check(claimed))
        due_s = self.recorder.healing.next_deadline_s()
        sooner = due_s is not None and (self._healing_s is None or due_s < self._healing_s)
        if self._table.depth > self._depth or sooner:
            self._depth = self._table.depth
            self._changed()
        self._healing_s = due_s

    async def _check(self, claimed: Contact) -> None:
        """Dial where a peer says that it is, and ask who is there."""
        self.calls += 1
        reply: Message | None = None
        hello = Identify(self.own.raw)
        with suppress(SwarmError):
            reply = await self.rpc.call(Contact(None, claimed.address), hello, CONFIRM_S)
        self.recorder.on_check(claimed, reply, now_s())
        self.drain()

    async def _ping(self, contact: Contact) -> None:
        await self.call(contact, Ping())

    def post(self, contact: Contact, batched_record: BatchedRecord) -> bool:
        """Store a record a little later; False if too many batches wait already."""
        added = self._batcher.add(contact, batched_record, now_s())
        self._batch_alarm.set(self._batcher.next_deadline_s())
        return added

    def _flush(self) -> None:
        for contact, batched in self._batcher.due(now_s()):
            self.start(self._deliver(contact, batched))
        self._batch_alarm.set(self._batcher.next_deadline_s())

    async def _deliver(self, contact: Contact, batched: list[BatchedRecord]) -> None:
        store = store_of(batched)
        if contact.peer == self.own:
            reply: Message | None = self.keep(self.own, store)
        else:
            reply = await self.call(contact, store)
        try:
            answers = stored_in(reply, len(batched))
        except BadMessage:
            self.recorder.on_breach(contact)
            answers = stored_in(None, len(batched))
        for batched_record, answer in zip(batched, answers, strict=True):
            if batched_record.on_reply is not None:
                batched_record.on_reply(contact, answer)


class RunningQuery:
    """Runs one query to its end."""

    __slots__ = ("_alarm", "_finished", "_runner", "_waiters", "query")

    def __init__(self, runner: QueryRunner, query: Query, finished: Callable[[], None]) -> None:
        self.query = query
        self._runner = runner
        self._finished = finished
        self._alarm = Alarm(self._on_time)
        self._waiters: list[asyncio.Future[None]] = []
        runner.running[self] = None

    async def wait(self) -> None:
        """Return when the query is ready; cancelling this wait does not stop the query."""
        if not self.query.ready:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            await waiter

    def step(self) -> None:
        """Send the requests that the last input led to; release who waits, and end, if it is so."""
        while asks := self.query.drain(now_s()):
            for ask in asks:
                self._send(ask)
        if self.query.ready:
            self._release()
        if not self.query.finished:
            self._alarm.set(self.query.next_deadline_s())
        elif self in self._runner.running:
            del self._runner.running[self]
            self._alarm.cancel()
            self._finished()

    def _send(self, ask: QueryRequest) -> None:
        """Send a request; records that may wait go with others, and ours into our own store."""
        contact, request = ask.contact, ask.request
        if not isinstance(request, Store) or (
            contact.peer != self._runner.own and not ask.at_leisure
        ):
            self._runner.start(self._ask(contact, request))
        elif not ask.at_leisure:
            self._tell(contact, self._runner.keep(self._runner.own, request))
        elif not self._runner.post(contact, BatchedRecord(request.records[0], self.on_reply)):
            self._tell(contact, None)

    async def _ask(self, contact: Contact, request: Message) -> None:
        self.on_reply(contact, await self._runner.call(contact, request))

    def on_reply(self, contact: Contact, reply: Message | None) -> None:
        """Report the reply of a request, or None if none came."""
        self._tell(contact, reply)
        self.step()

    def _tell(self, contact: Contact, reply: Message | None) -> None:
        """Pass a reply on; one that does not fit its request counts as a failure of the peer."""
        if reply is None:
            self.query.on_failure(contact)
            return
        try:
            self.query.on_response(contact, reply, now_s())
        except BadMessage:
            self.query.on_failure(contact)
            self._runner.recorder.on_breach(contact)

    def _on_time(self) -> None:
        self.query.on_deadline(now_s())
        self.step()

    def _release(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def cancel(self) -> None:
        """Stop the query's timer, and cancel the tasks that wait for it."""
        self._alarm.cancel()
        for waiter in self._waiters:
            waiter.cancel()


class HolderSearch:
    """Finds the peers that are to hold a key's records, also around a crowded key.

    It runs lookups and waits for them; `crowding.py` says what a crowd is, and where to look then.
    """

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
        shunned: Crowd | None = None,
        *,
        empty: bool = False,
    ) -> Lookup:
        """A lookup that begins with the contacts in our table, or none; see `LookupOptions`."""
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
        lookup = Lookup(target, own, options, timeouts, now_s(), recorder.unverified)
        if not empty:
            near = self._table.nearest(target, len(self._table) if shunned else config.k)
            contacts = (each.contact for each in near)
            lookup.on_contacts(islice((c for c in contacts if not lookup.shuns(c)), config.k))
        return lookup

    def lookup_across(self, target: bytes, met: Sequence[Contact]) -> Lookup:
        """A lookup that begins with a peer of another part of the DHT and those it has named.

        Of our own part it hears only as far as the other knows it. With our own contacts, which are
        closer to the target than those that we met, it would never ask the other part at all.
        """
        lookup = self.lookup(target, self._config.k, empty=True)
        learn(lookup, met)
        return lookup

    async def closest(self, key: bytes) -> list[Contact]:
        """The k servers closest to a key, closest first; some of the last may be dead."""
        lookup = self.lookup(key, self._config.beta)
        await self._run([lookup])
        return lookup.closest(self._config.k)

    async def holders(self, key: bytes) -> tuple[list[Contact], Spread]:
        """The servers closest to a key, and how they are spread; call `region` for a crowd."""
        replicas = self._config.replicas
        near = self._table.nearest(key, self._config.k)
        found = [each.contact for each in near]
        if self.crowded(key):
            return found, Spread.CROWDED
        size = size_of(self._table)
        if self._table.sure(key, near[:replicas], replicas, now_s()):
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

    def knows_all(self, key: bytes) -> bool:
        """Return whether the swarm is so small that all of it holds every record."""
        return len(self._table.closest(key)) < self._config.k

    def crowded(self, key: bytes) -> bool:
        """Return whether a crowd was seen around a key a short time ago."""
        return self._crowded.holds(key, now_s())

    def saw_crowd(self, key: bytes) -> None:
        """Note a crowd around a key."""
        self._crowded.add(key, now_s())

    async def region(self, key: bytes, closest: Iterable[Contact]) -> list[Contact]:
        """The peers around a crowded key whatever ids are there, with the closest, at random.

        The closest are among them because others may see no crowd, and use only these.
        """
        region = self._crowded.region(key, now_s())
        if not region:
            size = size_of(self._table)
            points = points_around(key, size, self._rng)
            crowd, settle = Crowd(key, crowd_within(size)), self._config.replicas
            lookups = [
                self.lookup(each, settle, patience_s=PATIENCE_S, shunned=crowd) for each in points
            ]
            amid = closest_of(key, points)  # honest peers stand in the crowd, too
            lookups.append(self.lookup(amid, settle, patience_s=PATIENCE_S))
            await self._run(lookups)
            region = members([each.responders(self._config.k) for each in lookups], self._rng)
            self._crowded.on_region(key, region, now_s())
        return members([list(closest), region], self._rng)

    async def _run(self, lookups: list[Lookup]) -> None:
        for running in [self._runner.start_query(FindNode(each)) for each in lookups]:
            await running.wait()


def learn(lookup: Lookup, met: Sequence[Contact]) -> None:
    """Add a peer that has answered, and the contacts that it named; nothing if there is none."""
    if met:
        lookup.on_contacts(met[:1])
        lookup.on_contacts(met[1:], met[0])
