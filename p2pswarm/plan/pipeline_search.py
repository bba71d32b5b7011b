"""The fastest pipelined plan that can be found in a given time, and a bound below it.

A few devices have few plans: all are tried, and the best is proven to be the best. Else every
number of stages that may be is annealed for a little; the best few share what is left. A bound is
made of what all devices together can do, if nothing kept them from it.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, product
from operator import attrgetter

import numpy as np

from p2pswarm.base.errors import Unusable
from p2pswarm.plan.annealing import RandomState
from p2pswarm.plan.codec_costs import WireCodec
from p2pswarm.plan.fleet import DeviceFleet, WorkLoad
from p2pswarm.plan.network import Floats, Ints
from p2pswarm.plan.pipeline_annealing import (
    PENALTY_S,
    Draft,
    Needs,
    anneal_pipelined,
    parts_of,
    step_s,
)
from p2pswarm.plan.pipeline_cost import StepCost, needs_of, step_cost

PLANS_MAX = 30_000  # to be tried: a second and a half; four devices, eight blocks


def plan_count(devices: int, blocks: int, stages: int) -> int:
    """Return how many plans `every_draft` gives at most."""
    placements: int = (stages + 1) ** devices
    return placements * math.comb(blocks - 1, stages - 1)


def every_draft(devices: int, blocks: int, stages: int) -> Iterator[Draft]:
    """Each plan in which every stage has a device; devices may be unused."""
    cuts = [np.array([0, *cut, blocks]) for cut in combinations(range(1, blocks), stages - 1)]
    for chosen in product(range(-1, stages), repeat=devices):
        if set(range(stages)) <= set(chosen):
            yield from (Draft(np.array(chosen), cut) for cut in cuts)


def fastest_draft(needs: Needs, counts: Sequence[int]) -> tuple[float, Draft]:
    """The seconds of a step of the fastest plan with so many stages, and the plan.

    The numbers of stages are possible: no more than devices or blocks.
    """
    devices, blocks = len(needs.flops_n), len(needs.flops_k)
    plans = (draft for count in counts for draft in every_draft(devices, blocks, count))
    judged = ((step_s(needs, parts_of(needs, draft), 0.0), draft) for draft in plans)
    return min(judged, key=lambda each: each[0])


Clock = Callable[[], float]

STAGES_TRIED_MAX = 24  # numbers of stages, where they are to be chosen
FIRST_SHARE = 0.4  # of the time, to compare numbers of stages and codecs
FINALISTS = 3
TRIAL_MOVES = 2_000  # that measure the machine's speed
HOT, COLD, MEANS = 0.2, 1e-3, 0.5
WARM = 0.02
ROUNDING = 1e-9  # what two reckonings of one plan may differ by


@dataclass(frozen=True, slots=True)
class PlanEffort:
    """The effort of a search."""

    seconds: float
    seed: int
    clock: Clock
    plans_max: int = PLANS_MAX
    """If there are no more plans than this, all are tried."""


@dataclass(frozen=True, slots=True, eq=False)
class PipelinedPlan:
    """What was found."""

    stages: tuple[tuple[int, ...], ...]
    """The devices of each stage."""
    unused: tuple[int, ...]
    borders: tuple[int, ...]
    """The first block of each stage, and the number of blocks."""
    codec: WireCodec
    cost: StepCost
    lower_bound_s: float
    evaluations: int

    @property
    def seconds(self) -> float:
        """The time of a step."""
        return self.cost.seconds

    @property
    def proven(self) -> bool:
        """Return whether no plan takes less."""
        return self.seconds <= self.lower_bound_s * (1 + ROUNDING)


@dataclass(slots=True, eq=False)
class _Contender:
    """A number of stages and a codec, and the best plan with them so far."""

    load: WorkLoad
    draft: Draft
    seconds: float = math.inf


def search_pipelined(
    fleet: DeviceFleet,
    loads: Sequence[WorkLoad],
    stages: Sequence[int | Draft],
    effort: PlanEffort,
) -> PipelinedPlan:
    """Search for the time given, or less, if few plans are possible.

    `loads` differ in their codec, `stages` are the numbers to try. A draft among them, one at
    most, is a plan that is there already: what is found is no worse than it is with the first load.
    """
    if not effort.seconds > 0:
        raise Unusable(f"a search of {effort.seconds:g} s finds nothing: give it a second at least")
    known = [each for each in stages if isinstance(each, Draft)]
    counts = [each for each in stages if not isinstance(each, Draft)]
    possible = _possible(fleet, loads[0], counts)
    drafts = _Drafts(fleet, effort.seed)
    plans = len(loads) * _plan_count(fleet, loads[0], possible)
    if plans <= effort.plans_max:
        tried = [drafts.known(loads[0], draft) for draft in known]
        tried += [drafts.fastest(load, possible) for load in loads]
        best = min(tried, key=attrgetter("seconds"))
        _refuse_unfit(best)
        return _finished(fleet, best, math.inf, plans)
    tried = [_Contender(loads[0], draft) for draft in known]
    tried += [_Contender(load, drafts.first(load, n)) for n in possible for load in loads]
    best = _annealed(drafts, tried, effort)
    _refuse_unfit(best)
    bound_s = min(step_bound_s(fleet, each.load, _count(each.draft)) for each in tried)
    return _finished(fleet, best, bound_s, drafts.moves)


def _annealed(drafts: "_Drafts", tried: list[_Contender], effort: PlanEffort) -> _Contender:
    """The fastest that is found in the time: all a little, then the best few."""
    limit_s, clock = effort.seconds, effort.clock
    drafts.run(tried[0], 1, HOT)  # compiles
    begun_s = clock()
    drafts.run(tried[0], TRIAL_MOVES, HOT)
    each_s = max((clock() - begun_s) / TRIAL_MOVES, 1e-8)
    ends_s = begun_s + limit_s
    moves = max(TRIAL_MOVES, int(FIRST_SHARE * limit_s / each_s / len(tried)))
    for candidate in tried:
        if candidate is tried[0] or clock() + moves * each_s < ends_s:
            drafts.run(candidate, moves, HOT)
    best = sorted(tried, key=attrgetter("seconds"))[:FINALISTS]
    moves = max(TRIAL_MOVES, int((1 - FIRST_SHARE) * limit_s / each_s / 6))
    turn = 0
    while clock() + moves * each_s < ends_s:
        drafts.run(best[turn % len(best)], moves, HOT if turn < len(best) else WARM)
        turn += 1
    return min(best, key=attrgetter("seconds"))


def _refuse_unfit(best: _Contender) -> None:
    if best.seconds >= PENALTY_S:
        raise Unusable(
            "no cut was found whose stages fit the memory of the devices that serve them: allow "
            "more stages, or name devices with more memory"
        )


def step_bound_s(fleet: DeviceFleet, load: WorkLoad, stages: int) -> float:
    """Return what no step of so many stages takes less than.

    Nobody computes faster than it can, or sends more than its line carries; a microbatch passes
    all blocks and every boundary twice; stages of one device average nothing, but then no more
    devices work than there are stages.
    """
    total = float(load.flops_k.sum())
    lines_n = np.full(len(fleet.names), np.inf)
    if stages > 1:
        codec_rate = load.codec.values_per_s / max(load.boundary_values, 1.0)
        lines_n = np.minimum(fleet.access_bytes_n / load.boundary_bytes, codec_rate)
    largest = total - float(np.sort(load.flops_k)[: stages - 1].sum())
    work_n = np.sort(np.minimum(fleet.flops_n, lines_n * largest))[::-1]
    apart_nn = fleet.network.latency_s_nn + np.where(np.eye(len(work_n), dtype=bool), np.inf, 0.0)
    hops_s = 2 * (stages - 1) * float(apart_nn.min()) if stages > 1 else 0.0
    if stages > 1:
        links_nn = fleet.links_bytes_nn.copy()
        np.fill_diagonal(links_nn, 0.0)
        hops_s += 2 * (stages - 1) * load.boundary_bytes / float(links_nn.max())
    fill_s = total / float(fleet.flops_n.max()) + hops_s
    alone_s = fill_s + (load.microbatches - 1) * total / float(work_n[:stages].sum())
    together_s = fill_s + (load.microbatches - 1) * total / float(work_n.sum())
    return min(alone_s, load.with_averaging(together_s, _least_averaging_s(fleet, load, stages)))


def one_more(
    fleet: DeviceFleet, plan: PipelinedPlan, load: WorkLoad, effort: PlanEffort
) -> list[tuple[str, float]]:
    """For each kind of device, the step's time with one more of it, at most; the best first."""
    kinds, stages = sorted(set(fleet.kinds)), [len(plan.stages)]
    stage_n: Ints = np.full(len(fleet.names) + 1, -1, dtype=np.int64)
    for stage, group in enumerate(plan.stages):
        stage_n[list(group)] = stage
    gains = []
    for kind in kinds:
        larger = fleet.with_one_more(fleet.kinds.index(kind))
        annealing = _Drafts(larger, effort.seed)
        if _plan_count(larger, load, stages) <= effort.plans_max:
            gains.append((kind, min(annealing.fastest(load, stages).seconds, plan.seconds)))
            continue
        least = math.inf
        for stage in range(len(plan.stages)):
            stage_n[-1] = stage
            candidate = _Contender(load, Draft(stage_n.copy(), np.array(plan.borders)))
            begun_s = effort.clock()
            while effort.clock() - begun_s < effort.seconds / len(kinds) / len(plan.stages):
                annealing.run(candidate, TRIAL_MOVES, WARM)
            annealing.run(candidate, TRIAL_MOVES, WARM)
            least = min(least, step_cost(larger, load, candidate.draft).seconds)
        gains.append((kind, min(least, plan.seconds)))
    return sorted(gains, key=lambda each: each[1])


