"""A server's part in who leads its run: its vote, its search, its questions to a silent trainer.

Errors:  Late when a trainer does not answer `Join` in time.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TypeVar

from p2pswarm.base.errors import Late, SwarmError
from p2pswarm.base.ids import Contact
from p2pswarm.base.signal import Signal
from p2pswarm.net.wire.message import Message
from p2pswarm.run.chain.actions import Followed, StoreFailed
from p2pswarm.run.chain.chain import ChainHead
from p2pswarm.run.chain.chain_log import ChainStore, Restored, blank
from p2pswarm.run.chain.chain_node import ChainNode, Told
from p2pswarm.run.chain.memory_file import MemoryChain
from p2pswarm.run.chain.record import VoterId
from p2pswarm.run.chain.voter import ChainVoter
from p2pswarm.run.member_cards import learn_all
from p2pswarm.run.messages.membership import StandsBy
from p2pswarm.run.messages.trainers import Trainers, WhoLeads
from p2pswarm.server.lifecycle import Lifecycle, ServerEnd
from p2pswarm.server.member_session import ServerContext
from p2pswarm.server.trainer_search import CoordinatorWatch

log = logging.getLogger(__name__)
T = TypeVar("T")

ANSWER_S = 1.0  # round the world and back, behind other bytes


class Leadership:
    """One server's part in who leads; it works from `begin` on, until `close`.

    Its vote serves all the time, in a session or not. Who leads, and what follows from that for
    the session, its lifecycle decides. `Seeker` waits for the lifecycle's deadlines, and ends a
    wait for a trainer that is not worth it any more, as those see and steer it who look the run up
    meanwhile.
    """

    def __init__(
        self,
        context: ServerContext,
        end_session: Callable[[str], None],
        fell_silent: Callable[[], None] = lambda: None,
    ) -> None:
        """`end_session` ends also the try to begin one; `fell_silent`: the coordinator did."""
        self.node: ChainNode | None = None
        """Its vote; None if it has none."""
        self._context = context
        self._end_session = end_session
        self._fell_silent = fell_silent
        self._watch = CoordinatorWatch()
        self._opened = Signal()
        self._named: list[bytes] = []
        """The trainers that the coordinator has named."""
        self._watching: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop
        self._tasks: asyncio.TaskGroup
        self._lifecycle: Lifecycle

    @property
    def records(self) -> int:
        """The number of decided records that its vote knows."""
        return self.node.machine.learner.chain.head.height if self.node else 0

    @property
    def head(self) -> ChainHead | None:
        """Of the decided records that its vote knows; None if it has none."""
        return self.node.machine.learner.chain.head if self.node else None

    def begin(self, lifecycle: Lifecycle, tasks: asyncio.TaskGroup) -> None:
        """Vote and watch; `tasks` get the calls."""
        self._loop = asyncio.get_running_loop()
        self._lifecycle, self._tasks = lifecycle, tasks
        self._watching = tasks.create_task(self._watch_coordinator())
        if (voter := self._context.voter) is not None:
            self._vote(voter.store, voter.restored)

    def close(self) -> None:
        """Vote no more."""
        if self._watching is not None:
            self._watching.cancel()
        if self.node is not None and self._context.voter is not None:
            self.node.close()
            self._context.voter.store.close()

    def on_try(self) -> None:
        """A trainer is asked for a stage: who leads is asked of the others until it answers."""
        self._watch.on_try(self._now_s())
        self._opened.fire()

    def on_word(self, message: Message | None = None) -> None:
        """Learn of the open stream with the trainer, or of a message; BadMessage for a bad card."""
        learn_all(self._context.cards, message, self._lifecycle.trainer.peer)
        if isinstance(message, Trainers) and self.node is not None:
            self._named = [one.peer for one in message.trainers]
            self.node.machine.acceptor.on_trainers(self._named)
        began = self._watch.next_deadline_s is None
        self._watch.on_word(self._now_s())
        if began:
            self._opened.fire()

    @property
    def silent(self) -> bool:
        """True if the coordinator has said nothing for so long that others are asked."""
        return self._watch.silent

    def unheard_s(self) -> float:
        """The time for which the trainer has said nothing."""
        return self._watch.unheard_s(self._now_s())

    def stream_ended(self, trainer: Contact) -> None:
        """The stream with the trainer is over."""
        self._watch.ended()
        if self.node is not None and trainer.peer is not None:
            self.node.link_lost(trainer.peer.raw)

    def _told(self, told: Told) -> None:
        """The chain has news."""
        match told:
            case Followed(leader=leader, term=term):
                where = self._lifecycle.trainers.find(leader)
                if self._lifecycle.led(term, where, self._now_s()):
                    self._end_session("another trainer leads the run")
            case StoreFailed(reason=reason):
                self._vote_from_memory(reason)

    def _vote(self, store: ChainStore, restored: Restored) -> ChainNode:
        """Vote with what `store` keeps."""
        context = self._context
        seat = ChainVoter(VoterId(context.me, store.memory), restored)
        find = self._lifecycle.trainers.find
        node = self.node = ChainNode(context.rpc, seat, store, find, self._told, self._tasks)
        node.start()
        return node

    def _vote_from_memory(self, reason: str) -> None:
        """The voter of the file votes no more: another one takes its place when a record says so.

        Else a full disk would cost the run a voter for as long as this server lives.
        """
        context, node = self._context, self.node
        if node is None:
            return
        context.say(
            f"this server votes no more with its file on what is decided: {reason}; it is another "
            "voter from now on, whose promises end with its process"
        )
        node.close()
        genesis = node.machine.learner.chain.genesis
        old = node.machine.acceptor.voter.memory
        again = self._vote(MemoryChain.instead_of(old, context.secret), blank(genesis))
        again.machine.acceptor.on_trainers(self._named)

    async def _watch_coordinator(self) -> None:
        """Ask the other trainers who leads, as long as the coordinator is silent."""
        while True:
            try:
                async with asyncio.timeout_at(self._watch.next_deadline_s):
                    await self._opened.wait()
            except TimeoutError:
                if self._watch.on_deadline(self._now_s()):
                    self.ask(self._lifecycle.trainers.beside(self._lifecycle.trainer))
                    self._fell_silent()

    def ask(self, trainers: Iterable[Contact]) -> None:
        """Ask these who leads, but for the coordinator."""
        for trainer in trainers:
            if trainer != self._lifecycle.trainer:
                self._tasks.create_task(self._ask(trainer))

    async def _ask(self, trainer: Contact) -> None:
        context = self._context
        address = str(context.rpc.contact.address) if self.node else ""
        question = WhoLeads(
            context.run_id, self._lifecycle.incarnation, address, records=self.records
        )
        try:
            answer = await context.rpc.call(trainer, question, ANSWER_S)
            learn_all(context.cards, answer, trainer.peer)
        except SwarmError as error:
            log.info("%s did not say who leads: %s", trainer.address, error)
            return
        if isinstance(answer, StandsBy) and self._lifecycle.named(answer, self._now_s()):
            self._end_session("its coordinator is silent, and another trainer leads the run")

    def _now_s(self) -> float:
        return self._loop.time()


class Seeker:
    """The search of one server for its trainer, between its sessions."""

    def __init__(
        self,
        context: ServerContext,
        leadership: Leadership,
        changed: Signal,
        moved: Callable[[], None],
    ) -> None:
        """`changed` fires when the lifecycle has moved; `moved` is called to have that done."""
        self.lifecycle: Lifecycle | None = None
        """None before `begin`."""
        self._context = context
        self._leadership = leadership
        self._changed = changed
        self._moved = moved
        self._knock: asyncio.Timeout | None = None
        """The limit of a join that was not answered yet."""

    def begin(self) -> Lifecycle:
        """The server starts to look for its trainer."""
        context = self._context
        trainers = context.trainer, *context.standbys
        now_s = asyncio.get_running_loop().time()
        self.lifecycle = Lifecycle(trainers, context.rejoin_s, now_s)
        return self.lifecycle

    @property
    def trainer(self) -> Contact:
        """The trainer that coordinates, as far as it knows."""
        return self.lifecycle.trainer if self.lifecycle else self._context.trainer

    @property
    def seeks(self) -> bool:
        """True if it looks for a trainer: it has no session, or its coordinator is silent."""
        return bool(self.lifecycle and (self.lifecycle.seeking or self._leadership.silent))

    @property
    def in_run(self) -> bool:
        """True if it has a session with a trainer."""
        return self.lifecycle is not None and not self.lifecycle.seeking and not self.lifecycle.end

    @property
    def end(self) -> ServerEnd | None:
        """Why the server is over; None while it is not."""
        return self.lifecycle.end if self.lifecycle else None

    async def changed(self) -> None:
        """Wait until its state may be another one."""
        await self._changed.wait()

    @property
    def gave_up(self) -> bool:
        """True if it ended because it stopped looking for its trainer."""
        end = self.lifecycle.end if self.lifecycle else None
        return end is not None and end.gave_up

    async def seeking(self) -> float:
        """Wait until it looks for a trainer; returns when to look the run up, in seconds."""
        while not self.seeks:
            await self._changed.wait()
        assert self.lifecycle is not None, "it seeks"
        return self.lifecycle.look_again_s(asyncio.get_running_loop().time())

    def found(self, trainers: Sequence[Contact]) -> None:
        """Ask trainers that answer just now first, or who leads in place of a silent one."""
        if self.lifecycle is None:
            return
        if not self.lifecycle.seeking and self._leadership.silent:
            self._leadership.ask(trainers)
            return
        now_s = asyncio.get_running_loop().time()
        if self.lifecycle.found(trainers, now_s):
            self.end_knock()
        self._moved()

    def may_change_run(self) -> bool:
        """Return whether no trainer has answered for so long that another run is better."""
        now_s = asyncio.get_running_loop().time()
        return self.lifecycle is not None and self.lifecycle.may_change_run(now_s)

    def give_up(self, reason: str) -> None:
        """Stop looking: the server's `run` returns the reason. A session goes on."""
        if self.lifecycle is not None:
            self.lifecycle.give_up(reason)
            self.end_knock()
            self._moved()

    def on_run_over(self, reason: str, version: int) -> None:
        """The run is over, as is proved: the server's `run` returns the reason."""
        if self.lifecycle is not None:
            self.lifecycle.on_run_over(reason, version)
            self.end_knock()
            self._moved()

    def end_knock(self) -> None:
        """Wait for the trainer that is asked no longer."""
        if self._knock is not None and not self._knock.expired():
            self._knock.reschedule(asyncio.get_running_loop().time())

    async def knocking(self, limit_s: float | None, answer: Awaitable[T]) -> T:
        """Wait for an answer of the trainer; `end_knock` ends that, as the limit does."""
        try:
            async with asyncio.timeout(limit_s) as knock:
                self._knock = knock
                return await answer
        except TimeoutError:
            if not knock.expired():
                raise
            raise Late("the trainer did not answer in time") from None
        finally:
            self._knock = None

    async def until(self, fact: Callable[[], bool]) -> None:
        """Wait for a fact about the lifecycle, and keep its deadlines."""
        lifecycle = self.lifecycle
        assert lifecycle is not None, "nothing moves before `begin`"
        while not fact():
            try:
                async with asyncio.timeout_at(lifecycle.next_deadline_s()):
                    await self._changed.wait()
            except TimeoutError:
                lifecycle.on_deadline(asyncio.get_running_loop().time())
                self._moved()
