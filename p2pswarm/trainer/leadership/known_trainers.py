"""The trainers of a run as one of them knows them: where all are, and which vote next."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from p2pswarm.base.ids import Contact
from p2pswarm.run.chain.chain import ChainHead
from p2pswarm.run.chain.electorate import VoterCandidates, Votes, next_voters, wanted_voters
from p2pswarm.run.chain.record import VoterId
from p2pswarm.run.messages.field_limits import TRAINERS_MAX, VOTERS_MAX
from p2pswarm.run.messages.trainers import Trainers, Whereabouts
from p2pswarm.trainer.members.quarantine import Quarantines

Find = Callable[[bytes], Contact | None]
"""Returns the contact of a member of the run."""


@dataclass(slots=True)
class _Known:
    """One trainer."""

    contact: Contact
    gone_s: float
    """Time since which it is not enlisted; infinite while it is."""


class KnownTrainers:
    """The trainers that may lead the run besides this one."""

    def __init__(self, own: Contact) -> None:
        assert own.peer is not None, "a trainer knows its own id"
        self._own = own
        self._me = own.peer.raw
        self._trainers: dict[bytes, _Known] = {}
        self._voters: dict[bytes, Contact] = {}
        """Contacts of voters, from the coordinator."""
        self.quarantines = Quarantines()
        """What a coordinator has to know of servers, from this trainer's terms and others'."""

    def on_standby(self, contact: Contact) -> None:
        """A trainer stands by from now on."""
        assert contact.peer is not None, "its handshake has proven its id"
        if contact.peer.raw != self._me:
            self._trainers[contact.peer.raw] = _Known(contact, math.inf)

    def on_standby_end(self, peer: bytes, now_s: float) -> None:
        """A standby's stream has ended."""
        if known := self._trainers.get(peer):
            known.gone_s = now_s

    def on_trainers(self, trainers: Trainers, now_s: float) -> None:
        """The coordinator says where all are."""
        for where in trainers.trainers:
            if (contact := where.contact) and where.peer != self._me:
                self._trainers[where.peer] = _Known(contact, now_s)
        self._voters = {where.peer: c for where in trainers.voters if (c := where.contact)}
        self.quarantines.on_coordinator(trainers.quarantined, now_s)

    def on_trainer(self, contact: Contact) -> None:
        """A trainer of the run is at this address, as its own signed manifest says."""
        if contact.peer is not None and contact.peer.raw != self._me:
            known = self._trainers.setdefault(contact.peer.raw, _Known(contact, 0.0))
            known.contact = contact

    def on_voter(self, voter: Whereabouts) -> None:
        """A voter of the run asks us to take it, or who leads: we may need its vote."""
        contact = voter.contact
        if contact is not None and voter.peer != self._me:
            self._voters[voter.peer] = contact

    def find(self, peer: bytes) -> Contact | None:
        """Return where a trainer or a voter is dialled, as far as this trainer was told."""
        if peer == self._me:
            return self._own
        known = self._trainers.get(peer)
        return known.contact if known else self._voters.get(peer)

    @property
    def standbys(self) -> list[bytes]:
        """The trainers that stand by now."""
        return [peer for peer, known in self._trainers.items() if known.gone_s == math.inf]

    def contacts(self) -> list[Contact]:
        """Return where the other trainers are."""
        return [known.contact for known in self._trainers.values()]

    def next_trainers(self, named: tuple[bytes, ...]) -> tuple[bytes, ...]:
        """Return the trainers that the next record names: new ones follow those of the last.

        If they are too many, those that have been gone for longest are left out.
        """
        order = list(dict.fromkeys((*named, self._me, *self.standbys)))
        while len(order) > TRAINERS_MAX:
            others = [peer for peer in order if peer != self._me]
            order.remove(min(others, key=self._gone_s))
        return tuple(order)

    def next_voters(
        self, head: ChainHead, named: tuple[bytes, ...], votes: Votes, servers: Sequence[bytes]
    ) -> tuple[VoterId, ...]:
        """Return the voters on the next record, which names these trainers.

        A voter that has not answered yet votes with the file that the head names. `servers` come in
        the order in which they are to be chosen.
        """
        lost = votes.lost
        files = {voter.peer: voter.memory for voter in head.voters} | votes.memories
        living = {peer: memory for peer, memory in files.items() if peer not in lost}
        trainers = self._living(named, votes)
        candidates = VoterCandidates(
            _voting(trainers, living),
            _voting(servers, living),
            [voter for voter in head.voters if living.get(voter.peer) == voter.memory],
            votes.answering.union(_voting([self._me], living)),
        )
        return next_voters(head.voters, candidates, wanted_voters(len(named), len(trainers)))

    def wanted_voters(self, named: tuple[bytes, ...], votes: Votes) -> int:
        """Return how many voters the run should have, if a record names these trainers."""
        return wanted_voters(len(named), len(self._living(named, votes)))

    def _living(self, named: tuple[bytes, ...], votes: Votes) -> list[bytes]:
        """The trainers that live: one that answers may not stand by with us yet."""
        lost = votes.lost
        answer = [peer for peer in named if peer in votes.memories]
        return [p for p in dict.fromkeys((self._me, *self.standbys, *answer)) if p not in lost]

    def say(self, run: bytes, term: int, head: ChainHead, find: Find) -> Trainers:
        """Return what the coordinator tells the others; `find` knows its members."""
        trainers = self.next_trainers(head.trainers)
        voters = [voter.peer for voter in head.voters]
        return Trainers(run, term, self._where(trainers, find), self._where(voters, find))

    def _where(self, peers: Sequence[bytes], find: Find) -> tuple[Whereabouts, ...]:
        found = (self.find(peer) or find(peer) for peer in peers)
        return tuple(Whereabouts.of(contact) for contact in found if contact is not None)

    def _gone_s(self, peer: bytes) -> float:
        known = self._trainers.get(peer)
        return known.gone_s if known else -math.inf


def longest_serving(
    ready: Sequence[tuple[int, bytes]], voters: Sequence[VoterId] = ()
) -> list[bytes]:
    """Return the ready servers that vote or may, by incarnation number, which rises with time."""
    voting = {voter.peer for voter in voters}
    longest = [peer for _, peer in sorted(ready)]
    return [p for place, p in enumerate(longest) if place < 2 * VOTERS_MAX or p in voting]


def _voting(peers: Sequence[bytes], memories: dict[bytes, bytes]) -> list[VoterId]:
    return [VoterId(peer, memories[peer]) for peer in peers if peer in memories]


PAUSE_S = 0.25  # after all known trainers were asked
HINTS_MAX = 4  # in a row: trainers that name each other must not send us round in circles


class CoordinatorSearch:
    """The trainers in turn; one that was named as the coordinator is asked at once."""

    def __init__(self) -> None:
        self._asked: list[bytes] = []
        self._hint: Contact | None = None
        self._hints = 0

    def on_hint(self, coordinator: Contact | None) -> None:
        """A trainer names the coordinator, or is it itself."""
        if coordinator is not None and self._hints < HINTS_MAX:
            self._hint = coordinator
            self._hints += 1

    def on_coordinator(self) -> None:
        """The coordinator was found: whoever is asked next was asked by nobody."""
        self._asked.clear()
        self._hints = 0

    def ask(self, known: Sequence[Contact]) -> Contact | None:
        """Return whom to ask now; None after all were asked: pause then."""
        hint, self._hint = self._hint, None
        if hint is not None:
            return hint
        for contact in known:
            if contact.peer is not None and contact.peer.raw not in self._asked:
                self._asked.append(contact.peer.raw)
                return contact
        self.on_coordinator()
        return None
