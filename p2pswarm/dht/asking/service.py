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
from p2pswarm.dht.outbox import Outbox, Parcel
from p2pswarm.dht.pace import Pace
from p2pswarm.dht.placement import Placement
from p2pswarm.dht.quest import Ask, Quest
from p2pswarm.dht.table import Table
from p2pswarm.errors import BadMessage, Late, NotServing, PathError, PeerError, SwarmError
from p2pswarm.ids import Contact, PeerId
from p2pswarm.rpc.base import Rpc
from p2pswarm.wire.codec import Message

Local = Callable[[PeerId, Store], Stored]
"""How we keep records ourselves."""


def nothing() -> None:
    """What follows when nobody wants to know."""


class Asker:
    """Asks on behalf of machines; owns the tasks in which it does."""

    def __init__(self, own: Contact, rpc: Rpc, table: Table, pace: Pace, keep: Local) -> None:
        self.rpc = rpc
        self.keep = keep
        assert own.peer is not None
        self.own: PeerId = own.peer
        self._table = table
        self._pace = pace
        self._outbox = Outbox()
        self._outbox_timer: asyncio.TimerHandle | None = None
        self._tasks: dict[asyncio.Task[None], None] = {}
        self.drives: dict[Drive, None] = {}
        self.calls = 0
        """Requests sent so far."""

    @property
    def home(self) -> str:
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
        for drive in tuple(self.drives):
            drive.cancel()
        if self._outbox_timer is not None:
            self._outbox_timer.cancel()
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def drive(self, quest: Quest, finished: Callable[[], None] = nothing) -> "Drive":
        """Set a machine going; `finished` is called once, when it has ended."""
        drive = Drive(self, quest, finished)
        drive.step()
        return drive

    async def call(self, contact: Contact, request: Message) -> Message | None:
        """One request and its reply; None if there is none."""
        assert contact.peer is not None
        raw = contact.peer.raw
        loop = asyncio.get_running_loop()
        start_s = loop.time()
        self.calls += 1
        carried = isinstance(request, Get) and request.hops > 0
        deadline_s = self._pace.deadline_s(raw) + (self._table.config.carry_s if carried else 0.0)
        try:
            reply = await self.rpc.call(contact, request, deadline_s)
        except (PathError, Late):
            self._pace.failed()
            self._table.failed(raw)
        except (PeerError, NotServing):
            self._table.drop(raw)
        except SwarmError:
            self._met(contact, loop.time())  # busy, but well
        else:
            now_s = loop.time()
            self._pace.answered(raw, None if carried else now_s - start_s)
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
        await self.call(contact, Ping(self.home))

    def misbehaved(self, contact: Contact) -> None:
        """What it sent was none of what it may send."""
        assert contact.peer is not None
        self._table.drop(contact.peer.raw)

    def post(self, contact: Contact, parcel: Parcel) -> bool:
        """Have a record stored before long; False if too much waits already."""
        loop = asyncio.get_running_loop()
        taken = self._outbox.add(contact, parcel, loop.time())
        if self._outbox_timer is None:
            self._outbox_timer = loop.call_at(self._outbox.next_due_s(), self._flush)
        return taken

    def _flush(self) -> None:
        loop = asyncio.get_running_loop()
        for contact, parcels in self._outbox.due(loop.time()):
            self.start(self._deliver(contact, parcels))
        next_s = self._outbox.next_due_s()
        self._outbox_timer = None
        if next_s < float("inf"):
            self._outbox_timer = loop.call_at(next_s, self._flush)

    async def _deliver(self, contact: Contact, parcels: list[Parcel]) -> None:
        store = Store(self.home, tuple([parcel.record for parcel in parcels]))
        if contact.peer == self.own:
            reply: Message | None = self.keep(self.own, store)
        else:
            reply = await self.call(contact, store)
        verdicts: bytes | None = None
        if isinstance(reply, Stored) and len(reply.verdicts) == len(parcels):
            verdicts = reply.verdicts
        for number, parcel in enumerate(parcels):
            drive = parcel.owner
            if not isinstance(drive, Drive) or not isinstance(drive.quest, Placement):
                continue  # a repair: nobody wants to know
            if verdicts is None:
                drive.quest.failed(contact)
            else:
                drive.quest.judged(contact, verdicts[number])
            drive.step()


class Drive:
    """Takes one machine to its end."""

    __slots__ = ("_asker", "_finished", "_over", "_timer", "_waiters", "quest")

    def __init__(self, asker: Asker, quest: Quest, finished: Callable[[], None]) -> None:
        self.quest = quest
        self._asker = asker
        self._finished = finished
        self._over = False
        self._timer: asyncio.TimerHandle | None = None
        self._waiters: list[asyncio.Future[None]] = []
        asker.drives[self] = None

    async def wait(self) -> None:
        """Return when the machine is ready; whoever waits may be cancelled alone."""
        if not self.quest.ready:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            await waiter

    def step(self) -> None:
        """Drain what the last input led to."""
        loop = asyncio.get_running_loop()
        while asks := self.quest.asks(loop.time()):
            for ask in asks:
                self._send(ask)
        if self.quest.ready and self._waiters:
            self._release()
        if self.quest.finished:
            self._end()
        else:
            self._arm(loop)

    def _send(self, ask: Ask) -> None:
        contact, request = ask.contact, ask.request
        if isinstance(request, Store) and ask.at_leisure:
            if not self._asker.post(contact, Parcel(request.records[0], self)):
                self.quest.failed(contact)
        elif isinstance(request, Store) and contact.peer == self._asker.own:
            self._tell(contact, self._asker.keep(self._asker.own, request))
        else:
            self._asker.start(self._ask(contact, request))

    async def _ask(self, contact: Contact, request: Message) -> None:
        self._tell(contact, await self._asker.call(contact, request))
        self.step()

    def _tell(self, contact: Contact, reply: Message | None) -> None:
        if reply is None:
            self.quest.failed(contact)
            return
        try:
            self.quest.took(contact, reply, asyncio.get_running_loop().time())
        except BadMessage:
            self._asker.misbehaved(contact)
            self.quest.failed(contact)

    def _arm(self, loop: asyncio.AbstractEventLoop) -> None:
        """One timer serves a machine; it is moved only when it would come too late."""
        deadline_s = self.quest.next_deadline_s()
        if self._timer is None:
            self._timer = loop.call_at(deadline_s, self._on_time)
        elif self._timer.when() > deadline_s:
            self._timer.cancel()
            self._timer = loop.call_at(deadline_s, self._on_time)

    def _on_time(self) -> None:
        self._timer = None
        self.quest.on_deadline(asyncio.get_running_loop().time())
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
            self._asker.drives.pop(self, None)
            self._finished()

    def cancel(self) -> None:
        """Stop waking the machine, and cancel whoever waits for it."""
        if self._timer is not None:
            self._timer.cancel()
        for waiter in self._waiters:
            waiter.cancel()
