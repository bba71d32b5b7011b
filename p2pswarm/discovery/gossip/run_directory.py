"""RunDirectory: the directory of one run at one node, kept fresh by exchanges with other members.

Units:   seconds on the loop's clock.
Errors:  none to its users: a member that cannot be asked is passed over, and logged.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from contextlib import suppress

from p2pswarm.base.errors import Refused, SwarmError
from p2pswarm.base.ids import Contact, PeerId
from p2pswarm.base.signal import Signal
from p2pswarm.discovery.gossip.gossip import Exchange, Gossip
from p2pswarm.discovery.gossip.messages import Compare, Compared, Deliver, Delivered, RunStanding
from p2pswarm.discovery.gossip.partners import Outcome
from p2pswarm.discovery.gossip.record import PeerRecord
from p2pswarm.net.cards.card import Card
from p2pswarm.net.rpc.base import Rpc

log = logging.getLogger(__name__)

EXCHANGE_S = 3.0  # a dial, and two round trips
FAREWELL_S = 1.0  # to tell partners that we leave; who did not hear it sees our record die


class RunDirectory:
    """One run's directory; `Directories` makes it and lets it run."""

    def __init__(
        self, rpc: Rpc, gossip: Gossip, card: Callable[[], Card], wall_s: Callable[[], float]
    ) -> None:
        """`card`: ours, as it is now; `wall_s`: seconds since 1970."""
        self.changed = Signal()
        """Fired when a record has come, changed or died."""
        self.heard_of: Callable[[Card], None] = lambda _card: None
        """Called with the card of whoever may be dialled next."""
        self._rpc = rpc
        self._gossip = gossip
        self._card = card
        self._wall_s = wall_s
        self._woken = asyncio.Event()

    def stand(self, standing: RunStanding) -> None:
        """Tell the run from now on what we are in one role."""
        self._gossip.stand(standing)
        self._woken.set()

    def withdraw(self, role: int) -> None:
        """Have one role no longer."""
        self._gossip.withdraw(role)
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
        """Where the others of a role are, whom we have met first; those that can be dialled."""
        directory, me = self._gossip.directory, self._rpc.contact.peer
        records = [r for r in self.present() if r.peer != me and r.standing(role) is not None]
        records.sort(key=lambda record: not directory.was_met(record.peer))
        found = []
        for record in records:
            if (contact := self._gossip.partners.contact(record)) is not None:
                self.heard_of(record.card)
                found.append(contact)
        return found

    async def maintain(self) -> None:
        """Keep the directory fresh until cancelled; then say farewell."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.TaskGroup() as tasks:
                while True:
                    self._woken.clear()
                    ask = self._gossip.poll(self._card(), loop.time(), self._wall_ms())
                    if ask is not None:
                        tasks.create_task(self._exchange(ask))
                    self._tell_news()
                    with suppress(TimeoutError):
                        async with asyncio.timeout_at(self._gossip.next_deadline_s()):
                            await self._woken.wait()
        finally:
            await self._farewell()

    def compare(self, peer: PeerId, question: Compare) -> Compared:
        """Answer a member."""
        return self._gossip.compare(peer, question, asyncio.get_running_loop().time())

    def deliver(self, peer: PeerId, told: Deliver) -> Delivered:
        """Take what a member brings."""
        done = self._gossip.deliver(peer, told, asyncio.get_running_loop().time())
        self._tell_news()
        self._woken.set()  # something may die sooner than was known
        return done

    async def _exchange(self, ask: Exchange) -> None:
        """Compare directories with one member."""
        loop, outcome = asyncio.get_running_loop(), Outcome.SILENT
        if (known := self._gossip.directory.known(ask.contact)) is not None:
            self.heard_of(known.card)
        try:
            async with asyncio.timeout(EXCHANGE_S):
                reply = await self._rpc.call(ask.contact, ask.question, EXCHANGE_S)
                told = self._gossip.answered(reply, loop.time())
                if told is not None:
                    await self._rpc.call(ask.contact, told, EXCHANGE_S)
            outcome = Outcome.ANSWERED
        except Refused as error:
            outcome = Outcome.REFUSED
            log.info("%s compares no directories: %s", ask.contact.address, error)
        except (SwarmError, TimeoutError) as error:
            log.info("%s compares no directories: %s", ask.contact.address, error)
        finally:
            self._gossip.ended(ask, outcome, loop.time())
        self._tell_news()

    async def _farewell(self) -> None:
        now_s = asyncio.get_running_loop().time()
        partners, told = self._gossip.farewell(self._card(), now_s, self._wall_ms())
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
        if self._gossip.news():
            self.changed.fire()

    def _wall_ms(self) -> int:
        return int(1000 * self._wall_s())
