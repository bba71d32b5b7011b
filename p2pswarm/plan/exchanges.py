"""The costs of a plan's moves: a device against all those of another stage in one loop.

Two devices of two stages change places (an exchange), or two pipelines what they have after a
boundary (a crossing). Nearly all moves come to nothing in the cold, so one device is judged with
every device of another stage at once: the loop has no branch and writes nothing, so it is compiled
to vectors, and a judgement costs a tenth of one made alone. It bounds an exchange from below, by
what both newcomers have to exchange in their new groups; those few that luck may allow are judged
again in full.

Two sums make that short. Each stage has the sum of what each device would exchange with it, which
changes only when a move is made; and each link has what its boundary costs without it.

Units:   seconds. "Dearer" is a change of the cost; a "rise" one of the guide, times its weight.
Shapes:  stage with nobody before the first and after the last (t), so that every stage has two
         boundaries; place in a stage (p); device, and one that stands for nobody, whose links cost
         nothing (m); device (n). A boundary has the number of the stage before it.
"""

from typing import NamedTuple

import numpy as np

from p2pswarm.kernels.jit import compiled, inlined
from p2pswarm.plan.network import Floats, Ints

DATA, PIPELINE = 0, 1  # of costs_2mm
MOST, SECOND, THIRD, SQUARES, POWER, GROUP, SUMS = 0, 1, 2, 3, 4, 5, 6  # of parts_tk
LINK, REST, REST_SQUARES = 0, 1, 2  # of links_3tp
LOOK_MAX = 64  # places that are judged in one loop: the bits of a number
LUCKS = 4096
_SHUFFLED = np.random.default_rng(0).permutation(LUCKS)
CHANCES = -np.log((np.concatenate((_SHUFFLED, _SHUFFLED[:LOOK_MAX])) + 0.5) / LUCKS)
"""How much dearer a plan may become by Metropolis' rule, times the temperature, in any order:
neighbours are as good as drawn one by one, and lie together."""

Spots = tuple[int, int, int, int]
"""A stage and a place in it, and another stage and a place in that."""
Where = tuple[int, int, int, int, int]
"""A stage and a place in it; another stage, the first place in it that is judged, and where its
luck stands in CHANCES."""
Rule = tuple[float, float, float, float]
"""The temperature, or how much dearer a plan may become; what a group counts as a guide beside the
cost, and what a boundary's power mean does; the slowest group of stages that are not touched."""


class JudgedPlan(NamedTuple):
    """A plan and what its parts cost; moves change both in place."""

    costs_2mm: Floats
    """The costs of each link: its use for data, and in a pipeline."""
    device_tp: Ints
    parts_tk: Floats
    """MOST to POWER of a boundary; GROUP of a stage, and from SUMS on each device's sum of data
    costs with the stage's devices."""
    links_3tp: Floats
    """Each link; the slowest other one of its boundary; the others' mean of squares."""


def planes_of(data_s_nn: Floats, pipeline_s_nn: Floats) -> Floats:
    """`costs_2mm`."""
    return np.stack([np.pad(each, (0, 1)) for each in (data_s_nn, pipeline_s_nn)])


@compiled
def judged(costs_2mm: Floats, device_sp: Ints) -> JudgedPlan:
    """A plan, and what its parts cost."""
    stages, width = device_sp.shape
    nobody = costs_2mm.shape[1] - 1
    device_tp = np.full((stages + 2, width), nobody)
    device_tp[1 : stages + 1] = device_sp
    parts_tk = np.zeros((stages + 2, SUMS + nobody))
    links_3tp = np.zeros((3, stages + 1, width))
    for stage in range(1, stages + 1):
        for place in range(width):
            device = device_tp[stage, place]
            for other in range(nobody):
                parts_tk[stage, SUMS + other] += costs_2mm[DATA, device, other]
        for place in range(width):
            own_s = parts_tk[stage, SUMS + device_tp[stage, place]]
            parts_tk[stage, GROUP] = max(parts_tk[stage, GROUP], own_s)
    plan = JudgedPlan(costs_2mm, device_tp, parts_tk, links_3tp)
    for boundary in range(stages + 1):
        settle(plan, boundary)
    return plan


@compiled
def cost_s(parts_tk: Floats) -> float:
    """Return what a plan costs with its pairings as they are."""
    return float(parts_tk[:, GROUP].max() + parts_tk[:, MOST].sum())


