"""The modules that `run.model.boundary` may name."""

from collections.abc import Callable
from dataclasses import dataclass

from p2pswarm.models.boundary_modules.base import CutSizes, Half
from p2pswarm.models.boundary_modules.peers import LinearHalf, MaxoutSender, ResidualHalf
from p2pswarm.models.boundary_modules.projector import ProjectorReceiver, ProjectorSender
from p2pswarm.models.boundary_modules.subspace import SubspaceReceiver, SubspaceSender


@dataclass(frozen=True, slots=True)
class ModulePair:
    """How both halves of a cut are made."""

    sender: Callable[[CutSizes], Half]
    receiver: Callable[[CutSizes], Half]
    tokens: bool = False
    """True if the halves need the tokens, and rows may begin with fixed signs of these."""


PAIRS = {
    "projector": ModulePair(ProjectorSender, ProjectorReceiver, tokens=True),
    "subspace": ModulePair(SubspaceSender, SubspaceReceiver, tokens=True),
    "resbm": ModulePair(
        lambda sizes: ResidualHalf(sizes.width, sizes.narrow, sizes),
        lambda sizes: ResidualHalf(sizes.narrow, sizes.width, sizes),
    ),
    "bottleneck": ModulePair(
        lambda sizes: LinearHalf(sizes.width, sizes.narrow, sizes),
        lambda sizes: LinearHalf(sizes.narrow, sizes.width, sizes),
    ),
    "maxout": ModulePair(MaxoutSender, lambda sizes: LinearHalf(sizes.narrow, sizes.width, sizes)),
}
"""By their names in the settings."""


def pair_of(name: str) -> ModulePair:
    """The modules of that name."""
    return PAIRS[name]
