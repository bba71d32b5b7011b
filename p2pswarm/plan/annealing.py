"""Simulated annealing of a plan: devices change stages, and pipelines change partners.

A layout is the device at each place of each stage; the devices at one place are a pipeline. A
boundary costs the slowest of its links as they are, so a move is judged in a tenth of a
microsecond; the best pairing is found on the way, by moves of its own. A maximum hides progress,
so a guide is added to what is annealed: the mean of the groups, and of each boundary the power
mean of its links. The power keeps slow links together: one more costs a boundary much that has
none, and little one that has many. What is kept is the best by the cost itself. What comes out is
to be judged again, with the best pairings.

Most moves come to nothing, so luck is drawn before a move is judged: it says how much dearer the
plan may become, and the judgement ends as soon as that is passed. The state is a few plain arrays,
because a named tuple of them costs more time than a move: counted references.

Units:   seconds for costs, and for temperatures, which are compared with costs.
Shapes:  stage, place in a stage, device (n). A boundary has the number of the stage before it.
         costs_3nn: a link's use for data, its use in a pipeline, the latter raised to the power.
         work_4sp: each device's sum in its group; each link; each link raised; room for a trial.
         tops_7s: each group's slowest device; each boundary's slowest link, mean of raised links
         and power mean; what the three would be after a move.
Errors:  none.
Source:  Kirkpatrick et al., Science 220, 1983. Random numbers: xorshift64* (Vigna, 2016).
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from p2pswarm.plan.compiled import compiled, inlined
from p2pswarm.plan.network import Floats

Ints = NDArray[np.int64]
RandomState = NDArray[np.uint64]
"""One number, not zero."""

ROUNDING_S = 1e-9  # less than this is no progress, but the rounding of sums
CHANCES = -np.log((np.arange(4096) + 0.5) / 4096)  # by Metropolis' rule, times the temperature

SUM, LINK, RAISED, TRIAL = 0, 1, 2, 3  # of work_4sp
GROUP, MOST, MEAN, POWER, NEXT_MOST, NEXT_MEAN, NEXT_POWER = 0, 1, 2, 3, 4, 5, 6  # of tops_7s


class Cooling(NamedTuple):
    """How long a plan is annealed, how hot, and how much the guide counts beside the cost."""

    moves: int
    hot_s: float
    cold_s: float
    pair_share: float
    """The share of the moves that change partners."""
    own_share: float
    """The share of those within a pipeline: where it stays in a region, it still may."""
    hot_guide: float
    cold_guide: float
    roots: int
    """The power of the power mean is 2 ** roots."""


Rule = tuple[float, float, float, int]
"""How much dearer a plan may become; how much a group counts, and a power mean; its roots."""


def planes_of(data_s_nn: Floats, pipeline_s_nn: Floats, roots: int) -> Floats:
    """`costs_3nn`; what is raised is a share of the slowest link, so that nothing overflows."""
    most_s = max(float(pipeline_s_nn.max()), np.finfo(np.float64).tiny)
    return np.stack([data_s_nn, pipeline_s_nn, (pipeline_s_nn / most_s) ** 2**roots])


@compiled
def anneal(
    costs_3nn: Floats, device_sp: Ints, best_sp: Ints, cooling: Cooling, luck: RandomState
) -> float:
    """Anneal `device_sp`; `best_sp` becomes the cheapest on the way. Returns what that costs."""
    stages, width = device_sp.shape
    work_4sp, tops_7s = np.zeros((4, stages, width)), np.zeros((7, stages))
    cost = _settle(costs_3nn, device_sp, work_4sp, tops_7s, cooling.roots)
    least = cost
    best_sp[:] = device_sp
    if stages == 1:
        return least
    most_s = costs_3nn[1].max()
    heat_s, guide = cooling.hot_s, cooling.hot_guide
    factor = (cooling.cold_s / cooling.hot_s) ** (1.0 / cooling.moves)
    fade = (cooling.cold_guide - cooling.hot_guide) / cooling.moves
    pairs = int(65536 * cooling.pair_share)
    owns = pairs + int(65536 * cooling.own_share)
    for _ in range(cooling.moves):
        heat_s *= factor
        guide += fade
        drawn = _random(luck)
        limit = heat_s * CHANCES[np.int64(drawn >> np.uint64(52))]
        rule = limit, guide / stages, guide * most_s, cooling.roots
        kind = _part(drawn, 36, 65536)
        one, other = _part(drawn, 20, width), _part(drawn, 4, width)
        drawn = _random(luck)
        a = _part(drawn, 48, stages)
        b = _part(drawn, 32, stages - 1)
        b += b >= a
        if kind < pairs:
            spot = min(a, b), one, other
            if one != other:
                cost += _repair(costs_3nn, device_sp, work_4sp, tops_7s, spot, rule)
        else:
            if kind < owns:
                other = one
            spots = (a, one, b, other) if a < b else (b, other, a, one)
            cost += _exchange(costs_3nn, device_sp, work_4sp, tops_7s, spots, rule)
        if cost < least - ROUNDING_S:
            least = cost
            best_sp[:] = device_sp
    return float(least)


@compiled
def guided_s(costs_3nn: Floats, device_sp: Ints, guide: float, roots: int) -> float:
    """What annealing compares: the cost and the guide."""
    stages, width = device_sp.shape
    work_4sp, tops_7s = np.zeros((4, stages, width)), np.zeros((7, stages))
    cost = _settle(costs_3nn, device_sp, work_4sp, tops_7s, roots)
    powers = tops_7s[POWER].sum() * costs_3nn[1].max()
    return float(cost + guide * (tops_7s[GROUP].mean() + powers))


@compiled
def _settle(
    costs_3nn: Floats, device_sp: Ints, work_4sp: Floats, tops_7s: Floats, roots: int
) -> float:
    """Fill in what the parts of a plan cost; returns the cost of the whole."""
    stages, width = device_sp.shape
    for stage in range(stages):
        for place in range(width):
            device = device_sp[stage, place]
            for other in range(width):
                work_4sp[SUM, stage, place] += costs_3nn[0, device, device_sp[stage, other]]
            if stage < stages - 1:
                after = device_sp[stage + 1, place]
                work_4sp[LINK, stage, place] = costs_3nn[1, device, after]
                work_4sp[RAISED, stage, place] = costs_3nn[2, device, after]
        tops_7s[GROUP, stage] = work_4sp[SUM, stage].max()
        tops_7s[MOST, stage] = work_4sp[LINK, stage].max()
        tops_7s[MEAN, stage] = work_4sp[RAISED, stage].mean()
        tops_7s[POWER, stage] = _root(tops_7s[MEAN, stage], roots)
    return float(tops_7s[GROUP].max() + tops_7s[MOST].sum())


@inlined
def _repair(
    costs_3nn: Floats,
    device_sp: Ints,
    work_4sp: Floats,
    tops_7s: Floats,
    spot: tuple[int, int, int],
    rule: Rule,
) -> float:
    """Let two pipelines change what follows after a boundary, if luck allows.

    Returns by how much the cost itself changes.
    """
    boundary, one, other = spot
    _swap_ints(device_sp, boundary + 1, one, other)
    change, rise = _try_boundary(costs_3nn, device_sp, work_4sp, tops_7s, spot, rule[3])
    if not change + rule[2] * rise <= rule[0]:
        _swap_ints(device_sp, boundary + 1, one, other)
        return 0.0
    _take_boundary(costs_3nn, device_sp, work_4sp, tops_7s, spot)
    for stage in range(boundary + 1, device_sp.shape[0]):
        if stage > boundary + 1:
            _swap_ints(device_sp, stage, one, other)
        for row in (SUM, LINK, RAISED):
            was = work_4sp[row, stage, one]
            work_4sp[row, stage, one] = work_4sp[row, stage, other]
            work_4sp[row, stage, other] = was
    return float(change)


@inlined
def _exchange(
    costs_3nn: Floats,
    device_sp: Ints,
    work_4sp: Floats,
    tops_7s: Floats,
    spots: tuple[int, int, int, int],
    rule: Rule,
) -> float:
    """Let devices of two stages change places, if luck allows.

    `spots`: the earlier stage and a place in it, then the later one. Returns by how much the cost
    itself changes.
    """
    first, one, second, other = spots
    leaves, comes = device_sp[first, one], device_sp[second, other]
    device_sp[first, one], device_sp[second, other] = comes, leaves
    change, rise = 0.0, 0.0
    for turn in range(4):
        spot = _touched(spots, turn, device_sp.shape[0])
        if spot[0] >= 0:
            more = _try_boundary(costs_3nn, device_sp, work_4sp, tops_7s, spot, rule[3])
            change, rise = change + more[0], rise + more[1]
    left = rule[0] - change - rule[2] * rise
    groups = _try_groups(costs_3nn, device_sp, work_4sp, tops_7s, spots, (left, rule[1]))
    if groups == np.inf:
        device_sp[first, one], device_sp[second, other] = leaves, comes
        return 0.0
    for turn in range(4):
        spot = _touched(spots, turn, device_sp.shape[0])
        if spot[0] >= 0:
            _take_boundary(costs_3nn, device_sp, work_4sp, tops_7s, spot)
    return float(change + groups)


@inlined
def _touched(spots: tuple[int, int, int, int], turn: int, stages: int) -> tuple[int, int, int]:
    """One of the four boundaries beside two spots, and the places of its links; or -1."""
    first, one, second, other = spots
    if turn == 0:
        return first - 1, one, one
    if turn == 1:
        return first, one, other if second == first + 1 else one
    if turn == 2:  # noqa: PLR2004
        return -1 if second == first + 1 else second - 1, other, other
    return -1 if second == stages - 1 else second, other, other


@inlined
def _try_boundary(
    costs_3nn: Floats,
    device_sp: Ints,
    work_4sp: Floats,
    tops_7s: Floats,
    spot: tuple[int, int, int],
    roots: int,
) -> tuple[float, float]:
    """What a boundary costs after the links at two places, or one, have changed.

    Returns by how much its slowest link and its power mean change.
    """
    boundary, one, other = spot
    width = device_sp.shape[1]
    before, after = device_sp[boundary, one], device_sp[boundary + 1, one]
    most, was_most = costs_3nn[1, before, after], work_4sp[LINK, boundary, one]
    raised = costs_3nn[2, before, after] - work_4sp[RAISED, boundary, one]
    if one != other:
        before, after = device_sp[boundary, other], device_sp[boundary + 1, other]
        most = max(most, costs_3nn[1, before, after])
        was_most = max(was_most, work_4sp[LINK, boundary, other])
        raised += costs_3nn[2, before, after] - work_4sp[RAISED, boundary, other]
    top = tops_7s[MOST, boundary]
    if most < top and was_most < top:
        most = top
    elif most < top:
        for place in range(width):
            if place not in (one, other):
                most = max(most, work_4sp[LINK, boundary, place])
    mean = tops_7s[MEAN, boundary] + raised / width
    power = _root(mean, roots)
    tops_7s[NEXT_MOST, boundary] = most
    tops_7s[NEXT_MEAN, boundary] = mean
    tops_7s[NEXT_POWER, boundary] = power
    return most - top, power - tops_7s[POWER, boundary]


@inlined
def _take_boundary(
    costs_3nn: Floats,
    device_sp: Ints,
    work_4sp: Floats,
    tops_7s: Floats,
    spot: tuple[int, int, int],
) -> None:
    """Note what was tried."""
    boundary, one, other = spot
    for place in (one, other):
        before, after = device_sp[boundary, place], device_sp[boundary + 1, place]
        work_4sp[LINK, boundary, place] = costs_3nn[1, before, after]
        work_4sp[RAISED, boundary, place] = costs_3nn[2, before, after]
    tops_7s[MOST, boundary] = tops_7s[NEXT_MOST, boundary]
    tops_7s[MEAN, boundary] = tops_7s[NEXT_MEAN, boundary]
    tops_7s[POWER, boundary] = tops_7s[NEXT_POWER, boundary]


@inlined
def _try_groups(
    costs_3nn: Floats,
    device_sp: Ints,
    work_4sp: Floats,
    tops_7s: Floats,
    spots: tuple[int, int, int, int],
    left: tuple[float, float],
) -> float:
    """By how much the slowest group changes after an exchange; infinite, if that is too much.

    `left`: what the groups may cost more, and how much the sum of them counts.
    """
    first, one, second, other = spots
    stages, width = device_sp.shape
    comes, leaves = device_sp[first, one], device_sp[second, other]
    rest = 0.0
    for stage in range(stages):
        if stage not in (first, second):
            rest = max(rest, tops_7s[GROUP, stage])
    was = tops_7s[GROUP, first] + tops_7s[GROUP, second]
    top = max(rest, tops_7s[GROUP, first], tops_7s[GROUP, second])
    own = own_other = 0.0
    for place in range(width):
        own += costs_3nn[0, comes, device_sp[first, place]]
        own_other += costs_3nn[0, leaves, device_sp[second, place]]
    if not max(rest, own, own_other) - top + left[1] * (own + own_other - was) <= left[0]:
        return np.inf  # the devices that come are too dear alone
    group, group_other = own, own_other
    for place in range(width):
        device = device_sp[first, place]
        total = work_4sp[SUM, first, place] - costs_3nn[0, leaves, device]
        work_4sp[TRIAL, 0, place] = total + costs_3nn[0, comes, device]
        device = device_sp[second, place]
        total = work_4sp[SUM, second, place] - costs_3nn[0, comes, device]
        work_4sp[TRIAL, 1, place] = total + costs_3nn[0, leaves, device]
    work_4sp[TRIAL, 0, one], work_4sp[TRIAL, 1, other] = own, own_other
    for place in range(width):
        group = max(group, work_4sp[TRIAL, 0, place])
        group_other = max(group_other, work_4sp[TRIAL, 1, place])
    change = max(rest, group, group_other) - top
    if not change + left[1] * (group + group_other - was) <= left[0]:
        return np.inf
    for place in range(width):
        work_4sp[SUM, first, place] = work_4sp[TRIAL, 0, place]
        work_4sp[SUM, second, place] = work_4sp[TRIAL, 1, place]
    tops_7s[GROUP, first], tops_7s[GROUP, second] = group, group_other
    return float(change)


@inlined
def _swap_ints(device_sp: Ints, stage: int, one: int, other: int) -> None:
    was = device_sp[stage, one]
    device_sp[stage, one] = device_sp[stage, other]
    device_sp[stage, other] = was


@inlined
def _root(number: float, roots: int) -> float:
    """Square root of square root; rounding may have brought the number below 0."""
    number = max(number, 0.0)
    for _ in range(roots):
        number = np.sqrt(number)
    return number


@inlined
def _part(drawn: np.uint64, shift: int, limit: int) -> int:
    """A number from 0 to limit - 1, limit at most 65536, out of 16 bits of what was drawn."""
    bits = np.int64((drawn >> np.uint64(shift)) & np.uint64(65535))
    return int((bits * limit) >> 16)


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
