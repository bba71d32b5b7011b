"""RunDirectory keeps the directory of one run fresh; Directories has those of all runs of a node.

Errors:  NotServing, told to a peer that asks about another run; ValueError for too many runs.
"""

import asyncio
import contextlib
import logging
import random
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from p2pswarm.base.errors import NotServing, Refused, SwarmError
from p2pswarm.base.ids import Contact, PeerId
from p2pswarm.base.loop_clock import now_s, wait_until
from p2pswarm.base.signal import Signal
from p2pswarm.discovery.gossip.directory import everybody
from p2pswarm.discovery.gossip.gossip import Exchange, Gossip, Outcome, Partners
from p2pswarm.discovery.gossip.messages import Compare, Compared, Deliver, Delivered, RunRole
from p2pswarm.discovery.gossip.record import OwnRecord, PeerRecord, RecordReader
from p2pswarm.net.cards.card import Card
from p2pswarm.net.crypto.identity import Identity
from p2pswarm.net.os.addresses import Scope
from p2pswarm.net.rpc.base import Rpc

log = logging.getLogger(__name__)

EXCHANGE_S = 3.0  # a dial, and two round trips
FAREWELL_S = 1.0  # to tell partners that we leave; who did not hear it sees our record die


@dataclass(frozen=True, slots=True)
class DirectoryContext:
    """The surroundings of a node's directories, given once by the code that composes it."""

    rpc: Rpc
    identity: Identity
    card: Callable[[], Card]
    """Our own card as it is now."""
    rng: random.Random
    wall_s: Callable[[], float]
    """Seconds since 1970."""
    least_scope: Scope = Scope.PRIVATE
    """Addresses of a smaller scope are not believed."""
    reader: RecordReader | None = None
    """Reads records; None for one of its own."""


class RunDirectory:
    """The directory of one run at one node, kept fresh by exchanges with other members."""

    def __init__(self, around: DirectoryContext, gossip: Gossip) -> None:
        self.changed = Signal()
        """Fired when a record has come, changed or died."""
        self.on_card: Callable[[Card], None] = lambda _card: None
        """Called with the card of whoever may be dialled next."""
        self._around = around
        self._rpc = around.rpc
        self._gossip = gossip
        self._woken = asyncio.Event()

    def set_role(self, role: RunRole) -> None:
        """Tell the run from now on what we are in one role."""
        self._gossip.own.set_role(role)
        self._woken.set()

    def withdraw(self, role: int) -> None:
        """Have one role no longer."""
        self._gossip.own.withdraw(role)
        self._woken.set()

    def enter_through(self, contacts: Iterable[Contact]) -> None:
        """These are in the run, as the DHT or the user says."""
        self._gossip.partners.enter_through(contacts)

    def present(self) -> list[PeerRecord]:
        """The records of all who are in the run now, ourselves too, by their ids."""
        return self._gossip.directory.present()

    def get(self, peer: PeerId) -> PeerRecord | None:
        """The record of one peer, if it is in the run now."""
        record = self._gossip.directory.get(peer)
        return None if record is None or record.left else record

    def contacts(self, role: int) -> list[Contact]:
        """The others of a role that can be dialled; those that we have met come first."""
        directory, me = self._gossip.directory, self._rpc.contact.peer
        records = [r for r in self.present() if r.peer != me and r.role(role) is not None]
        records.sort(key=lambda record: not directory.reached(record.peer))
        found = []
        for record in records:
            if (contact := self._gossip.partners.contact(record)) is not None:
                self.on_card(record.card)
                found.append(contact)
        return found

    async def maintain(self) -> None:
        """Keep the directory fresh until cancelled; then say farewell."""
        try:
            async with asyncio.TaskGroup() as tasks:
                while True:
                    self._woken.clear()
                    ask = self._gossip.drain(self._around.card(), now_s(), self._wall_ms())
                    if ask is not None:
                        tasks.create_task(self._exchange(ask))
                    self._tell_news()
                    await wait_until(self._woken, self._gossip.next_deadline_s())
        finally:
            await self._farewell()

    def on_compare(self, peer: PeerId, question: Compare) -> Compared:
        """Answer a member."""
        return self._gossip.on_compare(peer, question, now_s())

    def on_deliver(self, peer: PeerId, told: Deliver) -> Delivered:
        """Take what a member brings."""
        done = self._gossip.on_deliver(peer, told, now_s())
        self._tell_news()
        self._woken.set()  # something may die sooner than was known
        return done

    async def _exchange(self, ask: Exchange) -> None:
        outcome = Outcome.SILENT
        if (known := self._gossip.directory.known(ask.contact)) is not None:
            self.on_card(known.card)
        try:
            async with asyncio.timeout(EXCHANGE_S):
                reply = await self._rpc.call(ask.contact, ask.question, EXCHANGE_S)
                told = self._gossip.on_answer(reply, now_s())
                if told is not None:
                    await self._rpc.call(ask.contact, told, EXCHANGE_S)
            outcome = Outcome.ANSWERED
        except (SwarmError, TimeoutError) as error:
            outcome = Outcome.REFUSED if isinstance(error, Refused) else Outcome.SILENT
            log.info("%s compares no directories: %s", ask.contact.address, error)
        finally:
            self._gossip.on_outcome(ask, outcome, now_s())
        self._tell_news()

    async def _farewell(self) -> None:
        partners, told = self._gossip.farewell(self._around.card(), now_s(), self._wall_ms())
        if not told.records:
            return
        async with asyncio.TaskGroup() as tasks:
            for partner in partners:
                tasks.create_task(self._say_farewell(partner, told))

    async def _say_farewell(self, partner: Contact, told: Deliver) -> None:
        try:
            await self._rpc.call(partner, told, FAREWELL_S)
        except SwarmError as error:
            log.info("%s was not told that we leave: %s", partner.address, error)

    def _tell_news(self) -> None:
        if self._gossip.take_change():
            self.changed.fire()

    def _wall_ms(self) -> int:
        return int(1000 * self._around.wall_s())


