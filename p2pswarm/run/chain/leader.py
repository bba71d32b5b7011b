"""One attempt of a trainer to lead a term, from the first `Prepare` until it is over.

Errors:  ValueError for a proposal out of turn, BrokenRecord for one that breaks a rule.
Source:  Lamport, "Paxos Made Simple" (2001); Lamport, Malkhi and Zhou, "Vertical Paxos" (2009),
         for the majority of each set of voters; docs/chain.md.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from p2pswarm.net.wire.message import Message
from p2pswarm.run.chain.actions import (
    Ask,
    Deposed,
    Fetch,
    LeaderAction,
    Leading,
    RecordDecided,
    VotesChanged,
    VotesMissing,
)
from p2pswarm.run.chain.chain import BrokenRecord, ChainHead, Genesis, check_next
from p2pswarm.run.chain.electorate import Votes, is_majority
from p2pswarm.run.chain.messages import (
    TERM_JUMP_MAX,
    Accepted,
    Denial,
    Denied,
    HandOver,
    Heartbeat,
    Prepare,
    Promise,
    Propose,
)
from p2pswarm.run.chain.record import CommitRecord, VoterId, authentic, digest

HEARTBEAT_S = 1.0  # a standby waits for four of them, a voter is calm for three
RESEND_S = 1.0  # calls are reliable while a link lasts: this is for links that were lost
WITHDRAWAL = 4  # so many times it is proposed to voters of which no majority answers any more
NO_TERM = 0  # nobody promises it: a voter answers with the term that it has promised
UNDECIDED = 2  # so many times it is proposed before its leader asks whether others get more votes
PATIENCE = 10  # so many times a record is proposed, a second apart, before people are told
Electorate = tuple[VoterId, ...]


class LeaderPhase(Enum):
    """How far an attempt is."""

    PREPARING = "asking for promises"
    BEHIND = "fetching decided records that it lacks"
    ANCHORING = "proposing again what may have been decided"
    LEADING = "leads the term"
    OVER = "gave up, or was deposed"


@dataclass(frozen=True, slots=True)
class Attempt:
    """What tells one attempt from all others."""

    peer: bytes
    """The trainer."""
    term: int
    """Above all that this trainer has heard of."""
    nonce: bytes
    """16 random bytes."""


class Leader:
    """One trainer's attempt to lead one term.

    It asks the voters of its head for promises. Their answers may show a record beyond the head,
    which may have been decided; then its voters must promise too. The records in between are
    fetched, so the head is then the record before it, and the voters of that must have promised.
    When no answer shows a later one, that record is proposed again, first of all. So whoever leads
    knows all that was decided.

    A record is decided when a majority of the voters that it names, and a majority of those that
    the record before names, have accepted it under this term.
    """

    def __init__(self, attempt: Attempt, genesis: Genesis, head: ChainHead, now_s: float) -> None:
        self.attempt = attempt
        self.phase = LeaderPhase.PREPARING
        self.head = head
        """The last record of which it knows that it is decided."""
        self.next_deadline_s = now_s + RESEND_S
        """When to call `on_deadline`."""
        self._genesis = genesis
        self._promises: dict[VoterId, Promise] = {}
        self._refused: dict[VoterId, None] = {}
        self.pending: CommitRecord | None = None
        """The record that is proposed and not yet decided."""
        self._accepted: dict[VoterId, None] = {}
        self._asked: dict[VoterId, None] = {}
        self._prospects: tuple[bytes, ...] = ()
        self.votes = Votes()
        """Who answers, and with which file: for the next record."""
        self.quiet = False
        """True if it leads and no majority of the voters answers.

        It decides nothing then, but its heartbeats may reach voters and standbys whose answers it
        does not hear: they would wait for it. So it only asks what they have promised.
        """
        self._fetching: int | None = None
        self._fetches = 0
        self._actions: list[LeaderAction] = []
        self._tries = 0
        self._prepare()

    def actions(self) -> list[LeaderAction]:
        """Return what to do now, in this order; drained by reading."""
        drained, self._actions = self._actions, []
        return drained

    @property
    def silent(self) -> tuple[VoterId, ...]:
        """The other voters that have not said yes, of each set that lacks a majority, in order."""
        if self.pending is not None:
            electorates, yes = list(self.pending.electorates), set(self._accepted)
        else:
            electorates, yes = self._electorates(self._best()), set(self._promises)
        lacking = [voters for voters in electorates if not is_majority(voters, yes)]
        without = dict.fromkeys(voter for voters in lacking for voter in voters)
        return tuple(v for v in without if v not in yes and v.peer != self.attempt.peer)

    def receive(self, sender: bytes, answer: Message) -> None:
        """A voter has answered; answers to other attempts are ignored."""
        if self.phase is LeaderPhase.OVER or sender not in self._peers():
            return
        if not isinstance(answer, Promise | Accepted | Denied):
            return
        if self.votes.on_answer(sender, answer.memory):
            self._votes_changed()
            if self.quiet and self._majority_answers():
                self.quiet = False
                self._ask_to_accept()
                self._say_alive()
        if VoterId(sender, answer.memory) not in self.voters:
            return
        match answer:
            case Promise():
                self._promised(sender, answer)
            case Accepted():
                self._counted(sender, answer)
            case _:
                self._denied(sender, answer)

    def propose(self, record: CommitRecord) -> None:
        """Have the next record decided; answered by `RecordDecided`."""
        if self.phase is not LeaderPhase.LEADING or self.pending is not None:
            waits = f", {self.pending.name()} is not decided" if self.pending else ""
            raise ValueError(f"nothing can be proposed: {self.phase.value}{waits}")
        if record.term != self.attempt.term:
            raise ValueError(f"a record of term {record.term}, not {self.attempt.term}")
        check_next(self._genesis, self.head, record)
        self._propose(record)

    def on_head(self, head: ChainHead) -> None:
        """The learner has learned of decided records up to `head`."""
        preparing = self.phase in (LeaderPhase.PREPARING, LeaderPhase.BEHIND)
        if preparing and head.height > self.head.height:
            self.head = head
            self.phase = LeaderPhase.PREPARING
            self._prepare()

    def meet(self, prospects: tuple[bytes, ...]) -> None:
        """Say to these peers, too, that the leader lives: the next record may make them voters."""
        new = [peer for peer in prospects if peer not in self._peers()]
        self._prospects = prospects
        if self.leads:
            self._say_alive_to(new)

    def doubt(self, peer: bytes) -> None:
        """A peer's stream has ended: see at once whether it is there."""
        if self.leads and peer in self._peers():
            self.votes.doubted(peer)
            self._say_alive_to([peer])

    def on_silence(self, peer: bytes) -> None:
        """A peer could not be asked, or has not answered in time."""
        if self.votes.on_silence(peer):
            self._votes_changed()

    def give_up(self, why: str) -> None:
        """Lead no more, whatever is answered."""
        self._over(self.attempt.term, why)

    def hand_over(self, to: bytes) -> None:
        """Lead no more, and say so to all: voters may follow `to` at once."""
        message = HandOver(self._genesis.run, self.attempt.term, to)
        for peer in self._peers():
            self._actions.append(Ask(peer, message))
        self._over(self.attempt.term, "another trainer reaches the servers that this one misses")

    def on_deadline(self, now_s: float) -> None:
        """Ask again those that have not answered; a leader says that it lives."""
        self.next_deadline_s = now_s + (HEARTBEAT_S if self.leads else RESEND_S)
        self._asked.clear()
        self.quiet = self.leads and not self._majority_answers()
        if self._fetching is not None:
            came = self._fetching != self.head.height
            self._fetching = self.head.height if came else None
        match self.phase:
            case LeaderPhase.PREPARING | LeaderPhase.BEHIND:
                self._prepare()
            case LeaderPhase.ANCHORING | LeaderPhase.LEADING:
                self._ask_to_accept()
                self._count_tries()
        if self.leads:
            self._say_alive()
            self._votes_changed()

    @property
    def leads(self) -> bool:
        """Return whether what it proposes may be decided."""
        return self.phase is LeaderPhase.LEADING

    def _promised(self, sender: bytes, answer: Promise) -> None:
        ours = (answer.term, answer.attempt) == (self.attempt.term, self.attempt.nonce)
        if not ours or self.phase not in (LeaderPhase.PREPARING, LeaderPhase.BEHIND):
            return
        voter = VoterId(sender, answer.memory)
        if answer.accepted is not None and not authentic(answer.accepted):
            self._refused[voter] = None
        else:
            self._refused.pop(voter, None)
            self._promises[voter] = answer
        self._prepare()

    def _prepare(self) -> None:
        best = self._best()
        electorates = self._electorates(best)
        lacking = [voters for voters in electorates if not is_majority(voters, self._promises)]
        if not all(is_majority(voters, set(voters) - self._refused.keys()) for voters in lacking):
            self._over(self.attempt.term, "too many voters follow another trainer")
        elif lacking:
            self.phase = LeaderPhase.PREPARING
            self._ask_to_promise(electorates)
        elif best is None:
            self._lead()
        elif best.height > self.head.height:
            self.phase = LeaderPhase.BEHIND
            self._fetch(best)
        else:
            self._anchor(best)

    def _best(self) -> CommitRecord | None:
        """The record beyond the head that may have been decided: of the greatest (term, height)."""
        beyond = [
            ((promise.accepted_term, promise.accepted.height), promise.accepted)
            for promise in self._promises.values()
            if promise.accepted is not None and promise.accepted.height >= self.head.height
        ]
        return max(beyond, key=lambda entry: entry[0])[1] if beyond else None

    def _ask_to_promise(self, electorates: list[Electorate]) -> None:
        """Without the others' promises, our own would only be in the way later."""
        message = Prepare(self._genesis.run, self.attempt.term, self.attempt.nonce)
        self._ask_own_voter_last(message, electorates, self._promises)

    def _fetch(self, best: CommitRecord) -> None:
        """Ask one after the other, those that hold `best` first; again if nothing comes of it."""
        if self._fetching is None:
            promised = sorted(self._promises.items(), key=lambda item: item[1].accepted != best)
            others = [voter.peer for voter, _ in promised if voter.peer != self.attempt.peer]
            self._fetching = self.head.height
            if others:
                self._actions.append(Fetch(others[self._fetches % len(others)], self.head.height))
                self._fetches += 1

    def _anchor(self, best: CommitRecord) -> None:
        try:
            check_next(self._genesis, self.head, best)
        except BrokenRecord as error:
            self._over(self.attempt.term, f"the voters' record does not fit: {error}")
            return
        self.phase = LeaderPhase.ANCHORING
        self._propose(best)

    def _propose(self, record: CommitRecord) -> None:
        self.pending = record
        self._accepted.clear()
        self._asked.clear()
        self._ask_to_accept()

    def _ask_to_accept(self) -> None:
        """Ask those first whose yes binds the next leader to nothing that cannot be decided.

        A leader that has slept may be denied by all others: what its own voter alone had accepted,
        the next leader would have to propose again. The same holds of voters that the record leaves
        out, while those that it names may be dead.
        """
        if (record := self.pending) and not self.quiet:
            message = Propose(self._genesis.run, self.attempt.term, record)
            own = [voter for voter in record.voters if voter.peer == self.attempt.peer]
            enough = is_majority(record.voters, self._accepted.keys() | set(own))
            electorates = record.electorates if enough else [record.voters]
            self._ask_own_voter_last(message, electorates, self._accepted)

    def _ask_own_voter_last(
        self, message: Message, electorates: Sequence[Electorate], yes: Mapping[VoterId, object]
    ) -> None:
        """Ask those that have not said yes; our own voter only where nothing else lacks."""
        voters = dict.fromkeys(voter for voters in electorates for voter in voters)
        own = [voter for voter in voters if voter.peer == self.attempt.peer]
        enough = all(is_majority(voters, yes.keys() | set(own)) for voters in electorates)
        for voter in voters:
            if voter not in yes and (enough or voter not in own):
                self._ask(voter, message)

    def _count_tries(self) -> None:
        self._tries = 0 if self.pending is None else self._tries + 1
        if self._tries == PATIENCE:
            self._actions.append(VotesMissing(self.silent))
        elif self._tries >= WITHDRAWAL and self._only_new_voters_lack():
            self._over(self.attempt.term, "the voters that its record names are gone")

    def _only_new_voters_lack(self) -> bool:
        """Return whether the voters that the record names are lost, and those before them are not.

        In a higher term another record may take its place, unless a voter that answers has it.
        """
        record, lost = self.pending, self.votes.lost
        if record is None:
            return False
        there = [v for voters in record.electorates for v in voters if v.peer not in lost]
        before = is_majority(record.voters_before, there)
        return before and not is_majority(record.voters, there)

    def _counted(self, sender: bytes, answer: Accepted) -> None:
        record = self.pending
        if record is None or (answer.term, answer.digest) != (self.attempt.term, digest(record)):
            return
        self._accepted[VoterId(sender, answer.memory)] = None
        if self._is_decided(record):
            self.pending = None
            self._tries = 0
            self.head = ChainHead.of(record)
            self._actions.append(RecordDecided(record))
            if self.phase is LeaderPhase.ANCHORING:
                self._lead()
            else:
                self._say_alive()
        else:
            self._ask_to_accept()  # our own voter may be the one that lacks now

    def _is_decided(self, record: CommitRecord) -> bool:
        return all(is_majority(voters, self._accepted) for voters in record.electorates)

    def _denied(self, sender: bytes, answer: Denied) -> None:
        voter = VoterId(sender, answer.memory)
        if answer.promised > self.attempt.term:
            # one voter could name the last of all terms: none would be left to this trainer
            promised = min(answer.promised, self.attempt.term + TERM_JUMP_MAX)
            self._over(promised, "a voter has promised a higher term")
        elif answer.asked == self.attempt.term and answer.why == Denial.CONFLICT:
            self._over(self.attempt.term, "a voter has another record in this place: a fork")
        elif answer.asked == self.attempt.term and voter not in self._promises:
            self._refused[voter] = None
            if self.phase is LeaderPhase.PREPARING:
                self._prepare()

    def _lead(self) -> None:
        if self.attempt.peer not in self.head.trainers:
            # Voters were told of it by the last coordinator, but nobody would take its records.
            self._over(self.attempt.term, "no record names this trainer yet")
            return
        self.phase = LeaderPhase.LEADING
        self._actions.append(Leading(self.attempt.term))
        self._say_alive()

    def _say_alive(self) -> None:
        self._say_alive_to(self._peers())  # this node's own voter, too, is calm while it leads

    def _say_alive_to(self, peers: list[bytes]) -> None:
        run, head = self._genesis.run, self.head
        message: Message = Heartbeat(run, self.attempt.term, head.height, head.digest)
        if self.quiet:
            message = Prepare(run, NO_TERM, self.attempt.nonce)
        self._actions += [Ask(peer, message) for peer in peers]

    @property
    def lacks_votes(self) -> bool:
        """True while a record waits for the word of voters that are not known to be lost."""
        return self._tries >= UNDECIDED

    def _majority_answers(self) -> bool:
        """Return whether the head's voters that are not lost are a majority of them."""
        lost, voters = self.votes.lost, self.head.voters
        return is_majority(voters, [one for one in voters if one.peer not in lost])

    def _votes_changed(self) -> None:
        if self.leads:
            self._actions.append(VotesChanged())

    def _peers(self) -> list[bytes]:
        voters = (voter.peer for voter in self.voters)
        return list(dict.fromkeys((*self.head.trainers, *voters, *self._prospects)))

    @property
    def voters(self) -> list[VoterId]:
        """Everybody whose word counts."""
        electorates = self._electorates(self.pending or self._best())
        return [voter for voters in electorates for voter in voters]

    def _electorates(self, record: CommitRecord | None) -> list[Electorate]:
        """Of each of these a majority must promise, if `record` may be decided beyond the head.

        The head's voters show what came after the head, the record's own what came after it. Once
        all records before it are known, the head's voters are those of the record before it: they
        show a rival in its place, which a leader in between may have decided.
        """
        return [self.head.voters, *([record.voters] if record else [])]

    def _over(self, promised: int, why: str) -> None:
        if self.phase is not LeaderPhase.OVER:
            self.phase = LeaderPhase.OVER
            self.pending = None
            self._actions.append(Deposed(promised, why))

    def _ask(self, voter: VoterId, message: Message) -> None:
        if voter not in self._asked:
            self._asked[voter] = None
            self._actions.append(Ask(voter.peer, message))
