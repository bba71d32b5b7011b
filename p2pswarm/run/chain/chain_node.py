"""The chain on the network: serves and makes the calls of one run's seat, in the right order.

Errors:  Fork and BrokenRecord for the caller that sent it. A disk that fails is told to the owner:
         this node votes no more.
"""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import aclosing
from typing import Any

from p2pswarm.base.errors import BadMessage, Busy, NotServing, PeerError, SwarmError, Unusable
from p2pswarm.base.ids import Contact, PeerId
from p2pswarm.net.rpc.base import Rpc, Stream
from p2pswarm.net.rpc.framing import FRAME_BYTES_MAX
from p2pswarm.net.wire.message import Message
from p2pswarm.run.chain.actions import (
    Action,
    Ask,
    Deposed,
    Fetch,
    Followed,
    Leading,
    Persist,
    RecordDecided,
    Reply,
    StoreFailed,
    VotesChanged,
    VotesMissing,
)
from p2pswarm.run.chain.chain import Fork
from p2pswarm.run.chain.chain_log import ChainStore
from p2pswarm.run.chain.learner import ProvenRecords
from p2pswarm.run.chain.messages import FetchRecords, HandOver, Heartbeat, Prepare, Propose
from p2pswarm.run.chain.record import CommitRecord, about_bytes, digest
from p2pswarm.run.chain.voter import ChainVoter

ASK_S = 1.0  # the machine asks again each second
LONG_ASK_S = 10.0  # as long as a peer takes parts; 128 kB at 100 kbit/s
FETCH_S = 60.0  # a chain of 100,000 records; another holder is asked after that
OVERHEAR_S = 2.0  # between two records of a stranger that may mean to waste our time
OVERHEARD_MAX = 4  # strangers that are asked at once
READERS_MAX = 64  # peers that are sent records at once, one stream each: all trainers and voters
AGAIN_S = 1.0  # for a peer that asks again while it is sent some
SENT_AT_ONCE = 16  # records that are read before they are sent: 2 MB at most, as bytes

Told = Leading | Deposed | RecordDecided | VotesMissing | VotesChanged | Followed | StoreFailed
"""What the owner of a node is told."""
Caller = asyncio.Future[Message]

log = logging.getLogger(__name__)


class OpenAsks:
    """The long proposals that are under way.

    A machine asks again each second those that have not answered. A record that is longer than a
    frame may take longer to arrive, behind a slow uplink and beside tensors. Begun anew each
    second, it would never be whole; so it is not sent to a peer again while it is under way.
    """

    def __init__(self) -> None:
        self._long: set[tuple[bytes, int, bytes]] = set()

    def begin(self, ask: Ask) -> float | None:
        """Return how long the call may take; None if the same is under way."""
        key = _long_proposal(ask)
        if key is None:
            return ASK_S
        if key in self._long:
            return None
        self._long.add(key)
        return LONG_ASK_S

    def end(self, ask: Ask) -> None:
        """The call is over."""
        if (key := _long_proposal(ask)) is not None:
            self._long.discard(key)


def _long_proposal(ask: Ask) -> tuple[bytes, int, bytes] | None:
    """Return who is asked to accept which long record under which term; None for any other call."""
    message = ask.message
    if not isinstance(message, Propose) or about_bytes(message.record) <= FRAME_BYTES_MAX:
        return None
    return ask.to, message.term, digest(message.record)