class _Drafts:
    """Anneals plans of one fleet."""

    def __init__(self, fleet: DeviceFleet, seed: int) -> None:
        self._fleet = fleet
        self._chance = np.random.default_rng(seed)
        self._luck: RandomState = self._chance.integers(1, 2**63, 1, dtype=np.uint64)
        self._needs: dict[WorkLoad, Needs] = {}
        self.moves = 0

    def first(self, load: WorkLoad, stages: int) -> Draft:
        """A plan by chance: the fastest devices dealt out, blocks of about the same work."""
        order = np.argsort(-self._fleet.flops_n, kind="stable")
        stage_n: Ints = np.empty(len(order), dtype=np.int64)
        stage_n[order] = np.arange(len(order)) % stages
        blocks = len(load.flops_k)
        sums = np.cumsum(load.flops_k) / load.flops_k.sum()
        borders = [0]
        for stage in range(1, stages):
            cut = int(np.searchsorted(sums, stage / stages)) + 1
            borders.append(min(max(cut, borders[-1] + 1), blocks - (stages - stage)))
        return Draft(stage_n, np.array([*borders, blocks], dtype=np.int64))

    def known(self, load: WorkLoad, draft: Draft) -> _Contender:
        """A plan that is there already."""
        needs = self._needed(load)
        return _Contender(load, draft, step_s(needs, parts_of(needs, draft), 0.0))

    def fastest(self, load: WorkLoad, stages: Sequence[int]) -> _Contender:
        """The fastest of all plans with so many stages."""
        seconds, draft = fastest_draft(self._needed(load), stages)
        return _Contender(load, draft, seconds)

    def run(self, candidate: _Contender, moves: int, hot: float) -> None:
        """Anneal a candidate; it keeps the best."""
        draft = Draft(candidate.draft.stage_n.copy(), candidate.draft.borders_s.copy())
        best = Draft(draft.stage_n.copy(), draft.borders_s.copy())
        heats: Floats = np.array([hot, COLD, MEANS])
        needs = self._needed(candidate.load)
        seconds = anneal_pipelined(needs, draft, best, heats, moves, self._luck)
        self.moves += moves
        if seconds < candidate.seconds:
            candidate.draft, candidate.seconds = best, seconds

    def _needed(self, load: WorkLoad) -> Needs:
        """The arrays of one load: the matrix of a large fleet's links takes 128 MiB."""
        if load not in self._needs:
            self._needs[load] = needs_of(self._fleet, load)
        return self._needs[load]


