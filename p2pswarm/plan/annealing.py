"""Simulated annealing of a plan: devices change stages, pipelines change partners.

A layout is the device at each place of each stage; the devices at one place are a pipeline. A
boundary costs the slowest of its links as they are; the best pairing is found on the way, by
moves of its own. A maximum hides progress, so a guide is added to what is annealed: the mean of
the groups, and of each boundary the power mean of its links. The power keeps slow links
together: one more costs a boundary much that has none, and little one that has many. The best by
the cost itself is kept, and is to be judged again with the best pairings.

Luck is drawn before moves are judged: it says how much dearer the plan may become. A turn draws
a device and another stage, and judges all exchanges between them (`exchanges.py`); the first that
luck allows, from a place by chance on, is made. So a turn in the cold costs little more than one
judgement.

Units:   seconds for costs, and for temperatures, which are compared with costs.
Shapes:  stage, place in a stage; others as in `exchanges.py`.
Source:  Kirkpatrick et al., Science 220, 1983. Random numbers: xorshift64* (Vigna, 2016).
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from p2pswarm.kernels.jit import compiled, inlined
from p2pswarm.plan.dtfm import DtfmTask, LinkCosts, Stages, cost_of, pipelines_of
from p2pswarm.plan.exchanges import (
    CHANCES,
    LOOK_MAX,
    LUCKS,
    Spots,
    Where,
    cost_s,
    cross,
    exchange,
    guide_s,
    judged,
    likely_crossings,
    likely_far,
    likely_near,
    likely_own,
    planes_of,
    slowest_other,
)
from p2pswarm.plan.network import Floats, Ints

RandomState = NDArray[np.uint64]
"""One number, not zero."""

ROUNDING_S = 1e-9  # less than this is no progress, but the rounding of sums
CROSSING, OWN, EXCHANGE = 0, 1, 2  # kinds of turns; an exchange of one's own is within a pipeline


class Cooling(NamedTuple):
    """The turns of an annealing, its heat, and the weight of the guide beside the cost."""

    turns: int
    hot_s: float
    cold_s: float
    pair_share: float
    """The share of the turns that change partners."""
    own_share: float
    """The share of those within a pipeline: where it stays in a region, it still may."""
    hot_guide: float
    cold_guide: float


@compiled
def anneal(
    costs_2mm: Floats, device_sp: Ints, best_sp: Ints, cooling: Cooling, luck: RandomState
) -> tuple[float, float, int]:
    """Anneal `device_sp`; `best_sp` becomes the cheapest on the way.

    Returns what that costs; what the last one does, guide and all; how many moves were judged.
    """
    stages, width = device_sp.shape
    plan = judged(costs_2mm, device_sp)
    device_tp, parts_tk = plan.device_tp, plan.parts_tk
    cost = least = cost_s(parts_tk)
    best_sp[:] = device_sp
    if stages == 1:
        return least, least, 0
    moves = 0
    heat_s, guide = cooling.hot_s, cooling.hot_guide
    factor = (cooling.cold_s / cooling.hot_s) ** (1.0 / cooling.turns)
    fade = (cooling.cold_guide - cooling.hot_guide) / cooling.turns
    for _ in range(cooling.turns):
        heat_s *= factor
        guide += fade
        kind, drawn, looks, turn = _draw(luck, stages, width, cooling)
        one, _, other, _, chance = drawn
        rest = slowest_other(parts_tk, one, other) if kind == EXCHANGE else 0.0
        rule = heat_s, guide / stages, guide, rest
        if kind == CROSSING:
            hits = likely_crossings(plan, drawn, rule)
        elif kind == OWN:
            hits = likely_own(plan, drawn, rule)
        elif abs(one - other) == 1:
            hits = likely_near(plan, drawn, rule)
        else:
            hits = likely_far(plan, drawn, rule)
        moves += looks
        while hits != 0:
            turn = _next(hits, turn, looks)
            hits &= ~(1 << turn)
            spots = _spots(kind, drawn, turn)
            rest = slowest_other(parts_tk, one, spots[2])
            rule = heat_s * CHANCES[chance + turn], guide / stages, guide, rest
            change = cross(plan, spots) if kind == CROSSING else exchange(plan, spots, rule)
            if change < np.inf:
                cost += change
                hits = 0
        if cost < least - ROUNDING_S:
            least = cost
            best_sp[:] = device_tp[1 : stages + 1]
    device_sp[:] = device_tp[1 : stages + 1]
    return float(least), float(cost + guide * guide_s(parts_tk)), moves


@inlined
def _draw(
    luck: RandomState, stages: int, width: int, cooling: Cooling
) -> tuple[int, Where, int, int]:
    """A turn: its kind, where, how many places are judged, and which comes first."""
    drawn = _random(luck)
    share, place = _part(drawn, 0, 65536) / 65536, _part(drawn, 16, width)
    kind = EXCHANGE
    if share < cooling.pair_share:
        kind = CROSSING
    elif share < cooling.pair_share + cooling.own_share:
        kind = OWN
    along = stages if kind == OWN else width
    first = LOOK_MAX * _part(drawn, 32, (along - 1) // LOOK_MAX + 1)
    looks, chance = min(along - first, LOOK_MAX), _part(drawn, 48, LUCKS)
    drawn = _random(luck)
    one, other = _part(drawn, 0, stages), _part(drawn, 16, stages - 1)
    other += other >= one
    if kind == CROSSING:
        one, other = min(one, other), max(one, other)
    where = one + 1, place, other + 1, first, chance
    return kind, where, looks, _part(drawn, 32, looks)


@inlined
def _spots(kind: int, where: Where, turn: int) -> Spots:
    """Return what a hit means."""
    one, place, other, first, _ = where
    return (
        (one, place, first + turn + 1, place) if kind == OWN else (one, place, other, first + turn)
    )


@inlined
def _next(hits: int, turn: int, looks: int) -> int:
    """The first of the bits that is set, from `turn` on and around; one is."""
    while not (hits >> turn) & 1:
        turn = turn + 1 if turn + 1 < looks else 0
    return turn


@inlined
def _part(drawn: np.uint64, shift: int, limit: int) -> int:
    """A number from 0 to limit - 1, limit at most 65536, out of 16 bits of what was drawn."""
    bits = np.int64((drawn >> np.uint64(shift)) & np.uint64(65535))
    # The last part changes nothing, and tells the compiler that no index is below 0.
    return int((bits * limit) >> 16) & 65535


@compiled
def below(state: RandomState, limit: int) -> int:
    """A number from 0 to limit - 1."""
    scaled = (_random(state) >> np.uint64(32)) * np.uint64(limit)
    return int(np.int64(scaled >> np.uint64(32)))


@compiled
def share(state: RandomState) -> float:
    """A number from 0 to 1."""
    return float(_random(state) >> np.uint64(11)) / 9007199254740992.0  # 2^53


@inlined
def _random(state: RandomState) -> np.uint64:
    x: np.uint64 = state[0]
    x ^= x >> np.uint64(12)
    x ^= x << np.uint64(25)
    x ^= x >> np.uint64(27)
    state[0] = x
    return np.uint64(x * np.uint64(0x2545F4914F6CDD1D))


Clock = Callable[[], float]

POOL = 3  # plans that are polished
POLISH_SHARE = 0.1  # of the time
PAIR_SHARE, OWN_SHARE = 0.25, 0.2  # of the turns; see docs/figures.md, as for all that follow
REPLICAS = 12
LADDER = 3e-3, 1.2e-2  # the temperatures, as shares
TEMPERED_TURNS = 1_000  # for each pair of devices, both ways: with fewer, plans are cooled
SLICE_TURNS = 10_000  # between two exchanges
NEAREST = 2  # whose link says how fast a line is: with a neighbour it is not one chance alone
TRIAL_SHARE = 0.1  # of the turns, for each of the two ways of cooling


class AnnealSchedule(NamedTuple):
    """Temperatures, as shares of the cost of a plan by chance, and the weight of the guide."""

    hot: float
    cold: float
    hot_guide: float = 1.0
    cold_guide: float = 1.0


COOL = AnnealSchedule(1e-3, 5e-5, 16.0, 2.0)
HOT = AnnealSchedule(1.5e-2, 2e-4, 4.0, 1.0)
POLISH = AnnealSchedule(2e-3, 2e-4, 1.0, 0.1)


class Annealed(NamedTuple):
    """The cheapest plan on the way, and the cost of the last one with its guide."""

    least_s: float
    guided_s: float
    moves: int
    best_sp: Ints


class Tempering:
    """Anneals plans of one network, as many at once as there are threads, until the time is over.

    Small networks by parallel tempering: several plans at temperatures of their own, which
    neighbours change as chance allows, so that one that is stuck in the cold warms up again; the
    best are annealed again at the end. Large ones have no time for that: each thread cools one
    plan. Where lines differ much, a plan that begins with the slow ones together and is kept cool
    is better by far than one that begins by chance; elsewhere it is worse. So both are tried for a
    while, and the better one goes on.

    Annealing is compiled and lets other threads run, so threads are processors here. A plan has
    random numbers of its own, and results are noted in the order of the plans: which thread was
    first changes nothing.

    Source: Swendsen and Wang, Physical Review Letters 57, 1986 (replicas that change temperatures).
    """

    def __init__(self, costs: LinkCosts, task: DtfmTask, seed: int, threads: int) -> None:
        self._costs = costs
        self._task = task
        self._planes = planes_of(costs.data_s_nn, costs.pipeline_s_nn)
        self._chance = np.random.default_rng(seed)
        self._lucks: list[RandomState] = []
        """Of each plan that is annealed beside others."""
        self._threads = min(threads, REPLICAS)
        self._workers = ThreadPoolExecutor(self._threads, "anneal")
        self._pool: list[tuple[float, Stages]] = []
        self.moves = 0
        """How many moves were tried."""
        self._scale_s = cost_of(costs, _as_stages(self._by_chance())).seconds
        self._note(self._by_chance())
        self._note(self._by_speed())
        self._anneal([self._by_chance()], 1, [COOL])  # compiles

    def __enter__(self) -> Self:
        """Nothing to do."""
        return self

    def __exit__(self, *_: object) -> None:
        """Let the threads go."""
        self._workers.shutdown()

    @property
    def best(self) -> Stages:
        """The cheapest plan so far."""
        return self._pool[0][1]

    def run(self, known: Stages | None, ends_s: float, clock: Clock) -> None:
        """Anneal until `ends_s`; `known` is a plan that somebody else found."""
        if known is not None:
            self._note(np.array(known, dtype=np.int64))
        begun_s = clock()
        plans = [self._by_chance() for _ in range(self._threads)]
        self._anneal(plans, SLICE_TURNS, [AnnealSchedule(LADDER[1], LADDER[1])] * self._threads)
        each_s = max((clock() - begun_s) / SLICE_TURNS, 1e-9)  # of a turn of each thread
        left_s = max(ends_s - clock(), 0.0)
        devices = self._task.stages * self._task.pipelines
        if self._threads * left_s / each_s < TEMPERED_TURNS * devices**2:
            self._cool(int(left_s / each_s), ends_s, clock)
            return
        self._temper(ends_s - POLISH_SHARE * left_s, clock)
        self._polish(max(SLICE_TURNS, int(POLISH_SHARE * left_s / each_s / POOL)), ends_s, clock)

    def _polish(self, turns: int, ends_s: float, clock: Clock) -> None:
        """Anneal the best plans again, for so many turns each, until the time is over."""
        first, now_s, round_s = 0, clock(), 0.0
        while now_s + round_s < ends_s:
            numbers = range(first, first + self._threads)
            again = [self._pool[each % len(self._pool)][1] for each in numbers]
            self._anneal([self._paired(each) for each in again], turns, [POLISH] * self._threads)
            first += self._threads
            last_s, now_s = now_s, clock()
            round_s = now_s - last_s

    def _cool(self, turns: int, ends_s: float, clock: Clock) -> None:
        """Cool plans for about so many turns each: first both ways, then the better one."""
        begun_s, trial = clock(), max(int(TRIAL_SHARE * turns), SLICE_TURNS)
        trials = [self._by_speed(), self._by_chance()]
        by_speed, by_chance = self._anneal(trials, trial, [COOL, HOT])
        rounds = 1 if self._threads > 1 else 2
        each_s = max((clock() - begun_s) / (rounds * trial), 1e-9)
        turns = int((1 - POLISH_SHARE) * (ends_s - clock()) / each_s)
        if turns > SLICE_TURNS:
            cool = by_speed.least_s <= by_chance.least_s
            plans = [self._by_speed() if cool else self._by_chance() for _ in range(self._threads)]
            self._anneal(plans, turns, [COOL if cool else HOT] * self._threads)

    def _temper(self, ends_s: float, clock: Clock) -> None:
        shares = np.geomspace(*LADDER, REPLICAS)
        ladder = [AnnealSchedule(share, share) for share in shares]
        replicas = [self._by_chance() for _ in shares]
        replicas[0] = self._paired(self.best)
        first, now_s, round_s = 0, clock(), 0.0
        while now_s + round_s < ends_s:
            found = self._anneal(replicas, SLICE_TURNS, ladder)
            for cold in range(first, REPLICAS - 1, 2):
                warm = cold + 1
                gain_s = found[cold].guided_s - found[warm].guided_s
                odds = gain_s / self._scale_s * (1 / shares[cold] - 1 / shares[warm])
                if np.log(self._chance.random()) < odds:
                    replicas[cold], replicas[warm] = replicas[warm], replicas[cold]
            first = 1 - first
            last_s, now_s = now_s, clock()
            round_s = now_s - last_s

    def _by_chance(self) -> Ints:
        order = self._chance.permutation(self._task.stages * self._task.pipelines)
        return order.reshape(self._task.stages, self._task.pipelines)

    def _by_speed(self) -> Ints:
        """Slow lines together, so that few boundaries have them; the best pairings of that."""
        nearest_nn = np.sort(self._costs.pipeline_s_nn, axis=1)  # the first is a device to itself
        order = np.argsort(-nearest_nn[:, min(NEAREST, len(nearest_nn) - 1)], kind="stable")
        device_sp = order.reshape(self._task.stages, self._task.pipelines)
        return self._paired(_as_stages(device_sp))

    def _paired(self, stages: Stages) -> Ints:
        """Stages with their best pairings."""
        return np.array(pipelines_of(self._costs, stages), dtype=np.int64)

    def _anneal(
        self, plans: Sequence[Ints], turns: int, heats: Sequence[AnnealSchedule]
    ) -> list[Annealed]:
        """Anneal plans in place, note the best on the way; returns what each came to."""
        while len(self._lucks) < len(plans):
            self._lucks.append(self._chance.integers(1, 2**63, 1, dtype=np.uint64))

        def some(first: int) -> list[Annealed]:
            numbers = range(first, len(plans), self._threads)
            return [
                self._annealed(plans[each], turns, heats[each], self._lucks[each])
                for each in numbers
            ]

        parts = list(self._workers.map(some, range(self._threads)))
        found = [parts[each % self._threads][each // self._threads] for each in range(len(plans))]
        for one in found:
            self.moves += one.moves
            if len(self._pool) < POOL or one.least_s < self._pool[-1][0]:
                self._note(one.best_sp)
        return found

    def _annealed(
        self, plan: Ints, turns: int, heat: AnnealSchedule, luck: RandomState
    ) -> Annealed:
        hot_s, cold_s = heat.hot * self._scale_s, heat.cold * self._scale_s
        guides = heat.hot_guide, heat.cold_guide
        cooling = Cooling(turns, hot_s, cold_s, PAIR_SHARE, OWN_SHARE, *guides)
        best_sp = plan.copy()
        return Annealed(*anneal(self._planes, plan, best_sp, cooling, luck), best_sp)

    def _note(self, device_sp: Ints) -> None:
        """Keep a plan if it is one of the best, whatever its pairings and its direction."""
        rows = tuple(tuple(map(int, row)) for row in np.sort(device_sp, axis=1))
        stages = min(rows, rows[::-1])
        if all(stages != each for _, each in self._pool):
            self._pool.append((cost_of(self._costs, stages).seconds, stages))
            self._pool = sorted(self._pool)[:POOL]


def _as_stages(device_sp: Ints) -> Stages:
    return tuple(tuple(map(int, row)) for row in device_sp)
