"""What the stages of a run are expected to cost before anybody has measured them.

Units:   of the mean stage's work.
Errors:  none.
"""

from itertools import accumulate, pairwise

from p2pswarm.models.blocks import block_costs
from p2pswarm.settings.config import RunConfig


def expected_costs(config: RunConfig) -> list[float] | None:
    """Of the stages of a cut that somebody chose, by their blocks' work; None: they are alike."""
    if not config.cut or config.emulated:
        return None
    costs = block_costs(config.model)
    ends = list(accumulate(config.cut, initial=0))
    work = [sum(costs[first:after]) for first, after in pairwise(ends)]
    mean = sum(work) / len(work)
    return [each / mean for each in work] if min(work) > 0 else None
