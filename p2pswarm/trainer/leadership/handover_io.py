"""A trainer's part in handing the run over: it asks and is asked which stages others reach.

Errors:  Refused for a trainer that asks what only the coordinator or a standby may ask.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress

from p2pswarm.base.errors import Busy, Late, PathError, Refused, SwarmError
from p2pswarm.base.ids import Contact, PeerId
from p2pswarm.base.signal import Signal
from p2pswarm.run.chain.chain_node import ChainNode
from p2pswarm.run.chain.participant import ChainParticipant
from p2pswarm.run.member_cards import as_far_as_they_fit, learn_all
from p2pswarm.run.messages.membership import Join
from p2pswarm.run.messages.trainers import (
    AskReachable,
    CoordinatorProbe,
    NotHeard,
    ReachableStages,
    Unheard,
    Whereabouts,
)
from p2pswarm.run.peer_health_io import is_there
from p2pswarm.trainer.coordinator_io.coordinator_io import CoordinatorIo
from p2pswarm.trainer.coordinator_io.trainer_context import TrainerContext
from p2pswarm.trainer.leadership.handover import KNOCK_S, SEEK_S, Handover, RecentWords
from p2pswarm.trainer.leadership.known_trainers import KnownTrainers

log = logging.getLogger(__name__)

LOOK_S = 0.5  # between two looks at who is missed: they cost nothing
OWN_PROBE_S = 1.0  # the least for servers that the coordinator has missed for seconds
PROBE_S = 2.0  # a standby may have to dial a server first, round the world
LEAD_S = 2.0  # a takeover takes one; then it has failed
REPLY_S = 3.0  # for the answer of a standby


class HandoverIo:
    """Looks while this trainer leads, and answers while it stands by."""

    def __init__(
        self,
        context: TrainerContext,
        seat: ChainParticipant,
        node: ChainNode,
        roll: KnownTrainers,
        find: Callable[[bytes], Contact | None],
        tasks: asyncio.TaskGroup,
    ) -> None:
        """`find` tells where a peer is dialled."""
        self._rpc = context.rpc
        self._run, self._stages = context.run_id, context.run.stages
        self._seat, self._node = seat, node
        self._roll, self._find, self._cards = roll, find, context.cards
        self._tasks = tasks
        self._rule = Handover(self._stages)
        self._knocks: RecentWords[CoordinatorProbe] = RecentWords(KNOCK_S)
        """Servers without a coordinator that have asked this trainer for a stage."""
        self._seekers: RecentWords[Unheard] = RecentWords(SEEK_S)
        """Members that hear nothing from their coordinator, and ask who leads."""
        self._coordination: CoordinatorIo | None = None
        self._looking: asyncio.Task[None] | None = None
        self._telling: asyncio.Task[None] | None = None
        self._probing = False
        self._closed = False
        self._began = Signal()
        self._rpc.serve_unary(AskReachable, self._whom_reach)
        self._rpc.serve_unary(NotHeard, self._not_heard)

    def start(self, coordination: CoordinatorIo) -> None:
        """This trainer leads from now on."""
        self.stop()
        self._rule.on_term()
        self._coordination = coordination
        self._looking = self._tasks.create_task(self._look(coordination))
        self._began.fire()

    def close(self) -> None:
        """The run is over, or it leaves: what it is asked from now on begins nothing."""
        self._closed = True
        self.stop()

    def stop(self) -> None:
        """It leads no more."""
        self._coordination = None
        for task in (self._looking, self._telling):
            if task is not None and task is not asyncio.current_task():
                task.cancel()
        self._looking = self._telling = None

    def on_knock(self, peer: bytes, join: Join) -> None:
        """A server asks this trainer for a stage, which it cannot give."""
        if join.stage is not None and join.version is not None:
            knock = CoordinatorProbe(join.stage, join.version, Whereabouts(peer, join.address))
            self._knocks.add(peer, knock, asyncio.get_running_loop().time())

    async def wait_to_lead(self) -> None:
        """If the coordinator has named this trainer, wait until it leads.

        Else a server would go back to the coordinator, which may be behind a cut, and wait there.
        """
        if self._seat.standby.named:
            with suppress(TimeoutError):
                async with asyncio.timeout(LEAD_S):
                    await self._began.wait()

    def on_search(self, peer: bytes, unheard_in: int | None) -> None:
        """A peer asks this trainer who leads; a coordinator that it does not hear is told so."""
        if unheard_in is None or self._closed:
            return
        now_s = asyncio.get_running_loop().time()
        self._seekers.add(peer, Unheard(peer, unheard_in), now_s)
        if self._coordination is None and self._telling is None:
            self._telling = self._tasks.create_task(self._tell())

    async def _tell(self) -> None:
        """Tell the coordinator, each second, who hears nothing from it."""
        loop = asyncio.get_running_loop()
        while seekers := self._seekers.all(loop.time()):
            leader, _ = self._seat.led_by
            contact = self._find(leader) if leader is not None else None
            begun_s = loop.time()
            if contact is not None and contact.peer != self._rpc.contact.peer:
                try:
                    await self._rpc.call(contact, NotHeard(self._run, seekers), REPLY_S)
                except SwarmError as error:
                    log.info("%s was not told who seeks it: %s", contact, error)
            await asyncio.sleep(max(0.0, begun_s + 1.0 - loop.time()))
        self._telling = None

    def _not_heard(self, peer: PeerId, said: NotHeard) -> NotHeard:
        if peer.raw not in self._roll.standbys or said.run != self._run:
            raise Refused("only a trainer that stands by may say this")
        if self._coordination is not None:
            self._coordination.on_deaf_members(said.members)
        return said

    async def _whom_reach(self, peer: PeerId, question: AskReachable) -> ReachableStages:
        """The coordinator asks: it may have a trainer dial others, and nobody else may."""
        if question.run != self._run or peer.raw != self._seat.led_by[0]:
            raise Refused("only the coordinator may ask this")
        if self._probing:
            raise Busy("the last question is being answered", PROBE_S)
        learn_all(self._cards, question, peer)
        self._probing = True
        try:
            reached = await self._probe(question.peers, PROBE_S)
        finally:
            self._probing = False
        knocks = self._knocks.all(asyncio.get_running_loop().time())
        return ReachableStages(tuple(reached), knocks)

    async def _look(self, coordination: CoordinatorIo) -> None:
        while self._coordination is coordination:
            await asyncio.sleep(LOOK_S)
            if self._misses(coordination):
                await self._ask(coordination)

    def _misses(self, coordination: CoordinatorIo) -> bool:
        """Return whether to ask the standbys, by those that are heard now."""
        members = coordination.coordinator.members
        ready = [members.ready(stage) for stage in range(self._stages)]
        here = [m.incarnation for m in members.waiting() if not coordination.silent(m.incarnation)]
        waiting, leader = {one.peer for one in here}, self._seat.leader
        voteless = leader is not None and leader.lacks_votes
        now_s = coordination.now_s()
        return self._rule.look(ready, coordination.silent, now_s, waiting, voteless=voteless)

    async def _ask(self, coordination: CoordinatorIo) -> None:
        """Ask all standbys that may lead, and the missed servers; hand over if one is better.

        If nothing comes from any, one of them may be better all the same.
        """
        head = self._seat.learner.chain.head
        others = [peer for peer in head.trainers if peer != self._me]
        standbys = [peer for peer in others if peer in self._roll.standbys]
        voters = [voter.peer for voter in head.voters if voter.peer != self._me]
        known = [Whereabouts.of(where) for peer in voters if (where := self._find(peer))]
        if not others:
            return
        peers = self._rule.question(known, coordination.now_s())
        peers = as_far_as_they_fit(self._cards, peers)
        question = AskReachable(self._run, coordination.term, peers)
        missed = self._rule.missed(known, coordination.now_s())
        async with asyncio.TaskGroup() as tasks:
            own = [tasks.create_task(self._answers(one, REPLY_S)) for one in missed]
            least = tasks.create_task(asyncio.sleep(OWN_PROBE_S))
            asked = [
                tasks.create_task(self._question(peer, question, self._reply_s(peer)))
                for peer in standbys
            ]
            answers = [await task for task in asked]
            await least
            # Not before the standbys: a server that wakes up now answers us as it answers them.
            ours = [one.peer for one, t in zip(missed, own, strict=True) if t.done() and t.result()]
            for task in own:
                task.cancel()
        heard = [(p, one) for p, one in zip(standbys, answers, strict=True) if one is not None]
        self._rule.on_knocks(
            (knock for _, answer in heard for knock in answer.knocks), coordination.coordinator.step
        )
        self._misses(coordination)  # a member may have been heard meanwhile
        now_s, theirs = coordination.now_s(), [(peer, answer.peers) for peer, answer in heard]
        to = self._rule.successor(ours, theirs, voters, now_s)
        if not heard:
            to = self._rule.unheard_successor(ours, [*standbys, *others], now_s)
        leader = self._seat.leader
        if to is not None and leader is not None and leader.leads and not leader.quiet:
            self._rule.on_handover(to, leader.head.height, coordination.now_s())
            self._seat.hand_over(to, asyncio.get_running_loop().time())
            self._node.pump()

    def _reply_s(self, standby: bytes) -> float:
        """Return how long to wait for a standby's answer: one that answers no call may be dead."""
        leader = self._seat.leader
        mute = leader is not None and standby in leader.votes.lost
        return OWN_PROBE_S if mute else REPLY_S

    async def _question(
        self, standby: bytes, question: AskReachable, within_s: float
    ) -> ReachableStages | None:
        """Return what one standby answers; None if nothing comes."""
        contact, nobody = self._roll.find(standby), ReachableStages((), ())
        if contact is None:
            return None
        try:
            answer = await self._rpc.call(contact, question, within_s)
        except SwarmError as error:
            log.info("%s did not say whom it reaches: %s", contact, error)
            return None if isinstance(error, PathError | Late) else nobody
        return answer if isinstance(answer, ReachableStages) else nobody

    async def _probe(self, peers: Sequence[Whereabouts], within_s: float) -> list[bytes]:
        """Return which of these peers answer within a time; this trainer is always there."""
        async with asyncio.TaskGroup() as tasks:
            asked = [tasks.create_task(self._answers(one, within_s)) for one in peers]
        return [one.peer for one, task in zip(peers, asked, strict=True) if task.result()]

    async def _answers(self, peer: Whereabouts, within_s: float) -> bool:
        contact = peer.contact
        if peer.peer == self._me or contact is None:
            return peer.peer == self._me
        return await is_there(self._rpc, contact, within_s)

    @property
    def _me(self) -> bytes:
        assert self._rpc.contact.peer is not None, "a trainer knows its own id"
        return self._rpc.contact.peer.raw
