"""What one way of computing a model gives, and how two differ.

Units:   relative to the largest value of a gradient.
Errors:  none.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from p2pswarm.models.compute.flat_parameters import FlatParameters
from p2pswarm.models.compute.parameter_names import named_parameters

TOLERANCE = 1e-9  # of float64: sums of several gradients may round in another order
Gradients = dict[str, Tensor]


@dataclass(frozen=True, slots=True)
class Computed:
    """What one way of computing gave for the same tokens."""

    loss: float
    gradients: Gradients

    @property
    def finite(self) -> bool:
        """Whether all of it is."""
        each = (gradient.isfinite().all() for gradient in self.gradients.values())
        return math.isfinite(self.loss) and all(each)


def gradients_of(flats: Sequence[FlatParameters]) -> Gradients:
    """The gradient of each parameter; of a tied one the sum over both ends of the model."""
    found: Gradients = {}
    for flat in flats:
        names = (name for name, _ in named_parameters(flat.numbers, flat.blocks))
        for name, total in zip(names, flat.sums, strict=True):
            found[name] = found[name] + total if name in found else total
    return found


def difference_of(
    one: Computed, other: Computed, tolerance: float = TOLERANCE
) -> tuple[float, str]:
    """The largest relative difference, and the first parameter that differs by too much."""
    worst, problem = 0.0, ""
    for name, gradient in one.gradients.items():
        theirs = other.gradients[name]
        scale = max(gradient.abs().max().item(), theirs.abs().max().item()) or 1.0
        apart = (gradient - theirs).abs().max().item() / scale
        if not apart <= tolerance and not problem:
            problem = f"the gradient of {name} differs by {apart:.1e} of its largest value"
        worst = max(worst, apart)
    off = abs(one.loss - other.loss)
    if not off <= tolerance * max(abs(one.loss), 1.0) and not problem:
        problem = f"the losses differ by {off:.1e}, and no gradient does"
    return worst, problem
