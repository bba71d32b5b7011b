"""Small scenes of one or two faults, each aimed at one way in which a run can stop going on.

A scene is tried at several offsets, because the dangerous moment is short.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from p2pswarm.sim.compute import Cost
from p2pswarm.sim.faults import Fault, FaultKind, FaultPlan

from .chaos_run import Shape

TRAINER, STAGE_0, STAGE_1 = 0, 1, 2
"""The seats of a swarm with one server a stage."""
ONE_EACH = Shape(3, 1.0, Cost(state_bytes=1 << 14, forward_s=0.03), steps=4)
AFTER_STEP = 1


@dataclass(frozen=True, slots=True)
class Scene:
    """One kind of fault at some offsets."""

    name: str
    kind: FaultKind
    seats: tuple[int, ...]
    seconds: float
    at_s: tuple[float, ...]
    step: int | None = AFTER_STEP
    cause: str | None = None
    """Why it fails today; None if it holds."""

    def plans(self) -> Iterator[FaultPlan]:
        """One plan for each offset."""
        for at_s in self.at_s:
            fault = Fault(self.kind, at_s, self.seconds, self.seats, step=self.step)
            yield FaultPlan(1, (fault,))


THROUGH_THE_END = tuple(0.03 * number for number in range(1, 9))
"""Offsets from the start of the averaging to the last answer about the commit."""
SCENES = (
    Scene(
        "the link of a stage's only server is reset at the end of a step",
        FaultKind.RESET,
        (TRAINER, STAGE_1),
        0.0,
        THROUGH_THE_END,
    ),
    Scene(
        "a stage's only server is stopped for 17 s at the end of a step",
        FaultKind.FREEZE,
        (STAGE_1,),
        17.0,
        THROUGH_THE_END,
    ),
    Scene(
        "the trainer is stopped for 17 s at the end of a step",
        FaultKind.FREEZE,
        (TRAINER,),
        17.0,
        THROUGH_THE_END,
    ),
    Scene(
        "the trainer loses every link at the end of a step",
        FaultKind.REJOIN,
        (TRAINER,),
        0.3,
        THROUGH_THE_END,
    ),
    Scene(
        "a stage's only server is stopped for 50 s",
        FaultKind.FREEZE,
        (STAGE_0,),
        50.0,
        (1.5,),
        step=None,
    ),
    Scene(
        "the trainer is stopped for 90 s",
        FaultKind.FREEZE,
        (TRAINER,),
        90.0,
        (1.5,),
        step=None,
    ),
    Scene(
        "nothing passes between the only servers of two stages for 50 s",
        FaultKind.CUT,
        (STAGE_0, STAGE_1),
        50.0,
        (1.5,),
        step=None,
    ),
    Scene(
        "the trainer hears a stage's only server no more for 50 s",
        FaultKind.ONE_WAY,
        (STAGE_1, TRAINER),
        50.0,
        (1.5,),
        step=None,
    ),
)
