"""Simulated annealing of a plan: devices change stages, and pipelines change partners.

A layout is the device at each place of each stage; the devices at one place are a pipeline. A
boundary costs the slowest of its links as they are; the best pairing is found on the way, by moves
of its own. A maximum hides progress, so a guide is added to what is annealed: the mean of the
groups, and of each boundary the power mean of its links. The power keeps slow links together: one
more costs a boundary much that has none, and little one that has many. What is kept is the best by
the cost itself. What comes out is to be judged again, with the best pairings.

Luck is drawn before moves are judged: it says how much dearer the plan may become. A turn draws a
device and another stage, and judges all exchanges between them (plan/exchanges.py); the first that
luck allows, from a place by chance on, is made. So a turn in the cold costs little more than one
judgement.

Units:   seconds for costs, and for temperatures, which are compared with costs.
Shapes:  stage, place in a stage; others as in plan/exchanges.py.
Errors:  none.
Source:  Kirkpatrick et al., Science 220, 1983. Random numbers: xorshift64* (Vigna, 2016).
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from p2pswarm.plan.compiled import compiled, inlined
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
    slowest_other,
)
from p2pswarm.plan.network import Floats, Ints

RandomState = NDArray[np.uint64]
"""One number, not zero."""

ROUNDING_S = 1e-9  # less than this is no progress, but the rounding of sums
CROSSING, OWN, EXCHANGE = 0, 1, 2  # kinds of turns; an exchange of one's own is within a pipeline


class Cooling(NamedTuple):
    """How long a plan is annealed, how hot, and how much the guide counts beside the cost."""

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
    device_tp, parts_tk, links_3tp = judged(costs_2mm, device_sp)
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
            hits = likely_crossings(costs_2mm, device_tp, parts_tk, links_3tp, drawn, rule)
        elif kind == OWN:
            hits = likely_own(costs_2mm, device_tp, parts_tk, links_3tp, drawn, rule)
        elif abs(one - other) == 1:
            hits = likely_near(costs_2mm, device_tp, parts_tk, links_3tp, drawn, rule)
        else:
            hits = likely_far(costs_2mm, device_tp, parts_tk, links_3tp, drawn, rule)
        moves += looks
        while hits != 0:
            turn = _next(hits, turn, looks)
            hits &= ~(1 << turn)
            spots = _spots(kind, drawn, turn)
            rest = slowest_other(parts_tk, one, spots[2])
            rule = heat_s * CHANCES[chance + turn], guide / stages, guide, rest
            if kind == CROSSING:
                change = cross(costs_2mm, device_tp, parts_tk, links_3tp, spots)
            else:
                change = exchange(costs_2mm, device_tp, parts_tk, links_3tp, spots, rule)
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
    """What a turn is about: its kind, where, how many places are judged, and which comes first."""
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
    """What a hit means."""
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