RUNS_MAX = 8  # a node serves one run and may watch others


@dataclass(slots=True)
class _OpenDirectory:
    """A directory that is kept fresh, and the number of its users."""

    directory: RunDirectory
    upkeep: asyncio.Task[None]
    users: int = 0


class Directories:
    """The directories of all runs that a node takes part in, and the calls of others about them.

    Use it as a context manager: it owns its tasks.
    """

    def __init__(self, around: DirectoryContext) -> None:
        self._around = around
        self._reader = around.reader or RecordReader()
        self._open: dict[bytes, _OpenDirectory] = {}
        self._tasks = asyncio.TaskGroup()
        around.rpc.serve_unary(Compare, self._compare)
        around.rpc.serve_unary(Deliver, self._deliver)

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for each in self._open.values():
            each.upkeep.cancel()
        await self._tasks.__aexit__(kind, error, trace)

    @contextlib.asynccontextmanager
    async def open(
        self, run: bytes, admitted: Callable[[PeerId], bool] = everybody
    ) -> AsyncIterator[RunDirectory]:
        """The directory of a run, while this block lasts; several roles of a node share it.

        `admitted`: whether a peer may be in the run; the first user's counts.
        """
        if run not in self._open:
            if len(self._open) >= RUNS_MAX:
                raise ValueError(f"a node takes part in {RUNS_MAX} runs at most")
            directory = self._made(run, admitted)
            upkeep = self._tasks.create_task(directory.maintain())
            self._open[run] = _OpenDirectory(directory, upkeep)
        used = self._open[run]
        used.users += 1
        try:
            yield used.directory
        finally:
            used.users -= 1
            if not used.users:
                del self._open[run]
                used.upkeep.cancel()
                await asyncio.wait((used.upkeep,))

    def _made(self, run: bytes, admitted: Callable[[PeerId], bool]) -> RunDirectory:
        around, chance = self._around, random.Random(self._around.rng.random())
        own = OwnRecord(around.identity, run, chance)
        partners = Partners(around.rpc.contact, around.least_scope, chance)
        return RunDirectory(around, Gossip(own, partners, self._reader, chance, admitted))

    def _of(self, run: bytes) -> RunDirectory:
        if run not in self._open:
            raise NotServing("not in this run now")
        return self._open[run].directory

    def _compare(self, peer: PeerId, question: Compare) -> Compared:
        return self._of(question.run).on_compare(peer, question)

    def _deliver(self, peer: PeerId, told: Deliver) -> Delivered:
        return self._of(told.run).on_deliver(peer, told)
