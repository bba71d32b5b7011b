"""A trainer's part in the chain: its vote, when it stands for a term, and its attempts to lead.

Source:  Ongaro and Ousterhout, "In Search of an Understandable Consensus Algorithm" (2014), 5.2
  and 9.3, for chance; docs/chain.md.
"""

import math
import random
from enum import Enum

from p2pswarm.base.recent_items import RecentItems
from p2pswarm.net.wire.message import Message
from p2pswarm.run.chain.actions import Deposed, Leading, RecordDecided, VotesMissing
from p2pswarm.run.chain.chain_log import Restored
from p2pswarm.run.chain.leader import Attempt, Leader
from p2pswarm.run.chain.messages import ATTEMPT_BYTES, HandOver, Heartbeat
from p2pswarm.run.chain.record import CommitRecord, VoterId
from p2pswarm.run.chain.voter import ChainVoter
from p2pswarm.run.messages.field_limits import TERM_MAX, VOTERS_MAX

RANK_S = 0.3  # longer than a round trip round the world: the first asks before the second stands
CHANCE_S = 0.3  # two of one rank, or of ranks that do not agree, rarely stand at once
SILENCE_S = 4.0  # a voter is calm for 3 s, and heartbeats come each second
KEEN_S = 3.0  # so long after our link ended, a voter's link may end and let it listen any moment
ATTEMPT_S = 3.0  # an attempt takes a few round trips; one that hangs is in the way of others
PAUSES_MAX = 4  # a pause doubles so often, to about 10 s: voters that are away are not flooded


class StandbyState(Enum):
    """What a trainer does about leading."""

    FOLLOWING = "another leads, or nobody yet"
    STANDING = "asks voters to follow it"
    LEADING = "leads a term"


class Standby:
    """One trainer's patience: when it stands for a term, gives way, and tries again.

    It stands when its link to the coordinator ended, or when the coordinator was silent for so long
    that voters will listen. Trainers wait by their rank, and a little by chance, so that usually
    one of them stands alone. Nothing here is needed for safety: voters decide who leads.
    """

    def __init__(self, rank: int, rng: random.Random, now_s: float) -> None:
        self.rank = rank
        """The place among the trainers of the head; 0 stands first."""
        self.next_deadline_s: float | None = None
        """When to call `on_deadline`; None while this trainer leads."""
        self.coordinator: bytes | None = None
        """Who was heard last as the leader of a term."""
        self.term = 0
        """The greatest term that was heard of, led or promised."""
        self.named = False
        """True if the coordinator has handed over to this trainer, which has not led since."""
        self._rng = rng
        self.state = StandbyState.FOLLOWING
        self._failures = 0
        self._keen_until_s = -math.inf
        self._sought = False
        self._wait(now_s, SILENCE_S)

    def start(self, now_s: float) -> None:
        """There is nobody to wait for: a run that is founded, or resumed by the first trainer."""
        self.next_deadline_s = now_s

    def on_leader(self, coordinator: bytes, term: int, now_s: float) -> bool:
        """This node's voter follows another trainer in `term`; True if our attempt is over."""
        gives_way = self.state is not StandbyState.FOLLOWING
        if gives_way and term < self.term:
            return False
        self.coordinator, self.term, self.named = coordinator, max(term, self.term), False
        self.state = StandbyState.FOLLOWING
        self._failures, self._sought = 0, False
        self._wait(now_s, SILENCE_S)
        return gives_way

    def link_lost(self, peer: bytes, now_s: float) -> None:
        """A link ended: if it led to the coordinator, this trainer need not wait for silence."""
        if peer == self.coordinator and self.state is StandbyState.FOLLOWING:
            self.coordinator = None
            self._keen_until_s = now_s + KEEN_S
            self._wait(now_s, 0.0)

    def on_seekers(self, now_s: float) -> None:
        """Most voters look for a coordinator: one that follows none, as one that has just begun,
        need not wait until it would have heard it.
        """
        if self.state is StandbyState.FOLLOWING and self.coordinator is None and not self._sought:
            self._sought = True
            before_s = math.inf if self.next_deadline_s is None else self.next_deadline_s
            self._wait(now_s, 0.0)
            assert self.next_deadline_s is not None, "it waits"
            self.next_deadline_s = min(before_s, self.next_deadline_s)

    def on_handover(self, by: bytes, to: bytes, now_s: float, *, ours: bool) -> None:
        """A coordinator leads no more, and names its successor; `ours`: that is this trainer.

        The others wait for the successor as for a coordinator.
        """
        if by != self.coordinator or self.state is not StandbyState.FOLLOWING:
            return
        if ours:
            self.coordinator, self.named = None, True
            self.next_deadline_s = now_s + RANK_S  # all voters have been told by then
        else:
            self.give_way(to, now_s)

    def give_way(self, to: bytes, now_s: float) -> None:
        """This trainer does not lead, for as long as another may need to: it waits for that one."""
        self.coordinator = to
        self._wait(now_s, SILENCE_S)

    def on_deadline(self, now_s: float) -> int | None:
        """The term to stand for now; None if an attempt has just been given up, or none is left.

        An attempt that hangs is over: the caller drops its `Leader`.
        """
        if self.state is StandbyState.STANDING:
            self.on_failure(self.term, now_s)
            return None
        if self.term >= TERM_MAX:
            self.next_deadline_s = None
            return None
        self.term += 1
        self.state = StandbyState.STANDING
        self.next_deadline_s = now_s + ATTEMPT_S
        return self.term

    def on_failure(self, promised: int, now_s: float) -> None:
        """The attempt, or the leadership, is over; `promised` is a term that a voter has named."""
        self.term = max(promised, self.term)
        self.state = StandbyState.FOLLOWING
        if now_s < self._keen_until_s:
            self._wait(now_s, 0.0)
            return
        self._wait(now_s, (2.0**self._failures - 1) * (RANK_S + CHANCE_S))
        self._failures = min(self._failures + 1, PAUSES_MAX)
        self.named = self.named and self._failures == 1  # a voter may have heard of it too late

    def leads(self) -> None:
        """The attempt succeeded: this trainer waits for nobody."""
        self.coordinator, self.named = None, False
        self.state = StandbyState.LEADING
        self._failures = 0
        self.next_deadline_s = None

    def _wait(self, now_s: float, least_s: float) -> None:
        pause_s = least_s + self.rank * RANK_S + self._rng.random() * CHANCE_S
        self.next_deadline_s = now_s + pause_s


