"""The cheapest plan that can be found in a given time, and what no plan can cost less.

Where few classes of alike devices are, an exact solver proves the cheapest plan. What it does not
prove in its share of the time is annealed (plan/tempering.py). The best plan at any time is an
answer; its bound says how good it is at least.

Units:   seconds, of the clock and of an iteration.
Errors:  Unusable for a time in which nothing can be found.
"""

from dataclasses import dataclass

from p2pswarm.base.errors import Unusable
from p2pswarm.plan import exact
from p2pswarm.plan.dtfm import (
    DtfmTask,
    LinkCosts,
    Stages,
    best_order,
    cost_of,
    pipelines_of,
)
from p2pswarm.plan.lower_bound import least_cost_s
from p2pswarm.plan.network import alike
from p2pswarm.plan.tempering import Clock, Tempering

CLASSES_MAX = 12  # with more the solver's model is larger than what it proves in a minute
EXACT_SHARE = 0.6  # of the time, for a proof


@dataclass(frozen=True, slots=True)
class Plan:
    """What was found."""

    stages: Stages
    """The devices of each stage, those at one place being a pipeline."""
    seconds: float
    lower_bound_s: float
    proven: bool
    evaluations: int
    """Plans that were looked at by annealing; 0 if the solver's proof was enough."""


@dataclass(frozen=True, slots=True)
class Effort:
    """What a search may take."""

    limit_s: float
    seed: int
    clock: Clock
    threads: int = 1
    """So many plans are annealed at a time."""


def search(costs: LinkCosts, task: DtfmTask, effort: Effort) -> Plan:
    """Search until the time is over, or a plan is proven.

    The first search on a machine compiles for some seconds more.
    """
    limit_s, clock = effort.limit_s, effort.clock
    if not limit_s > 0:
        raise Unusable(f"a search of {limit_s:g} s finds nothing: give it a second at least")
    begun_s = clock()
    found, bound_s = None, least_cost_s(costs, task)
    classes = alike((costs.data_s_nn, costs.pipeline_s_nn), CLASSES_MAX)
    if len(classes) <= CLASSES_MAX:
        solved = exact.solve(costs, task, classes, EXACT_SHARE * limit_s)
        found, bound_s = solved.stages, max(bound_s, solved.bound_s)
        if solved.proven and found is not None:
            return _plan(costs, found, bound_s, 0, proven=True)
    left_s = limit_s - (clock() - begun_s)
    with Tempering(costs, task, effort.seed, effort.threads) as annealing:
        annealing.run(found, clock() + left_s, clock)
        return _plan(costs, annealing.best, bound_s, annealing.moves, proven=False)


def _plan(costs: LinkCosts, stages: Stages, bound_s: float, moves: int, *, proven: bool) -> Plan:
    ordered = pipelines_of(costs, best_order(costs, stages))
    seconds = cost_of(costs, ordered).seconds
    return Plan(ordered, seconds, seconds if proven else min(bound_s, seconds), proven, moves)
