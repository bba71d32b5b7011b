"""How the blocks of a model are cut into stages.

Units:   costs in multiplications per token.
Errors:  ValueError for a stage that the run has not.
"""

from p2pswarm.config import ModelConfig, RunConfig
from p2pswarm.models.blocks import block_count
from p2pswarm.models.gpt import MLP_RATIO


def stage_blocks(run: RunConfig, stage: int) -> range:
    """The numbers of the blocks that stage `stage` of `run.stages` serves.

    Contiguous, at least one each, and the costliest stage as cheap as it can be.
    """
    costs = [block_cost(run.model, number) for number in range(block_count(run.model))]
    if not 0 <= stage < run.stages:
        raise ValueError(f"stage {stage} of {run.stages}")
    borders = _cut(costs, run.stages)
    return range(borders[stage], borders[stage + 1])


def block_cost(model: ModelConfig, number: int) -> int:
    """Multiplications per token, forward."""
    if number == 0:
        return model.d_model  # a look-up
    if number == block_count(model) - 1:
        return model.d_model * model.vocabulary
    attention = 2 * model.d_model * model.sequence_length
    return (4 + 2 * MLP_RATIO) * model.d_model**2 + attention


def _cut(costs: list[int], stages: int) -> list[int]:
    """Borders of the cut whose costliest part is cheapest; the earliest of equals."""
    count = len(costs)
    sums = [0]
    for cost in costs:
        sums.append(sums[-1] + cost)
    best = [[0] * (count + 1) for _ in range(stages + 1)]
    came = [[0] * (count + 1) for _ in range(stages + 1)]
    best[0] = [0] + [sums[-1] + 1] * count
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