SEEKERS_S = 2.0  # a server that has lost its coordinator asks at least as often
HANGS = 2  # attempts in a row that found no majority, about 7 s, before people are told


class ChainParticipant(ChainVoter):
    """A trainer in the chain: a voter that also stands for terms, and proposes when it leads.

    Raises Fork and BrokenRecord for what a peer sent; nothing has changed then.
    """

    def __init__(
        self, voter: VoterId, restored: Restored, rng: random.Random, now_s: float
    ) -> None:
        super().__init__(voter, restored)
        self.leader: Leader | None = None
        """The attempt under way, or the leadership; None while another leads."""
        self._rng = rng
        self._me = voter.peer
        self.standby = Standby(self._rank(), rng, now_s)
        self.standby.term = restored.register.promised
        self._hung = 0
        self._seekers = RecentItems[bytes, float](2 * VOTERS_MAX)
        """When each voter looked for its coordinator last."""

    @property
    def voters(self) -> set[bytes]:
        """The peers whose votes this trainer would need to lead, or needs now.

        An attempt may learn from a promise that others vote than those that this trainer knows.
        """
        accepted = self.acceptor.register.accepted
        named = (*self.learner.chain.head.voters, *(accepted.voters if accepted else ()))
        needed = self.leader.voters if self.leader else ()
        return {voter.peer for voter in (*named, *needed)}

    @property
    def next_deadline_s(self) -> float | None:
        """Return when to call `on_deadline`."""
        leader = [self.leader.next_deadline_s] if self.leader else []
        standby = self.standby.next_deadline_s
        return min([*leader, *([] if standby is None else [standby])], default=None)

    def on_call(self, sender: bytes, message: Message, now_s: float) -> None:
        """A trainer calls, this one included; answered by one `Reply`."""
        if not self._vote(sender, message, now_s) or sender == self._me:
            return
        if isinstance(message, HandOver):
            self.standby.on_handover(sender, message.to, now_s, ours=message.to == self._me)
        else:
            self._follow(sender, message, now_s)

    def on_answer(self, sender: bytes, answer: Message, now_s: float) -> None:
        """A voter has answered an `Ask`."""
        if self.leader:
            self.leader.receive(sender, answer)
            self._settle(now_s)

    def on_silence(self, peer: bytes) -> None:
        """An `Ask` has failed, or nobody knows where the peer is."""
        if self.leader:
            self.leader.on_silence(peer)
            self._actions += self.leader.actions()

    def meet(self, prospects: tuple[bytes, ...]) -> None:
        """Let these peers hear of us, too, if we lead: the next record may make them voters."""
        if self.leader:
            self.leader.meet(prospects)
            self._actions += self.leader.actions()

    def on_seeker(self, peer: bytes, now_s: float) -> None:
        """A server looks for its coordinator; if most voters do, nobody leads."""
        voters, recent_s = self.learner.chain.head.voters, now_s - SEEKERS_S
        if all(peer != voter.peer for voter in voters):
            return
        self._seekers[peer] = now_s
        seeking = sum(self._seekers.get(voter.peer, -math.inf) > recent_s for voter in voters)
        seeking += self.acceptor.voter in voters and not self.acceptor.calm(now_s)
        if 2 * seeking > len(voters):
            self.standby.on_seekers(now_s)

    def doubt(self, peer: bytes) -> None:
        """A peer's stream with us has ended: see at once whether it is there."""
        if self.leader:
            self.leader.doubt(peer)
            self._actions += self.leader.actions()

    def on_record(self, record: CommitRecord, now_s: float) -> None:
        """A record came that a `Fetch` asked for."""
        super().on_record(record, now_s)
        if self.leader:
            self.leader.on_head(self.learner.chain.head)
            self._settle(now_s)

    def propose(self, record: CommitRecord, now_s: float) -> None:
        """Have the next record decided; ValueError unless this trainer leads."""
        if self.leader is None:
            raise ValueError("nothing can be proposed: another leads")
        self.leader.propose(record)
        self._settle(now_s)

    def hand_over(self, to: bytes, now_s: float) -> None:
        """Lead no more, for another trainer's sake; ValueError unless this trainer leads."""
        if self.leader is None or not self.leader.leads:
            raise ValueError("nothing can be handed over: another leads")
        self.leader.hand_over(to)
        self._settle(now_s)
        self.standby.give_way(to, now_s)

    def link_lost(self, peer: bytes, now_s: float) -> None:
        """The link to a peer ended."""
        super().link_lost(peer, now_s)
        self.standby.link_lost(peer, now_s)

    def on_deadline(self, now_s: float) -> None:
        """Stand, give up, or ask again, if it is time."""
        due_s = self.standby.next_deadline_s
        if due_s is not None and due_s <= now_s:
            self._hangs()
            term = self.standby.on_deadline(now_s)
            self.leader = None
            self.acceptor.stand(term or 0)
            if term is not None:
                nonce = self._rng.randbytes(ATTEMPT_BYTES)
                chain = self.learner.chain
                attempt = Attempt(self._me, term, nonce)
                self.leader = Leader(attempt, chain.genesis, chain.head, now_s)
        elif self.leader and self.leader.next_deadline_s <= now_s:
            self.leader.on_deadline(now_s)
        self._settle(now_s)

    def _follow(self, sender: bytes, message: Message, now_s: float) -> None:
        """Our voter follows another trainer: wait for it, and end an attempt of ours."""
        self.standby.rank = self._rank()
        term = message.term if isinstance(message, Heartbeat) else self.acceptor.register.promised
        self._hung = 0
        if self.standby.on_leader(sender, term, now_s) and self.leader:
            self.leader.give_up("this trainer follows another one")
            self._actions += self.leader.actions()
            self.leader = None
            self.acceptor.stand(0)

    def _hangs(self) -> None:
        """An attempt of ours is given up: if voters were silent, and again, people are told."""
        if self.leader is not None and (silent := self.leader.silent):
            self._hung += 1
            if self._hung == HANGS:
                self._actions.append(VotesMissing(silent))

    def _settle(self, now_s: float) -> None:
        """Pass on what our attempt asks for, and draw the consequences."""
        for action in self.leader.actions() if self.leader else []:
            self._actions.append(action)
            match action:
                case RecordDecided(record=record):
                    self.learner.on_record(record)
                case Leading():
                    self._hung = 0
                    self.standby.leads()
                    self.acceptor.stand(0)
                case Deposed(promised=promised):
                    self.leader = None
                    self.acceptor.stand(0)
                    self.standby.on_failure(promised, now_s)
        self._actions += self.learner.actions()

    def _rank(self) -> int:
        trainers = self.learner.chain.head.trainers
        return trainers.index(self._me) if self._me in trainers else len(trainers)
