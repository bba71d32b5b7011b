"""Whether a step is possible at a moment: a rule that is told who lives, and who reaches whom."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from p2pswarm.run.chain.record import VoterId


@dataclass(frozen=True, slots=True, eq=False)
class Living:
    """A machine that runs, and is not stopped."""

    voter: VoterId | None
    """None while its vote is not there."""
    trains: bool = False
    """True for a trainer that may lead, as the newest decided record says."""
    stage: int | None = None
    """The stage of which it has the newest decided weights, or what makes them; None: it has none,
    or it computes a hundred times slower."""


Reaches = Callable[[Living, Living], bool]
"""Whether messages pass both ways between two machines."""


def step_is_possible(
    living: Sequence[Living],
    stages: int,
    electorates: Iterable[Sequence[VoterId]],
    reaches: Reaches,
) -> bool:
    """Return whether a trainer that may lead reaches all that a step needs.

    These are a majority of every electorate, itself included, and a path of weights through all
    stages. `electorates`: the voters of the newest decided record, and of each that a living voter
    has accepted after it.
    """
    named = list(electorates)
    return any(_leads(one, living, stages, named, reaches) for one in living if one.trains)


def _leads(
    trainer: Living,
    living: Sequence[Living],
    stages: int,
    electorates: Sequence[Sequence[VoterId]],
    reaches: Reaches,
) -> bool:
    reached = [one for one in living if one is trainer or reaches(trainer, one)]
    votes = {one.voter for one in reached if one.voter is not None}
    if any(2 * len(votes & set(voters)) <= len(voters) for voters in electorates):
        return False
    here = [one for one in reached if one.stage == 0]
    for stage in range(1, stages):
        above = [one for one in reached if one.stage == stage]
        here = [one for one in above if any(reaches(one, below) for below in here)]
    return bool(here)
