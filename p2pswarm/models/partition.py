"""How the blocks of a model are cut into stages.

Units:   costs as the family gives them; for the GPT they are multiplications per token.
Errors:  ValueError for a stage that the run does not have; Unusable for more stages than blocks.
"""

from collections.abc import Sequence
from itertools import accumulate

from p2pswarm.base.errors import Unusable
from p2pswarm.models.blocks import block_costs
from p2pswarm.settings.config import RunConfig


def stage_blocks(run: RunConfig, stage: int) -> range:
    """The numbers of the blocks that stage `stage` of `run.stages` serves.

    They are contiguous, and at least one. Without `run.cut` the costliest stage is as cheap as it
    can be.
    """
    if not 0 <= stage < run.stages:
        raise ValueError(f"stage {stage} of {run.stages}")
    costs = block_costs(run.model)
    if run.stages > len(costs):
        raise Unusable(
            f"run.stages {run.stages} is more than the {len(costs)} blocks that the family "
            f"{run.model.family!r} makes"
        )
    if run.cut and sum(run.cut) != len(costs):
        raise Unusable(
            f"run.cut has {sum(run.cut)} blocks, and the family {run.model.family!r} makes "
            f"{len(costs)}: the numbers have to add up to that"
        )
    borders = [0, *accumulate(run.cut)] if run.cut else cheapest_cut(costs, run.stages)
    return range(borders[stage], borders[stage + 1])


def cheapest_cut(costs: Sequence[float], stages: int) -> list[int]:
    """The borders of the cut whose costliest part is cheapest; of equal cuts the first."""
    count = len(costs)
    sums = [0.0]
    for cost in costs:
        sums.append(sums[-1] + cost)
    best = [[0.0] * (count + 1) for _ in range(stages + 1)]
    came = [[0] * (count + 1) for _ in range(stages + 1)]
    best[0] = [0.0] + [sums[-1] + 1] * count
    for parts in range(1, stages + 1):
        best[parts][0] = sums[-1] + 1
        for end in range(1, count + 1):
            tries = [
                (max(best[parts - 1][start], sums[end] - sums[start]), start)
                for start in range(parts - 1, end)
            ] or [(sums[-1] + 1, 0)]
            best[parts][end], came[parts][end] = min(tries)
    borders = [count]
    for parts in range(stages, 0, -1):
        borders.append(came[parts][borders[-1]])
    return borders[::-1]