@compiled
def guide_s(parts_tk: Floats) -> float:
    """The guide beside a plan's cost while it is annealed: means, which see more than a maximum."""
    groups_s = parts_tk[:, GROUP].sum() / (len(parts_tk) - 2)
    return float(groups_s + parts_tk[:, POWER].sum())


@inlined
def settle(plan: JudgedPlan, boundary: int) -> None:
    """Note what a boundary costs."""
    costs_2mm, device_tp, parts_tk, links_3tp = plan
    width = device_tp.shape[1]
    most = second = third = squares = 0.0
    for place in range(width):
        pair = device_tp[boundary, place], device_tp[boundary + 1, place]
        link = costs_2mm[PIPELINE, pair[0], pair[1]]
        links_3tp[LINK, boundary, place] = link
        third = max(third, min(second, link))
        second = max(second, min(most, link))
        most = max(most, link)
        squares += link * link
    squares /= width
    for place in range(width):
        link = links_3tp[LINK, boundary, place]
        links_3tp[REST, boundary, place] = second if link == most else most
        links_3tp[REST_SQUARES, boundary, place] = max(squares - link * link / width, 0.0)
    parts_tk[boundary, MOST] = most
    parts_tk[boundary, SECOND] = second
    parts_tk[boundary, THIRD] = third
    parts_tk[boundary, SQUARES] = squares
    parts_tk[boundary, POWER] = np.sqrt(squares)


@inlined
def _with_link(
    plan: JudgedPlan, boundary: int, place: int, new: tuple[float, float]
) -> tuple[float, float]:
    """By how much a boundary becomes dearer with another link at a place, and its guide rises.

    `new`: the link's cost, and the guide's weight.
    """
    parts_tk, links_3tp = plan.parts_tk, plan.links_3tp
    link, guide = new
    squares = link * link * (1.0 / links_3tp.shape[2]) + links_3tp[REST_SQUARES, boundary, place]
    rise = guide * (np.sqrt(squares) - parts_tk[boundary, POWER])
    return max(link, links_3tp[REST, boundary, place]) - parts_tk[boundary, MOST], rise


@inlined
def _with_links(
    plan: JudgedPlan, boundary: int, places: tuple[int, int], new: tuple[float, float, float]
) -> tuple[float, float]:
    """The same with other links at two places; `new`: their costs, and the guide's weight."""
    parts_tk, links_3tp = plan.parts_tk, plan.links_3tp
    link, link_too, guide = new
    was, was_too = links_3tp[LINK, boundary, places[0]], links_3tp[LINK, boundary, places[1]]
    high, low = max(was, was_too), min(was, was_too)
    most, second = parts_tk[boundary, MOST], parts_tk[boundary, SECOND]
    rest = most if high < most else (second if low < second else parts_tk[boundary, THIRD])
    change = link * link + link_too * link_too - was * was - was_too * was_too
    squares = parts_tk[boundary, SQUARES] + change * (1.0 / links_3tp.shape[2])
    rise = guide * (np.sqrt(max(squares, 0.0)) - parts_tk[boundary, POWER])
    return max(link, link_too, rest) - most, rise


@inlined
def slowest_other(parts_tk: Floats, one: int, other: int) -> float:
    """The cost of the slowest group beside those of two stages."""
    rest = 0.0
    for stage in range(1, parts_tk.shape[0] - 1):
        if stage not in (one, other):
            rest = max(rest, parts_tk[stage, GROUP])
    return rest


@inlined
def _newcomers(
    plan: JudgedPlan, stages: tuple[int, int], pair: tuple[int, int], rule: Rule
) -> float:
    """A bound of how much dearer groups become, guide and all, by what newcomers exchange.

    `pair`: the devices of the two stages that change places.
    """
    costs_2mm, parts_tk = plan.costs_2mm, plan.parts_tk
    one, other = stages
    link = costs_2mm[DATA, pair[0], pair[1]]
    own = parts_tk[one, SUMS + pair[1]] - link
    own_other = parts_tk[other, SUMS + pair[0]] - link
    group, group_other = parts_tk[one, GROUP], parts_tk[other, GROUP]
    change = max(rule[3], own, own_other) - max(rule[3], group, group_other)
    return float(change + rule[1] * (own + own_other - (group + group_other)))


