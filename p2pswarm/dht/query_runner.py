"""The pump: it asks whom a machine names, tells it the outcome, wakes it at its deadline.

It decides nothing. Every answer and every failure, whatever it was for, keeps the
table and the round-trip times true. Requests that nobody waits for any more run to
their end for that reason.

Units:   seconds on the loop's clock.
Errors:  none: an outcome is told to the machine that asked.
"""

import asyncio
from collections.abc import Callable, Coroutine

from p2pswarm.dht.messages import Get, Ping, Store, Stored
from p2pswarm.dht.put_value import PutValue
from p2pswarm.dht.query import Query, QueryRequest
from p2pswarm.dht.routing_table import Table
from p2pswarm.dht.store_batches import BatchedRecord, StoreBatcher
from p2pswarm.dht.timeouts import TimeoutEstimator
from p2pswarm.errors import BadMessage, Late, NotServing, PathError, PeerError, SwarmError
from p2pswarm.ids import Contact, PeerId
from p2pswarm.rpc.base import Rpc
from p2pswarm.wire.message import Message

KeepRecords = Callable[[PeerId, Store], Stored]
"""How we keep records ourselves."""


def nothing() -> None:
    """What follows when nobody wants to know."""


class QueryRunner:
    """Asks on behalf of machines; owns the tasks in which it does."""

    def __init__(
        self, own: Contact, rpc: Rpc, table: Table, timeouts: TimeoutEstimator, keep: KeepRecords
    ) -> None:
        self.rpc = rpc
        self.keep = keep
        assert own.peer is not None
        self.own: PeerId = own.peer
        self._table = table
        self._timeouts = timeouts
        self._batcher = StoreBatcher()
        self._batch_timer: asyncio.TimerHandle | None = None
        self._tasks: dict[asyncio.Task[None], None] = {}
        self.running: dict[RunningQuery, None] = {}
        self.calls = 0
        """Requests sent so far."""

    @property
    def listen_address(self) -> str:
        """Where others dial us; empty if we are no server. Links may teach us a better address."""
        return str(self.rpc.contact.address) if self._table.config.server else ""

    def start(self, work: Coroutine[None, None, None]) -> None:
        """Run it in a task of ours."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)

    async def close(self) -> None:
        """End what is under way; whoever waits for it is cancelled."""
        for running in tuple(self.running):
            running.cancel()
        if self._batch_timer is not None:
            self._batch_timer.cancel()
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def start_query(self, query: Query, finished: Callable[[], None] = nothing) -> "RunningQuery":
        """Set a machine going; `finished` is called once, when it has ended."""
        running = RunningQuery(self, query, finished)
        running.step()
        return running

    async def call(self, contact: Contact, request: Message) -> Message | None:
        """One request and its reply; None if there is none."""
        assert contact.peer is not None
        raw = contact.peer.raw
        loop = asyncio.get_running_loop()
        start_s = loop.time()
        self.calls += 1
        carried = isinstance(request, Get) and request.hops > 0
        deadline_s = self._timeouts.deadline_s(raw) + (
            self._table.config.carry_s if carried else 0.0
        )
        try:
            reply = await self.rpc.call(contact, request, deadline_s)
        except (PathError, Late):
            self._timeouts.failed()
            self._table.failed(raw)
        except (PeerError, NotServing):
            self._table.drop(raw)
        except SwarmError:
            self._met(contact, loop.time())  # busy, but well
        else:
            now_s = loop.time()
            self._timeouts.answered(raw, None if carried else now_s - start_s)
            self._met(contact, now_s)
            return reply
        return None

    def _met(self, contact: Contact, now_s: float) -> None:
        """A server has reached us; a newcomer may make us look after an old contact."""
        check = self._table.heard(contact, now_s)
        if check is not None:
            self.start(self._check(check))

    def met(self, contact: Contact) -> None:
        """A server has asked us something."""
        self._met(contact, asyncio.get_running_loop().time())

    async def _check(self, contact: Contact) -> None:
        await self.call(contact, Ping(self.listen_address))

    def misbehaved(self, contact: Contact) -> None:
        """What it sent was none of what it may send."""
        assert contact.peer is not None
        self._table.drop(contact.peer.raw)

    def post(self, contact: Contact, batched_record: BatchedRecord) -> bool:
        """Have a record stored before long; False if too much waits already."""
        loop = asyncio.get_running_loop()
        taken = self._batcher.add(contact, batched_record, loop.time())
        if self._batch_timer is None:
            self._batch_timer = loop.call_at(self._batcher.next_due_s(), self._flush)
        return taken

    def _flush(self) -> None:
        loop = asyncio.get_running_loop()
        for contact, batched in self._batcher.due(loop.time()):
            self.start(self._deliver(contact, batched))
        next_s = self._batcher.next_due_s()
        self._batch_timer = None
        if next_s < float("inf"):
            self._batch_timer = loop.call_at(next_s, self._flush)

    async def _deliver(self, contact: Contact, batched: list[BatchedRecord]) -> None:
        store = Store(
            self.listen_address, tuple([batched_record.record for batched_record in batched])
        )
        if contact.peer == self.own:
            reply: Message | None = self.keep(self.own, store)
        else:
            reply = await self.call(contact, store)
        verdicts: bytes | None = None
        if isinstance(reply, Stored) and len(reply.verdicts) == len(batched):
            verdicts = reply.verdicts
        for number, batched_record in enumerate(batched):
            running = batched_record.owner
            if not isinstance(running, RunningQuery) or not isinstance(running.query, PutValue):
                continue  # a repair: nobody wants to know
            if verdicts is None:
                running.query.failed(contact)
            else:
                running.query.judged(contact, verdicts[number])
            running.step()


class RunningQuery:
    """Takes one machine to its end."""

    __slots__ = ("_finished", "_over", "_runner", "_timer", "_waiters", "query")

    def __init__(self, runner: QueryRunner, query: Query, finished: Callable[[], None]) -> None:
        self.query = query
        self._runner = runner
        self._finished = finished
        self._over = False
        self._timer: asyncio.TimerHandle | None = None
        self._waiters: list[asyncio.Future[None]] = []
        runner.running[self] = None

    async def wait(self) -> None:
        """Return when the machine is ready; whoever waits may be cancelled alone."""
        if not self.query.ready:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            await waiter

    def step(self) -> None:
        """Drain what the last input led to."""
        loop = asyncio.get_running_loop()
        while asks := self.query.poll(loop.time()):
            for ask in asks:
                self._send(ask)
        if self.query.ready and self._waiters:
            self._release()
        if self.query.finished:
            self._end()
        else:
            self._arm(loop)

    def _send(self, ask: QueryRequest) -> None:
        contact, request = ask.contact, ask.request
        if isinstance(request, Store) and ask.at_leisure:
            if not self._runner.post(contact, BatchedRecord(request.records[0], self)):
                self.query.failed(contact)
        elif isinstance(request, Store) and contact.peer == self._runner.own:
            self._tell(contact, self._runner.keep(self._runner.own, request))
        else:
            self._runner.start(self._ask(contact, request))

    async def _ask(self, contact: Contact, request: Message) -> None:
        self._tell(contact, await self._runner.call(contact, request))
        self.step()

    def _tell(self, contact: Contact, reply: Message | None) -> None:
        if reply is None:
            self.query.failed(contact)
            return
        try:
            self.query.on_response(contact, reply, asyncio.get_running_loop().time())
        except BadMessage:
            self._runner.misbehaved(contact)
            self.query.failed(contact)

    def _arm(self, loop: asyncio.AbstractEventLoop) -> None:
        """One timer serves a machine; it is moved only when it would come too late."""
        deadline_s = self.query.next_deadline_s()
        if self._timer is None:
            self._timer = loop.call_at(deadline_s, self._on_time)
        elif self._timer.when() > deadline_s:
            self._timer.cancel()
            self._timer = loop.call_at(deadline_s, self._on_time)

    def _on_time(self) -> None:
        self._timer = None
        self.query.on_deadline(asyncio.get_running_loop().time())
        self.step()

    def _release(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def _end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._over:
            self._over = True
            self._runner.running.pop(self, None)
            self._finished()

    def cancel(self) -> None:
        """Stop waking the machine, and cancel whoever waits for it."""
        if self._timer is not None:
            self._timer.cancel()
        for waiter in self._waiters:
            waiter.cancel()