def _possible(fleet: DeviceFleet, load: WorkLoad, stages: Sequence[int]) -> list[int]:
    """The numbers of stages that can be; Unusable if there is none."""
    possible, refusals = [], list[Unusable]()
    for count in stages:
        try:
            load.check(fleet, count)
        except Unusable as error:
            refusals.append(error)
        else:
            possible.append(count)
    if not possible:
        raise refusals[-1]
    step = math.ceil(len(possible) / STAGES_TRIED_MAX)
    return possible[::step]


def _finished(fleet: DeviceFleet, best: _Contender, bound_s: float, moves: int) -> PipelinedPlan:
    cost = step_cost(fleet, best.load, best.draft)
    stages = tuple(
        tuple(map(int, np.flatnonzero(best.draft.stage_n == stage)))
        for stage in range(_count(best.draft))
    )
    unused = tuple(map(int, np.flatnonzero(best.draft.stage_n < 0)))
    borders = tuple(map(int, best.draft.borders_s))
    bound_s = min(bound_s, cost.seconds)
    return PipelinedPlan(stages, unused, borders, best.load.codec, cost, bound_s, moves)


def _count(draft: Draft) -> int:
    return len(draft.borders_s) - 1


def _plan_count(fleet: DeviceFleet, load: WorkLoad, stages: Sequence[int]) -> int:
    return sum(plan_count(len(fleet.names), len(load.flops_k), count) for count in stages)


def _least_averaging_s(fleet: DeviceFleet, load: WorkLoad, stages: int) -> float:
    """The least time of averaging if any stage has two devices: half of the smallest stage."""
    if len(fleet.names) < 2:  # noqa: PLR2004
        return 0.0
    bytes_k = load.averaging_bytes_k
    once = load.whole_values(1) / load.whole_values(2)
    smallest = float(bytes_k.min()) if stages > 1 else float(bytes_k.sum()) * once
    return smallest / float(np.sort(fleet.access_bytes_n)[-2])


def loads_of(load: WorkLoad, codecs: Sequence[WireCodec]) -> list[WorkLoad]:
    """The same work with each codec."""
    return [replace(load, codec=codec) for codec in codecs]
