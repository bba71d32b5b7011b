"""Every interleaving of deaths and changes of voters: while a majority lives, a record is decided.

One trainer leads. Servers that vote, or may, answer its calls, join it, and die; what it proposes
is what `next_voters` says of those it knows of then. A voter may die between any two steps, as long
as a majority of the voters of the last decided record lives, and of those of a record that a living
voter has accepted: without these nothing could be decided by anybody. Two die at most while a
record is proposed: of five voters that know a record, any three could be the last that do.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NamedTuple

import pytest

from p2pswarm.run.chain.electorate import VoterCandidates, is_majority, next_voters

Voter = int
"""Numbers are enough: `next_voters` only compares voters."""
TRAINER, SERVERS = 0, range(1, 6)
FIVE, THREE = (0, 1, 2, 3, 4), (0, 1, 2)
DEATHS_MAX, RECORDS_MAX = 2, 2


class State(NamedTuple):
    head: tuple[Voter, ...]
    """The voters of the last decided record."""
    alive: frozenset[Voter]
    answering: frozenset[Voter] = frozenset()
    """As far as the leader knows."""
    members: frozenset[Voter] = frozenset()
    """The servers that have joined it."""
    pending: tuple[Voter, ...] = ()
    """The voters of the record that is proposed."""
    accepted: frozenset[Voter] = frozenset()
    records: int = 0
    """Decided since the beginning."""
    deaths: int = 0
    """Since the last record was decided."""


Candidates = Callable[[State], VoterCandidates]


def known(state: State) -> VoterCandidates:
    """Whom the leader may choose, as `KnownTrainers` finds them."""
    return VoterCandidates(
        [TRAINER],
        [one for one in SERVERS if one in state.members],
        [one for one in state.head if one in state.answering],
        state.answering | {TRAINER},
    )


def members_alone(state: State) -> VoterCandidates:
    """A voter that has not joined again counts as dead."""
    return replace(known(state), others=(), answering=None)


def whoever_joined(state: State) -> VoterCandidates:
    """Voters of whom nobody has answered are chosen too."""
    return replace(known(state), answering=None)


def steps(state: State, wanted: int, candidates: Candidates) -> Iterator[State]:
    yield state._replace(answering=state.alive)
    yield state._replace(members=state.alive - {TRAINER})
    for one in SERVERS:
        if one in state.alive and may_lose(state, one):
            yield state._replace(alive=state.alive - {one}, deaths=state.deaths + 1)
    if not state.pending and state.records < RECORDS_MAX:
        chosen = next_voters(state.head, candidates(state), wanted)
        if chosen != state.head:
            yield state._replace(pending=chosen)
    elif state.pending and is_decided(state, state.accepted):
        yield state._replace(
            head=state.pending,
            pending=(),
            accepted=frozenset(),
            records=state.records + 1,
            deaths=0,
        )
    elif state.pending:
        for one in asked(state) & state.alive - state.accepted:
            yield state._replace(accepted=state.accepted | {one})
        if is_withdrawn(state):
            yield state._replace(pending=(), accepted=frozenset())


def asked(state: State) -> set[Voter]:
    """Whom the leader asks to accept: who votes no more only when the new voters are enough."""
    voters = {*state.pending} - {TRAINER}
    with_own = state.accepted | {TRAINER}
    if is_majority(state.pending, with_own):
        voters |= {*state.head} - {TRAINER}
    return voters | {TRAINER} if is_decided(state, with_own) else voters


def may_lose(state: State, one: Voter) -> bool:
    left = state.alive - {one}
    if state.deaths == DEATHS_MAX:
        return False
    pinned = state.accepted & left
    return is_majority(state.head, left) and (not pinned or is_majority(state.pending, left))


def is_decided(state: State, accepted: frozenset[Voter]) -> bool:
    return is_majority(state.head, accepted) and is_majority(state.pending, accepted)


def is_withdrawn(state: State) -> bool:
    """The new voters are lost, and no living one has accepted their record."""
    return not is_majority(state.pending, state.alive) and not state.accepted & state.alive


def stands_still(state: State) -> bool:
    """What is proposed cannot be decided by the living, and nothing can take its place."""
    if not is_majority(state.head, state.alive):
        return False  # nobody can decide anything
    undecidable = bool(state.pending) and not is_decided(state, state.alive | state.accepted)
    return undecidable and not is_withdrawn(state)


def search(head: tuple[Voter, ...], wanted: int, candidates: Candidates) -> tuple[int, int]:
    """How many states there are, and in how many of them the run stands still."""
    frontier = [State(head, frozenset((TRAINER, *SERVERS)))]
    seen = set(frontier)
    while frontier:
        after = {s for state in frontier for s in steps(state, wanted, candidates)} - seen
        seen |= after
        frontier = list(after)
    return len(seen), sum(map(stands_still, seen))


@pytest.mark.parametrize(("head", "wanted"), [(FIVE, 5), (THREE, 3), ((TRAINER,), 3), (FIVE, 3)])
def test_no_order_of_deaths_and_answers_stops_a_run_whose_voters_live(head, wanted):
    states, still = search(head, wanted, known)

    assert states > 100
    assert still == 0


@pytest.mark.parametrize("candidates", [members_alone, whoever_joined])
def test_a_broken_rule_is_found(candidates):
    _, still = search(FIVE, 5, candidates)

    assert still > 0
