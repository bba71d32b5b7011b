"""Every pipelined plan of a few devices: where there are not many, trying all takes no time.

The best of all is proven to be the best, which annealing never is.

Errors:  none.
"""

import math
from collections.abc import Iterator, Sequence
from itertools import combinations, product

import numpy as np

from p2pswarm.plan.pipelined_annealing import Draft, Needs, parts_of, step_s

PLANS_MAX = 30_000  # to be tried: a second and a half; four devices, eight blocks


def plan_count(devices: int, blocks: int, stages: int) -> int:
    """How many plans `every_draft` gives at most."""
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