@inlined
def _links_apart(plan: JudgedPlan, spots: Spots, guide: float) -> float:
    """By how much boundaries become dearer, guide and all, for spots of stages not side by side."""
    costs_2mm, device_tp = plan.costs_2mm, plan.device_tp
    one, place, other, spot = spots
    leaves, comes = device_tp[one, place], device_tp[other, spot]
    new = costs_2mm[PIPELINE, device_tp[one - 1, place], comes], guide
    more, rise = _with_link(plan, one - 1, place, new)
    new = costs_2mm[PIPELINE, device_tp[one + 1, place], comes], guide
    more_after, rise_after = _with_link(plan, one, place, new)
    dearer = more + rise + more_after + rise_after
    new = costs_2mm[PIPELINE, leaves, device_tp[other - 1, spot]], guide
    more, rise = _with_link(plan, other - 1, spot, new)
    new = costs_2mm[PIPELINE, leaves, device_tp[other + 1, spot]], guide
    more_after, rise_after = _with_link(plan, other, spot, new)
    return float(dearer + more + rise + more_after + rise_after)


@inlined
def likely_far(plan: JudgedPlan, where: Where, rule: Rule) -> int:
    """The devices of a stage that may change places with one of a stage not beside it: bits."""
    device_tp = plan.device_tp
    stage, place, other, first, luck = where
    device, hits = device_tp[stage, place], 0
    for turn in range(min(device_tp.shape[1] - first, LOOK_MAX)):
        spot = first + turn
        comes = device_tp[other, spot]
        dearer = _newcomers(plan, (stage, other), (device, comes), rule)
        spots = stage, place, other, spot
        dearer += _links_apart(plan, spots, rule[2])
        hits |= int(dearer <= rule[0] * CHANCES[luck + turn]) << turn
    return hits


@inlined
def likely_own(plan: JudgedPlan, where: Where, rule: Rule) -> int:
    """The devices of a pipeline that may change places with one of it, but those beside: bits.

    `where`: its stage and place; a number that is not used, the first stage less one, the luck.
    """
    device_tp, parts_tk = plan.device_tp, plan.parts_tk
    stage, place, _, first, luck = where
    device, hits = device_tp[stage, place], 0
    most = second = 0.0
    for other in range(1, parts_tk.shape[0] - 1):
        group = parts_tk[other, GROUP] if other != stage else 0.0
        second, most = max(second, min(most, group)), max(most, group)
    for turn in range(min(parts_tk.shape[0] - 2 - first, LOOK_MAX)):
        other = first + turn + 1
        rest = second if parts_tk[other, GROUP] == most else most
        comes, own = device_tp[other, place], (rule[0], rule[1], rule[2], rest)
        dearer = _newcomers(plan, (stage, other), (device, comes), own)
        spots = stage, place, other, place
        dearer += _links_apart(plan, spots, rule[2])
        apart = abs(stage - other) > 1
        hits |= int(apart and dearer <= rule[0] * CHANCES[luck + turn]) << turn
    return hits


@inlined
def likely_near(plan: JudgedPlan, where: Where, rule: Rule) -> int:
    """`likely_far` for the stage before the one's or after it."""
    costs_2mm, device_tp = plan.costs_2mm, plan.device_tp
    stage, place, other, first, luck = where
    device, beside, hits = device_tp[stage, place], device_tp[other, place], 0
    before, after = 2 * stage - other, 2 * other - stage
    out, between, far = min(stage, before), min(stage, other), min(other, after)
    for turn in range(min(device_tp.shape[1] - first, LOOK_MAX)):
        spot = first + turn
        comes = device_tp[other, spot]
        dearer = _newcomers(plan, (stage, other), (device, comes), rule)
        link = costs_2mm[PIPELINE, device_tp[before, place], comes]
        more, rise = _with_link(plan, out, place, (link, rule[2]))
        dearer += more + rise
        link = costs_2mm[PIPELINE, device, device_tp[after, spot]]
        more, rise = _with_link(plan, far, spot, (link, rule[2]))
        dearer += more + rise
        link = costs_2mm[PIPELINE, comes, beside]
        link_too = costs_2mm[PIPELINE, device_tp[stage, spot], device]
        new = link, link_too, rule[2]
        more, rise = _with_links(plan, between, (place, spot), new)
        dearer += more + rise if spot != place else 0.0  # they change ends of one link
        hits |= int(dearer <= rule[0] * CHANCES[luck + turn]) << turn
    return hits


