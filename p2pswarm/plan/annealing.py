"""Simulated annealing of a plan: devices change stages, and pipelines change partners.

A layout is the device at each place of each stage; the devices at one place are a pipeline. A
boundary costs the slowest of its links as they are, so a move is judged in a fraction of a
microsecond; the best pairing is found on the way, by moves of its own. A maximum hides progress,
so a share of the means is added to what is annealed; it fades as the plan cools, and what is kept
is the best by the cost itself. What comes out is to be judged again, with the best pairings.

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

ROUNDING_S = 1e-9  # less than this is no progress, but the rounding of sums


class Links(NamedTuple):
    """What links cost."""

    data_s_nn: Floats
    pipeline_s_nn: Floats


class Cooling(NamedTuple):
    """How long a plan is annealed, how hot, and how much means count beside maxima."""

    moves: int
    hot_s: float
    cold_s: float
    pair_share: float
    """The share of the moves that change partners."""
    own_share: float
    """Of the other moves, those within a pipeline: where it stays in a region, it still may."""
    hot_means: float
    cold_means: float


class _Layout(NamedTuple):
    """A plan that moves change in place, and what its parts cost."""

    device_sp: Ints
    sums_sp: Floats
    """Of each device in its group."""
    links_bp: Floats
    groups_s: Floats
    """The slowest device of each."""
    most_b: Floats
    """The slowest link of each."""


class _Proposal(NamedTuple):
    """What two stages would cost after a move, and what four links cost before it."""

    sums_2p: Floats
    boundary_4: Ints
    place_4: Ints
    link_4: Floats
    luck: RandomState
    heat: Floats
    """Temperature, and how much means count."""


@compiled
def anneal(
    links: Links, device_sp: Ints, best_sp: Ints, cooling: Cooling, luck: RandomState
) -> float:
    """Anneal `device_sp`; `best_sp` becomes the cheapest on the way. Returns what that costs."""
    stages, width = device_sp.shape
    layout = _layout(links, device_sp)
    heat = np.array([cooling.hot_s, cooling.hot_means])
    trial = _Proposal(
        np.zeros((2, width)), np.zeros(4, np.int64), np.zeros(4, np.int64), np.zeros(4), luck, heat
    )
    cost = layout.groups_s.max() + layout.most_b.sum()
    least = cost
    best_sp[:] = device_sp
    factor = (cooling.cold_s / cooling.hot_s) ** (1.0 / cooling.moves)
    fade = (cooling.cold_means - cooling.hot_means) / cooling.moves
    for _ in range(cooling.moves):
        heat[0] *= factor
        heat[1] += fade
        one, other = below(luck, width), below(luck, width)
        if stages == 1 or share(luck) < cooling.pair_share:
            if stages > 1 and one != other:
                cost += _repair(links, layout, trial, below(luck, stages - 1), one, other)
        else:
            a = below(luck, stages)
            b = (a + 1 + below(luck, stages - 1)) % stages
            if share(luck) < cooling.own_share:
                other = one
            if a < b:
                cost += _exchange(links, layout, trial, (a, one, b, other))
            else:
                cost += _exchange(links, layout, trial, (b, other, a, one))
        if cost < least - ROUNDING_S:
            least = cost
            best_sp[:] = device_sp
    return float(least)


@compiled
def _layout(links: Links, device_sp: Ints) -> _Layout:
    stages, width = device_sp.shape
    boundaries = max(stages - 1, 0)
    layout = _Layout(
        device_sp,
        np.zeros((stages, width)),
        np.zeros((boundaries, width)),
        np.zeros(stages),
        np.zeros(boundaries),
    )
    for stage in range(stages):
        for one in range(width):
            for other in range(width):
                pair = device_sp[stage, one], device_sp[stage, other]
                layout.sums_sp[stage, one] += links.data_s_nn[pair]
        layout.groups_s[stage] = layout.sums_sp[stage].max()
    for boundary in range(boundaries):
        for place in range(width):
            pair = device_sp[boundary, place], device_sp[boundary + 1, place]
            layout.links_bp[boundary, place] = links.pipeline_s_nn[pair]
        layout.most_b[boundary] = layout.links_bp[boundary].max()
    return layout


@compiled
def _repair(
    links: Links, layout: _Layout, trial: _Proposal, boundary: int, one: int, other: int
) -> float:
    """Let two pipelines change what follows after a boundary, if chance allows.

    Returns by how much the cost itself changes.
    """
    device_sp, links_b = layout.device_sp, layout.links_bp[boundary]
    was_one, was_other = links_b[one], links_b[other]
    links_b[one] = links.pipeline_s_nn[device_sp[boundary, one], device_sp[boundary + 1, other]]
    links_b[other] = links.pipeline_s_nn[device_sp[boundary, other], device_sp[boundary + 1, one]]
    most = layout.most_b[boundary]
    if max(links_b[one], links_b[other]) >= most:
        most = max(links_b[one], links_b[other])
    elif max(was_one, was_other) >= most:
        most = links_b.max()
    more = links_b[one] + links_b[other] - was_one - was_other
    change: float = most - layout.most_b[boundary]
    if not _accepts(trial, change + trial.heat[1] * more / len(links_b)):
        links_b[one], links_b[other] = was_one, was_other
        return 0.0
    layout.most_b[boundary] = most
    for stage in range(boundary + 1, len(device_sp)):
        _swap_ints(device_sp[stage], one, other)
        _swap(layout.sums_sp[stage], one, other)
        if stage < len(device_sp) - 1:
            _swap(layout.links_bp[stage], one, other)
    return change


@compiled
def _exchange(
    links: Links, layout: _Layout, trial: _Proposal, spots: tuple[int, int, int, int]
) -> float:
    """Let devices of two stages change places, if chance allows.

    `spots`: the earlier stage and a place in it, then the later one. Returns by how much the cost
    itself changes.
    """
    first, one, second, other = spots
    device_sp, groups_s = layout.device_sp, layout.groups_s
    stages, width = device_sp.shape
    leaves, comes = device_sp[first, one], device_sp[second, other]
    group_1 = _try_group(links, layout, trial.sums_2p[0], (first, one, comes))
    group_2 = _try_group(links, layout, trial.sums_2p[1], (second, other, leaves))
    change = -groups_s.max()
    was_1, was_2 = groups_s[first], groups_s[second]
    groups_s[first], groups_s[second] = group_1, group_2
    change += groups_s.max()
    means = (group_1 + group_2 - was_1 - was_2) / stages
    device_sp[first, one], device_sp[second, other] = comes, leaves
    touched = 0
    for stage, place in ((first - 1, one), (first, one), (second - 1, other), (second, other)):
        if stage < 0 or stage == stages - 1:
            continue
        last = touched - 1
        if touched > 0 and trial.boundary_4[last] == stage and trial.place_4[last] == place:
            continue  # the same link, seen from its other end
        trial.boundary_4[touched], trial.place_4[touched] = stage, place
        trial.link_4[touched] = layout.links_bp[stage, place]
        pair = device_sp[stage, place], device_sp[stage + 1, place]
        layout.links_bp[stage, place] = links.pipeline_s_nn[pair]
        means += (layout.links_bp[stage, place] - trial.link_4[touched]) / width
        touched += 1
    for k in range(touched):
        boundary = trial.boundary_4[k]
        if k == 0 or trial.boundary_4[k - 1] != boundary:
            change += layout.links_bp[boundary].max() - layout.most_b[boundary]
    if not _accepts(trial, change + trial.heat[1] * means):
        device_sp[first, one], device_sp[second, other] = leaves, comes
        groups_s[first], groups_s[second] = was_1, was_2
        for k in range(touched):
            layout.links_bp[trial.boundary_4[k], trial.place_4[k]] = trial.link_4[k]
        return 0.0
    layout.sums_sp[first] = trial.sums_2p[0]
    layout.sums_sp[second] = trial.sums_2p[1]
    for k in range(touched):
        boundary = trial.boundary_4[k]
        layout.most_b[boundary] = layout.links_bp[boundary].max()
    return float(change)


@compiled
def _try_group(links: Links, layout: _Layout, sums_p: Floats, spot: tuple[int, int, int]) -> float:
    """The cost of a group in which a device comes to a place; `sums_p` becomes its devices'."""
    stage, place, comes = spot
    to_comes, to_left = links.data_s_nn[comes], links.data_s_nn[layout.device_sp[stage, place]]
    own = 0.0
    most = 0.0
    for each in range(len(sums_p)):
        if each == place:
            continue
        device = layout.device_sp[stage, each]
        own += to_comes[device]
        total = layout.sums_sp[stage, each] - to_left[device] + to_comes[device]
        sums_p[each] = total
        most = max(most, total)
    sums_p[place] = own
    return float(max(most, own))


@compiled
def _swap(row: Floats, one: int, other: int) -> None:
    row[one], row[other] = row[other], row[one]


@compiled
def _swap_ints(row: Ints, one: int, other: int) -> None:
    row[one], row[other] = row[other], row[one]


@compiled
def _accepts(trial: _Proposal, change: float) -> bool:
    """Metropolis' rule."""
    return change <= 0 or share(trial.luck) < np.exp(-change / trial.heat[0])


@compiled
def below(state: RandomState, limit: int) -> int:
    """A number from 0 to limit - 1."""
    scaled = (_random(state) >> np.uint64(32)) * np.uint64(limit)
    return int(np.int64(scaled >> np.uint64(32)))


@compiled
def share(state: RandomState) -> float:
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
