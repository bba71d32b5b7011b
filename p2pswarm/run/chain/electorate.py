"""Electorate: the voters of the next record, and the file with which each of them answers.

Trainers vote first, then the servers that have served the longest. More voters than one are good
only if they are three: of two, either one stops the run. So there are 1, 3 or 5, and a dead one is
replaced at once, or removed with another while the rest can.

Two trainers that live are two of three voters, so all servers may die at once. One that lives alone
is one vote: then four servers vote with it, so that it and a server, or two servers, may die.
"""

from collections.abc import Container, Sequence
from dataclasses import dataclass

from p2pswarm.run.chain.record import VoterId

MISSES_MAX = 3  # with a heartbeat a second: a little less than the 4 s that voters are calm
THREE_FROM_TRAINERS = 2  # a second trainer can take over, if a third voter says that it may
FIVE_FROM_TRAINERS = 4


class Votes:
    """The peers that answer a leader, and the file that each of them votes with.

    A vote is lost when its peer has left several calls in a row without an answer. One that has not
    answered in this term at all is lost after the first: the trainer that led before is dead then,
    and most of the others have answered within a round trip. So is one whose stream has just ended.
    A vote is found again by the next answer. To take a living voter for dead costs a record, so
    this need not be sure.
    """

    def __init__(self) -> None:
        self.memories: dict[bytes, bytes] = {}
        """Which file each peer votes with, as far as it has answered."""
        self._misses: dict[bytes, int] = {}

    @property
    def lost(self) -> frozenset[bytes]:
        """The peers that do not answer."""
        return frozenset(peer for peer in self._misses if self._lost(peer))

    @property
    def answering(self) -> frozenset[VoterId]:
        """The voters that have answered and are not lost."""
        lost = self.lost
        return frozenset(VoterId(p, file) for p, file in self.memories.items() if p not in lost)

    def on_answer(self, peer: bytes, memory: bytes) -> bool:
        """A peer has answered; returns whether that is news."""
        news = self._lost(peer) or self.memories.get(peer) != memory
        self._misses.pop(peer, None)
        self.memories[peer] = memory
        return news

    def on_silence(self, peer: bytes) -> bool:
        """A call has failed; returns whether the peer is lost by that."""
        before = self._lost(peer)
        self._misses[peer] = self._misses.get(peer, 0) + 1
        return self._lost(peer) and not before

    def doubted(self, peer: bytes) -> None:
        """A peer's stream has ended: one failure more, and it is lost."""
        if peer in self.memories:
            self._misses[peer] = max(self._misses.get(peer, 0), MISSES_MAX - 1)

    def _lost(self, peer: bytes) -> bool:
        misses = self._misses.get(peer, 0)
        return misses >= (MISSES_MAX if peer in self.memories else 1)


def is_majority(voters: Sequence[VoterId], yes: Container[VoterId]) -> bool:
    """Return whether more than half of the voters are in `yes`."""
    return 2 * sum(voter in yes for voter in voters) > len(voters)


def wanted_voters(trainers: int, living: int) -> int:
    """How many voters a run should have that knows so many trainers, of which so many live."""
    alone = living == 1 < trainers
    if alone or trainers >= FIVE_FROM_TRAINERS:
        return 5
    return 3 if trainers >= THREE_FROM_TRAINERS else 1


@dataclass(frozen=True, slots=True)
class VoterCandidates:
    """Voters to choose among; who is in none of these counts as dead."""

    trainers: Sequence[VoterId]
    """Alive, the coordinator first."""
    servers: Sequence[VoterId]
    """Members, those that have served longest first."""
    others: Sequence[VoterId] = ()
    """Voters that are not dead, though neither trainers nor members: they seek the coordinator."""
    answering: Container[VoterId] | None = None
    """Those that have answered in this term; None: all."""


def next_voters(
    voters: tuple[VoterId, ...], candidates: VoterCandidates, wanted: int
) -> tuple[VoterId, ...]:
    """The voters of the next record.

    `voters` are those of the last one. `wanted` is `wanted_voters` of all trainers, also of those
    that are away. One record replaces one, adds two or removes two; the rest is for the records
    after it. Voters of whom no majority answers are never chosen: they could decide nothing more.
    """
    chosen = _chosen(voters, candidates, wanted)
    answering = candidates.answering
    return chosen if answering is None or is_majority(chosen, answering) else voters


def _chosen(
    voters: tuple[VoterId, ...], candidates: VoterCandidates, wanted: int
) -> tuple[VoterId, ...]:
    trainers = candidates.trainers
    members = list(dict.fromkeys((*trainers, *candidates.servers)))
    living = list(dict.fromkeys((*members, *candidates.others)))
    dead = [voter for voter in voters if voter not in living]
    absent = [*dead, *(voter for voter in voters if voter in living and voter not in members)]
    spare = [voter for voter in members if voter not in voters]
    if len(voters) > wanted:
        return _without_two(voters, absent, living)
    if absent and spare:
        return _replaced(voters, dead[-1] if dead else absent[-1], spare[0])
    if dead:
        # while a majority can be lost no more, fewer voters are safer
        alive = len(voters) - len(dead)
        return _without_two(voters, absent, living) if 2 * (alive - 1) <= len(voters) else voters
    if len(voters) < wanted and len(spare) > 1:
        return (*voters, *spare[:2])
    waiting = [voter for voter in trainers[:wanted] if voter not in voters]
    posts = [voter for voter in voters if voter not in trainers]
    return _replaced(voters, posts[-1], waiting[0]) if waiting and posts else voters


def _replaced(voters: tuple[VoterId, ...], out: VoterId, new: VoterId) -> tuple[VoterId, ...]:
    return tuple(new if voter == out else voter for voter in voters)


def _without_two(
    voters: tuple[VoterId, ...], absent: list[VoterId], living: list[VoterId]
) -> tuple[VoterId, ...]:
    """The voters without two: absent ones first, then those that come last among the living."""
    if len(voters) == 1:
        return voters
    last = sorted((v for v in voters if v in living), key=living.index, reverse=True)
    out = list(dict.fromkeys((*absent, *last)))[:2]
    return tuple(voter for voter in voters if voter not in out)