@inlined
def likely_crossings(plan: JudgedPlan, where: Where, rule: Rule) -> int:
    """The pipelines that may change with one what they have after a stage: bits."""
    costs_2mm, device_tp = plan.costs_2mm, plan.device_tp
    boundary, place, _, first, luck = where
    before, after, hits = device_tp[boundary, place], device_tp[boundary + 1, place], 0
    for turn in range(min(device_tp.shape[1] - first, LOOK_MAX)):
        spot = first + turn
        link = costs_2mm[PIPELINE, before, device_tp[boundary + 1, spot]]
        link_too = costs_2mm[PIPELINE, after, device_tp[boundary, spot]]
        new = link, link_too, rule[2]
        more, rise = _with_links(plan, boundary, (place, spot), new)
        likely = spot != place and more + rise <= rule[0] * CHANCES[luck + turn]
        hits |= int(likely) << turn
    return hits


@inlined
def exchange(plan: JudgedPlan, spots: Spots, rule: Rule) -> float:
    """Let two devices change places if the plan becomes no dearer than `rule` allows.

    Returns by how much the cost itself changes, or infinity if they stay.
    """
    costs_2mm, device_tp, parts_tk = plan.costs_2mm, plan.device_tp, plan.parts_tk
    one, place, other, spot = spots
    leaves, comes = device_tp[one, place], device_tp[other, spot]
    device_tp[one, place], device_tp[other, spot] = comes, leaves
    dearer, rise = _boundaries(plan, spots, rule[2])
    group = group_other = 0.0
    for turn in range(device_tp.shape[1]):
        device = device_tp[one, turn]
        sum_s = parts_tk[one, SUMS + device] - costs_2mm[DATA, leaves, device]
        group = max(group, sum_s + costs_2mm[DATA, comes, device])
        device = device_tp[other, turn]
        sum_s = parts_tk[other, SUMS + device] - costs_2mm[DATA, comes, device]
        group_other = max(group_other, sum_s + costs_2mm[DATA, leaves, device])
    was, was_other = parts_tk[one, GROUP], parts_tk[other, GROUP]
    dearer += max(rule[3], group, group_other) - max(rule[3], was, was_other)
    rise += rule[1] * (group + group_other - (was + was_other))
    if not dearer + rise <= rule[0]:
        device_tp[one, place], device_tp[other, spot] = leaves, comes
        return np.inf
    for device in range(costs_2mm.shape[1] - 1):
        more = costs_2mm[DATA, comes, device] - costs_2mm[DATA, leaves, device]
        parts_tk[one, SUMS + device] += more
        parts_tk[other, SUMS + device] -= more
    parts_tk[one, GROUP], parts_tk[other, GROUP] = group, group_other
    for boundary in (one - 1, one, other - 1, other):
        settle(plan, boundary)
    return float(dearer)


@inlined
def _boundaries(plan: JudgedPlan, spots: Spots, guide: float) -> tuple[float, float]:
    """By how much boundaries become dearer, and the guide rises, now that two have changed."""
    costs_2mm, device_tp = plan.costs_2mm, plan.device_tp
    dearer = rise = 0.0
    for one, place, other, spot in (spots, (spots[2], spots[3], spots[0], spots[1])):
        for boundary in (one - 1, one):
            link = costs_2mm[PIPELINE, device_tp[boundary, place], device_tp[boundary + 1, place]]
            if boundary not in (other - 1, other):
                more, up = _with_link(plan, boundary, place, (link, guide))
            elif one < other and place != spot:
                link_too = costs_2mm[
                    PIPELINE, device_tp[boundary, spot], device_tp[boundary + 1, spot]
                ]
                new = link, link_too, guide
                more, up = _with_links(plan, boundary, (place, spot), new)
            else:
                more = up = 0.0
            dearer, rise = dearer + more, rise + up
    return dearer, rise


@inlined
def cross(plan: JudgedPlan, spots: Spots) -> float:
    """Let two pipelines change what they have after a boundary; returns by how much the cost grows.

    `spots`: the boundary and a place, twice.
    """
    device_tp, parts_tk, links_3tp = plan.device_tp, plan.parts_tk, plan.links_3tp
    boundary, one, _, other = spots
    was = parts_tk[boundary, MOST]
    for stage in range(boundary + 1, device_tp.shape[0] - 1):
        device = device_tp[stage, one]
        device_tp[stage, one], device_tp[stage, other] = device_tp[stage, other], device
        for row in range(3):
            number = links_3tp[row, stage, one]
            links_3tp[row, stage, one] = links_3tp[row, stage, other]
            links_3tp[row, stage, other] = number
    settle(plan, boundary)
    return float(parts_tk[boundary, MOST] - was)
