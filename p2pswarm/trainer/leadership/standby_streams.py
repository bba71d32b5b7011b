"""The stream between a standby and the coordinator: its end at the coordinator, and at the standby.

Errors:  at the coordinator those of the stream, for the standby whose stream it is.
"""

import asyncio
import logging
import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from p2pswarm.base.errors import BadMessage, PathError, SwarmError
from p2pswarm.base.ids import Contact, PeerId
from p2pswarm.net.rpc.base import Stream
from p2pswarm.run.chain.chain_node import ChainNode
from p2pswarm.run.chain.participant import ChainParticipant
from p2pswarm.run.member_cards import learn_all
from p2pswarm.run.messages.cost import Spent
from p2pswarm.run.messages.membership import StandsBy
from p2pswarm.run.messages.run import Finished
from p2pswarm.run.messages.trainers import (
    ALIVE_S,
    SILENCE_S,
    Alive,
    Enlist,
    FetchReferences,
    ReferencePart,
    Trainers,
)
from p2pswarm.trainer.coordinator_io.server_reports import references_of
from p2pswarm.trainer.coordinator_io.trainer_context import TrainerContext
from p2pswarm.trainer.leadership.known_trainers import PAUSE_S, CoordinatorSearch, KnownTrainers
from p2pswarm.trainer.members.run_cost import RunCost
from p2pswarm.trainer.reports.leadership import StandbyTaken

HEARD_S = 2.0  # for the last word to reach a standby
SPENT_EVERY_S = 5.0  # a takeover forgets no more of what the run has cost


class _StandbyStream:
    def __init__(self) -> None:
        self.waker = asyncio.Event()
        self.over = False
        self.last: Finished | None = None


class StandbyStreams:
    """All streams of trainers that stand by.

    The coordinator tells each standby where all are, and that it lives. If the stream ends, the
    coordinator is gone, as far as the standby can tell.
    """

    def __init__(
        self, roll: KnownTrainers, changed: Callable[[], None], cost: RunCost | None = None
    ) -> None:
        """`changed` is called when a standby is gone; `cost`: what the run has cost so far."""
        self._roll = roll
        self._cost = cost
        self._changed = changed
        self._open: dict[bytes, _StandbyStream] = {}
        self._former = 0
        """Streams that are over and have not ended yet."""
        self._trainers: Trainers | None = None
        self.quiet = False
        """True if nobody is told that the coordinator lives."""
        self._closed = False
        self._last: Finished | None = None
        """Message to a standby that comes once all is closed."""
        self._empty = asyncio.Event()
        self._empty.set()

    def announce(self, trainers: Trainers) -> bool:
        """Tell all who the trainers are; False if they know."""
        if trainers == self._trainers:
            return False
        self._trainers = trainers
        for standby in self._open.values():
            standby.waker.set()
        return True

    def dismiss(self, last: Finished | None) -> None:
        """End all streams, with a last word or without."""
        for peer in list(self._open):
            self._end(peer, last)

    def close(self, last: Finished | None) -> None:
        """End all streams, and from now on that of each standby that comes, too."""
        self._closed, self._last = True, last
        self.dismiss(last)

    async def wait_closed(self) -> None:
        """Wait until all streams have ended."""
        await self._empty.wait()

    async def attend(self, stream: Stream, contact: Contact) -> None:
        """One standby, for as long as its stream lasts."""
        peer = stream.peer.raw
        self._end(peer, None)
        standby = self._open[peer] = _StandbyStream()
        self._former += 1
        self._empty.clear()
        self._roll.on_standby(contact)
        if self._closed:  # nobody would ever end this stream, and we wait for its end
            self._end(peer, self._last)
        self._changed()
        try:
            await self._talk(stream, standby)
            if standby.last is not None:
                await _say_last(stream, standby.last)
        finally:
            self._former -= 1
            if not self._former:
                self._empty.set()
            if self._open.get(peer) is standby:
                del self._open[peer]
                self._roll.on_standby_end(peer, asyncio.get_running_loop().time())
                self._changed()

    async def _talk(self, stream: Stream, standby: _StandbyStream) -> None:
        told: Trainers | None = None
        begun, quarantines = 0, self._roll.quarantines
        clock, spent_s = asyncio.get_running_loop().time, -math.inf
        while not standby.over:
            standby.waker.clear()
            if told is not None and not self.quiet and clock() >= spent_s + SPENT_EVERY_S:
                spent_s = clock()
                await self._tell_cost(stream, spent_s)
            news = told != self._trainers or begun != quarantines.begun
            if self._trainers is not None and news:
                told, begun = self._trainers, quarantines.begun
                quarantined = quarantines.peers(asyncio.get_running_loop().time())
                await stream.send(replace(told, quarantined=quarantined))
            elif not self.quiet:
                await stream.send(Alive())
            with suppress(TimeoutError):
                async with asyncio.timeout(ALIVE_S):
                    await standby.waker.wait()

    async def _tell_cost(self, stream: Stream, now_s: float) -> None:
        """Tell what the run has cost, which a standby keeps: it may lead next."""
        if self._cost is not None and not (spent := self._cost.spent(now_s)).nothing:
            await stream.send(spent)

    def _end(self, peer: bytes, last: Finished | None) -> None:
        standby = self._open.pop(peer, None)
        if standby is not None:
            self._roll.on_standby_end(peer, asyncio.get_running_loop().time())
            standby.over, standby.last = True, last
            standby.waker.set()


