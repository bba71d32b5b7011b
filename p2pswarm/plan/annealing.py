"""Simulated annealing of a plan: devices change stages, and partners between two stages.

A layout is the device at each place of each stage, and for each boundary the place in the next
stage that a place is paired with. A boundary costs the slowest of its links as they are paired, so
a move is judged in about a microsecond; the best pairing is found on the way, by moves of its own.
A maximum hides progress, so a share of the means is added to what is annealed. What comes out is
to be judged by the true cost, with the best pairings.

Units:   seconds for costs, and for temperatures, which are compared with costs.
Shapes:  stage, place in a stage, boundary (the one behind the stage of its number), device (n).
Errors:  none.
Source:  Kirkpatrick et al., Science 220, 1983. Random numbers: xorshift64* (Vigna, 2016).
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from p2pswarm.plan.compiled import compiled
from p2pswarm.plan.network import Floats

Ints = NDArray[np.int64]
RandomState = NDArray[np.uint64]
"""One number, not zero."""

ROUNDING_S = 1e-12  # less than this is no progress, but the rounding of sums


class Links(NamedTuple):
    """What links cost."""

    data_s_nn: Floats
    pipeline_s_nn: Floats
    mean_share: float
    """How much a mean counts beside its maximum."""


class Layout(NamedTuple):
    """A plan that moves change in place."""

    device_sp: Ints
    next_bp: Ints


class Cooling(NamedTuple):
    """How long a plan is annealed, and how hot."""

    moves: int
    hot_s: float
    cold_s: float
    pair_share: float
    """The share of the moves that change partners."""


class _Costs(NamedTuple):
    """What a layout costs, part by part."""

    sums_sp: Floats
    """Of each device in its group."""
    groups_s: Floats
    boundaries_b: Floats


class _Proposal(NamedTuple):
    """What two stages and up to four boundaries would cost after a move."""

    sums_2p: Floats
    groups_2: Floats
    touched_4: Ints
    boundaries_4: Floats


class _Luck(NamedTuple):
    """Chance, and how much worse a move may be."""

    state: RandomState
    temperature_s: Floats
    """One number."""


@compiled
def anneal(
    links: Links, layout: Layout, best: Layout, cooling: Cooling, state: RandomState
) -> float:
    """Anneal `layout`; `best` becomes the best on the way. Returns what that cost, with means."""
    stages, width = layout.device_sp.shape
    costs = _costs_of(links, layout)
    trial = _Proposal(np.zeros((2, width)), np.zeros(2), np.zeros(4, np.int64), np.zeros(4))
    luck = _Luck(state, np.full(1, cooling.hot_s))
    cost = _groups_cost(links, costs.groups_s) + costs.boundaries_b.sum()
    least = cost
    _copy(layout, best)
    factor = (cooling.cold_s / cooling.hot_s) ** (1.0 / cooling.moves)
    for _ in range(cooling.moves):
        luck.temperature_s[0] *= factor
        one, other = _below(state, width), _below(state, width)
        if stages == 1 or _share(state) < cooling.pair_share:
            boundary = _below(state, stages - 1) if stages > 1 else 0
            change = _repair(links, layout, costs, (boundary, one, other), luck)
        else:
            a = _below(state, stages)
            b = (a + 1 + _below(state, stages - 1)) % stages
            spots = min(a, b), one, max(a, b), other
            change = _exchange(links, layout, costs, trial, spots, luck)
        cost += change
        if cost < least - ROUNDING_S:
            least = cost
            _copy(layout, best)
    return float(least)


@compiled
def _repair(
    links: Links, layout: Layout, costs: _Costs, spot: tuple[int, int, int], luck: _Luck
) -> float:
    """Let two places before a boundary change partners, if chance allows; returns the change."""
    boundary, one, other = spot
    next_bp = layout.next_bp
    if boundary >= len(next_bp):
        return 0.0
    _swap(next_bp, boundary, one, other)
    cost = _boundary_cost(links, layout, boundary)
    change: float = cost - costs.boundaries_b[boundary]
    if _accepts(luck, change):
        costs.boundaries_b[boundary] = cost
        return change
    _swap(next_bp, boundary, one, other)
    return 0.0


@compiled
def _exchange(
    links: Links,
    layout: Layout,
    costs: _Costs,
    trial: _Proposal,
    spots: tuple[int, int, int, int],
    luck: _Luck,
) -> float:
    """Let devices of two stages change places, if chance allows; returns the change.

    `spots`: the earlier stage and a place in it, then the later one.
    """
    first, one, second, other = spots
    device_sp = layout.device_sp
    leaves, comes = device_sp[first, one], device_sp[second, other]
    device_sp[first, one], device_sp[second, other] = comes, leaves
    _try_group(links, layout, costs, trial, (0, first, one, leaves))
    _try_group(links, layout, costs, trial, (1, second, other, comes))
    change = -_groups_cost(links, costs.groups_s)
    kept_1, kept_2 = costs.groups_s[first], costs.groups_s[second]
    costs.groups_s[first], costs.groups_s[second] = trial.groups_2[0], trial.groups_2[1]
    change += _groups_cost(links, costs.groups_s)
    touched = 0
    for boundary in (first - 1, first, second - 1, second):
        if boundary < 0 or boundary >= len(layout.next_bp):
            continue
        if touched > 0 and trial.touched_4[touched - 1] == boundary:  # of two stages side by side
            continue
        trial.touched_4[touched] = boundary
        trial.boundaries_4[touched] = _boundary_cost(links, layout, boundary)
        change += trial.boundaries_4[touched] - costs.boundaries_b[boundary]
        touched += 1
    if _accepts(luck, change):
        for place in range(trial.sums_2p.shape[1]):
            costs.sums_sp[first, place] = trial.sums_2p[0, place]
            costs.sums_sp[second, place] = trial.sums_2p[1, place]
        for k in range(touched):
            costs.boundaries_b[trial.touched_4[k]] = trial.boundaries_4[k]
        return float(change)
    device_sp[first, one], device_sp[second, other] = leaves, comes
    costs.groups_s[first], costs.groups_s[second] = kept_1, kept_2
    return 0.0


@compiled
def _try_group(
    links: Links, layout: Layout, costs: _Costs, trial: _Proposal, spot: tuple[int, int, int, int]
) -> None:
    """The costs of a group in which a device has come to a place, for one that left it."""
    row, stage, place, left = spot
    came = layout.device_sp[stage, place]
    own = 0.0
    most = 0.0
    for each in range(layout.device_sp.shape[1]):
        device = layout.device_sp[stage, each]
        to_came = links.data_s_nn[device, came]
        own += to_came
        total = costs.sums_sp[stage, each] - links.data_s_nn[device, left] + to_came
        trial.sums_2p[row, each] = total
        if each != place:
            most = max(most, total)
    trial.sums_2p[row, place] = own
    trial.groups_2[row] = max(most, own)


@compiled
def _costs_of(links: Links, layout: Layout) -> _Costs:
    stages, width = layout.device_sp.shape
    costs = _Costs(np.zeros((stages, width)), np.zeros(stages), np.zeros(max(stages - 1, 0)))
    for stage in range(stages):
        for one in range(width):
            for other in range(width):
                link = layout.device_sp[stage, one], layout.device_sp[stage, other]
                costs.sums_sp[stage, one] += links.data_s_nn[link]
        costs.groups_s[stage] = costs.sums_sp[stage].max()
    for boundary in range(stages - 1):
        costs.boundaries_b[boundary] = _boundary_cost(links, layout, boundary)
    return costs


@compiled
def _groups_cost(links: Links, groups_s: Floats) -> float:
    """The slowest group, and a share of the mean of all."""
    most = 0.0
    total = 0.0
    for stage in range(len(groups_s)):
        most = max(most, groups_s[stage])
        total += groups_s[stage]
    return float(most + links.mean_share * total / len(groups_s))


@compiled
def _boundary_cost(links: Links, layout: Layout, boundary: int) -> float:
    """The slowest link over a boundary, and a share of the mean of all."""
    device_sp = layout.device_sp
    width = device_sp.shape[1]
    most = 0.0
    total = 0.0
    for place in range(width):
        after = device_sp[boundary + 1, layout.next_bp[boundary, place]]
        cost = links.pipeline_s_nn[device_sp[boundary, place], after]
        most = max(most, cost)
        total += cost
    return float(most + links.mean_share * total / width)


@compiled
def _swap(next_bp: Ints, boundary: int, one: int, other: int) -> None:
    held = next_bp[boundary, one]
    next_bp[boundary, one] = next_bp[boundary, other]
    next_bp[boundary, other] = held


@compiled
def _copy(layout: Layout, into: Layout) -> None:
    into.device_sp[:] = layout.device_sp
    into.next_bp[:] = layout.next_bp


@compiled
def _accepts(luck: _Luck, change: float) -> bool:
    """Metropolis' rule."""
    return change <= 0 or _share(luck.state) < np.exp(-change / luck.temperature_s[0])


@compiled
def _below(state: RandomState, limit: int) -> int:
    """A number from 0 to limit - 1."""
    return int(np.int64(_random(state) >> np.uint64(33)) % limit)


@compiled
def _share(state: RandomState) -> float:
    """A number from 0 to 1."""
    return float(_random(state) >> np.uint64(11)) / 9007199254740992.0  # 2^53


@compiled
def _random(state: RandomState) -> np.uint64:
    x: np.uint64 = state[0]
    x ^= x >> np.uint64(12)
    x ^= x << np.uint64(25)
    x ^= x >> np.uint64(27)
    state[0] = x
    return np.uint64(x * np.uint64(0x2545F4914F6CDD1D))