class ChainNode:
    """One run's seat on the network. It serves from `start` on, until `close`.

    The machine decides everything. Here its actions are carried out one after the other; what
    follows a `Persist` waits until the entry is kept, so no answer tells of anything that a crash
    could undo.
    """

    def __init__(
        self,
        rpc: Rpc,
        machine: ChainVoter,
        store: ChainStore,
        find: Callable[[bytes], Contact | None],
        told: Callable[[Told], None],
        tasks: asyncio.TaskGroup,
    ) -> None:
        """`find`: where a peer is dialled, if that is known. `tasks` get the calls."""
        assert rpc.contact.peer is not None, "a node knows its own id"
        self.machine = machine
        self._rpc = rpc
        self._store = store
        self._find = find
        self._told = told
        self._group = tasks
        self._me = rpc.contact.peer.raw
        self._run = machine.learner.chain.genesis.run
        self._todo: deque[Action] = deque()
        self._callers: deque[Caller] = deque()
        """Who waits for a `Reply`, in the order of the replies to come."""
        self._keeping = False
        self._pumping = False
        self._closed = False
        self._disk = asyncio.Lock()
        self._asks = OpenAsks()
        self._fetching: set[bytes] = set()
        self._overheard = 0
        self._readers: dict[bytes, None] = {}
        """The peers that are sent records."""
        self._tasks: dict[asyncio.Task[None], None] = {}
        """In order, so that a simulation ends them in the same order each time."""
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Serve the calls of other nodes, and let the machine begin."""
        for call in (Prepare, Propose, Heartbeat, HandOver):
            self._rpc.serve_unary(call, self._asked)
        self._rpc.serve_stream(FetchRecords, self._send_records)
        self.pump()

    def close(self) -> None:
        """Do nothing more; calls are refused from now on. The store is its owner's."""
        self._closed = True
        self._todo.clear()
        self._fail_callers(NotServing("this node takes no part in the run any more"))
        if self._timer is not None:
            self._timer.cancel()
        for task in list(self._tasks):
            task.cancel()

    def link_lost(self, peer: bytes) -> None:
        """The link to a peer ended."""
        self.machine.link_lost(peer, self._now_s())
        self.pump()

    def catch_up(self, peer: bytes) -> None:
        """Fetch what is decided from a peer that leads: a new node does not know its trainers."""
        self._begin_fetch(Fetch(peer, self.machine.learner.chain.head.height))

    def overhear(self, contact: Contact) -> None:
        """Fetch what is decided from a peer that says it knows more; what it cannot prove is left.

        It may be anybody: a trainer that was away may know nobody that votes now.
        """
        peer, room = contact.peer, not self._closed and self._overheard < OVERHEARD_MAX
        if peer is not None and peer.raw not in self._fetching and room:
            self._fetching.add(peer.raw)
            self._overheard += 1
            self._start(self._overhear(peer.raw, contact))

    def pump(self) -> None:
        """Carry out what the machine asks, and wake it when it wants; call it after any verb."""
        if self._pumping or self._closed:
            return  # the loop below will see to it
        self._pumping = True
        try:
            while not self._closed:
                self._todo += self.machine.actions()
                if self._keeping or not self._todo:
                    break
                self._carry_out(self._todo.popleft())
        finally:
            self._pumping = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due_s = self.machine.next_deadline_s
        if due_s is not None and not self._closed:
            self._timer = asyncio.get_running_loop().call_at(due_s, self._due)

    def _carry_out(self, action: Action) -> None:
        match action:
            case Persist(entry=entry):
                if self._store.slow:
                    self._keeping = True
                    self._start(self._keep(entry))
                else:
                    self._store.append(entry)
            case Reply(message=message):
                caller = self._callers.popleft()
                if not caller.done():
                    caller.set_result(message)
            case Ask():
                self._begin_ask(action)
            case Fetch():
                self._begin_fetch(action)
            case _:
                self._told(action)

    def _begin_ask(self, ask: Ask) -> None:
        if ask.to == self._me:
            self._ask_ourselves(ask.message)
        elif contact := self._find(ask.to):
            if (timeout_s := self._asks.begin(ask)) is not None:
                self._start(self._ask(ask, contact, timeout_s))
        else:
            self.machine.on_silence(ask.to)

    def _begin_fetch(self, fetch: Fetch) -> None:
        contact = self._find(fetch.to)
        if contact and fetch.to not in self._fetching:
            self._fetching.add(fetch.to)
            self._start(self._fetch(fetch.to, contact, fetch.height))

    async def _keep(self, entry: Message) -> None:
        """Keep an entry; what follows it is carried out once it is on the disk."""
        failed: str | None = None
        try:
            async with self._disk:
                await asyncio.to_thread(self._store.append, entry)
        except Unusable as error:
            failed = str(error)
        self._keeping = False
        if failed is not None:
            self.machine.actions()  # whatever would have told of the entry is not said
            self._todo.clear()
            self.machine.acceptor.disk_failed()
            self._fail_callers(Busy(f"this voter cannot keep its promises: {failed}"))
            self._told(StoreFailed(failed))
        self.pump()

    def _fail_callers(self, error: SwarmError) -> None:
        while self._callers:
            caller = self._callers.popleft()
            if not caller.done():
                caller.set_exception(error)
                caller.exception()  # the caller may be gone: asyncio would complain

    def _ask_ourselves(self, message: Message) -> None:
        """Serve our own call; its answer comes when the entries before it are kept."""

        def answered(answer: Caller) -> None:
            if not answer.cancelled() and answer.exception() is None and not self._closed:
                self.machine.on_answer(self._me, answer.result(), self._now_s())
                self.pump()

        self._receive(self._me, message).add_done_callback(answered)

    def _receive(self, sender: bytes, message: Message) -> Caller:
        if self._closed:
            raise NotServing("this node takes no part in the run any more")
        caller: Caller = asyncio.get_running_loop().create_future()
        self._callers.append(caller)
        self.machine.on_call(sender, message, self._now_s())
        return caller

    async def _asked(self, peer: PeerId, message: Message) -> Message:
        try:
            answer = self._receive(peer.raw, message)
        except PeerError as error:
            log.warning("%s: %s", peer.short, error)
            raise
        finally:
            self.pump()
        return await answer

    async def _ask(self, ask: Ask, contact: Contact, timeout_s: float) -> None:
        try:
            answer = await self._rpc.call(contact, ask.message, timeout_s)
        except SwarmError as error:
            log.info("%s did not answer a %s: %s", contact, type(ask.message).__name__, error)
            self.machine.on_silence(ask.to)
            self.pump()
            return
        finally:
            self._asks.end(ask)
        self.machine.on_answer(ask.to, answer, self._now_s())
        self.pump()

    async def _fetch(self, to: bytes, contact: Contact, height: int) -> None:
        try:
            async with aclosing(self._records_of(contact, height)) as records:
                async for record in records:
                    self._learn(record)
        except SwarmError as error:
            log.info("the records of %s could not be fetched: %s", contact.address, error)
        finally:
            self._fetching.discard(to)

    async def _overhear(self, to: bytes, contact: Contact) -> None:
        chain = self.machine.learner.chain
        proven = ProvenRecords(chain, to)
        try:
            async with (
                asyncio.timeout(OVERHEAR_S) as patience,
                aclosing(self._records_of(contact, chain.head.height)) as records,
            ):
                async for record in records:
                    for decided in proven.receive(record):
                        self._learn(decided)
                    patience.reschedule(self._now_s() + OVERHEAR_S)
        except Fork as error:
            log.warning("%s: %s", contact, error)
        except (SwarmError, TimeoutError) as error:
            log.info("%s did not prove what it knows: %s", contact, error)
        finally:
            self._overheard -= 1
            self._fetching.discard(to)

    async def _records_of(
        self, contact: Contact, height: int
    ) -> AsyncGenerator[CommitRecord, None]:
        request = FetchRecords(self._run, height)
        async with self._rpc.open_stream(contact, request, FETCH_S) as stream:
            while (record := await stream.receive()) is not None:
                if not isinstance(record, CommitRecord):
                    raise BadMessage(f"a {type(record).__name__} for a record")
                yield record

    def _learn(self, record: CommitRecord) -> None:
        self.machine.on_record(record, self._now_s())
        self.pump()

    async def _send_records(self, stream: Stream, request: FetchRecords) -> None:
        if self._closed or request.run != self._run:
            raise NotServing("this node keeps no records of that run")
        reader = stream.peer.raw
        if reader in self._readers or len(self._readers) >= READERS_MAX:
            raise Busy("records are being sent", AGAIN_S)
        self._readers[reader] = None
        try:
            height = request.height
            while records := await self._read(height):
                for record in records:
                    await stream.send(record)
                height += len(records)
        finally:
            del self._readers[reader]

    async def _read(self, height: int) -> list[CommitRecord]:
        chain = self.machine.learner.chain
        records = self._store.records(height, min(chain.head.height, height + SENT_AT_ONCE))
        if not self._store.slow:
            return list(chain.own(records))
        async with self._disk:
            there = await asyncio.to_thread(list, records)
        return list(chain.own(there))

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._group.create_task(work)
        self._tasks[task] = None
        task.add_done_callback(lambda done: self._tasks.pop(done, None))

    def _due(self) -> None:
        self._timer = None
        self.machine.on_deadline(self._now_s())
        self.pump()

    def _now_s(self) -> float:
        return asyncio.get_running_loop().time()