async def _say_last(stream: Stream, last: Finished) -> None:
    """A socket that closes now could take the last word along: wait until it was heard."""
    with suppress(SwarmError, TimeoutError):
        async with asyncio.timeout(HEARD_S):
            await stream.send(last)
            await stream.receive()


log = logging.getLogger(__name__)


class CoordinatorStream:
    """The stream of a standby with the coordinator, whichever trainer that is.

    A trainer that cannot be reached is asked again in its turn.
    """

    def __init__(
        self,
        context: TrainerContext,
        seat: ChainParticipant,
        node: ChainNode,
        roll: KnownTrainers,
        over: Callable[[Finished], None],
        tasks: asyncio.TaskGroup,
    ) -> None:
        self._rpc = context.rpc
        self._run = context.run_id
        self._references = references_of(context.corpus)
        self._has_references = False
        """True if a trainer of this run has given them."""
        self._cards = context.cards
        self._seat, self._node = seat, node
        self._roll = roll
        self._over = over
        self._report = context.report
        self._cost, self._price = context.cost, context.price
        self._tasks = tasks
        self._search = CoordinatorSearch()
        self._task: asyncio.Task[None] | None = None
        self._asked: PeerId | None = None
        self._silence: asyncio.Timeout | None = None
        """The limit of the stream with the trainer that is asked."""
        self.enlisted = False
        """True if a coordinator has taken this trainer as a standby, and its stream lasts."""

    def start(self) -> None:
        """Stand by from now on."""
        self.stop()
        self._task = self._tasks.create_task(self._stand_by())

    def stop(self) -> None:
        """This trainer leads, or leaves."""
        if self._task is not None:
            self._task.cancel()
            self._task = None

    def on_leader(self, leader: bytes) -> None:
        """A trainer leads from now on: the one that is asked may be dead, or behind a cut."""
        contact, silence = self._roll.find(leader), self._silence
        if contact is None or contact.peer in (self._asked, self._rpc.contact.peer):
            return
        self._search.on_hint(contact)
        if silence is not None and not silence.expired():
            silence.reschedule(asyncio.get_running_loop().time())

    async def _stand_by(self) -> None:
        while True:
            to = self._search.ask(self._roll.contacts())
            if to is None:
                await asyncio.sleep(PAUSE_S)
                leader, _ = self._seat.led_by
                self._search.on_hint(self._roll.find(leader) if leader is not None else None)
            elif to.peer != self._rpc.contact.peer:
                await self._enlist(to)

    async def _enlist(self, to: Contact) -> None:
        """Stand by with one trainer, if it coordinates."""
        assert to.peer is not None, "trainers are known by their ids"
        opening = Enlist(self._run, str(self._rpc.contact.address), self._price.told)
        try:
            await self._fetch_references(to)
            async with asyncio.timeout(SILENCE_S) as silence:
                self._asked, self._silence = to.peer, silence
                async with self._rpc.open_stream(to, opening, None) as stream:
                    if await self._hear(to, stream, silence):
                        self._node.link_lost(to.peer.raw)
        except TimeoutError:
            log.info("%s is silent", to)
        except PathError as error:
            log.info("%s is gone: %s", to, error)
            self._node.link_lost(to.peer.raw)
        except SwarmError as error:
            log.info("%s does not take a standby: %s", to, error)
        finally:
            self._asked = self._silence = None
            self.enlisted = False

    async def _fetch_references(self, to: Contact) -> None:
        """Have a trainer's references, if the run has some.

        Whoever leads next is to make the same rows, to the last bit. So those that are here, from
        another pass over the same text, give way.
        """
        references = self._references
        if references is None or self._has_references:
            return
        first = 0
        while first < len(references):
            answer = await self._rpc.call(to, FetchReferences(self._run, first), SILENCE_S)
            if not isinstance(answer, ReferencePart) or not answer.scores:
                raise BadMessage(f"a {type(answer).__name__} without the references that are due")
            if not all(map(math.isfinite, answer.scores)):
                raise BadMessage("references that are no numbers")
            references.keep(first, answer.scores)
            first += len(answer.scores)
        self._has_references = True

    async def _hear(self, to: Contact, stream: Stream, silence: asyncio.Timeout) -> bool:
        """Listen until the stream ends; whether it ended though the run goes on."""
        assert to.peer is not None, "trainers are known by their ids"
        known = False
        while (message := await stream.receive()) is not None:
            silence.reschedule(asyncio.get_running_loop().time() + SILENCE_S)
            learn_all(self._cards, message, to.peer)
            match message:
                case Trainers():
                    self._roll.on_trainers(message, asyncio.get_running_loop().time())
                    self._seat.acceptor.on_trainers(one.peer for one in message.trainers)
                    self._search.on_coordinator()
                    self.enlisted = True
                    if not known:
                        known = True
                        self._report(StandbyTaken(to.peer.raw, str(to.address)))
                        self._node.catch_up(to.peer.raw)
                case Alive():
                    pass
                case Spent():
                    if self._cost is not None:
                        self._cost.on_sums(message, asyncio.get_running_loop().time())
                case StandsBy():
                    self._search.on_hint(message.contact)
                    return False
                case Finished():
                    self._over(message)
                    return False
                case _:
                    raise BadMessage(f"a {type(message).__name__} for a standby")
        return known
