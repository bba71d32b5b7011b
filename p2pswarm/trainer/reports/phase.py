"""What a run is doing, as its coordinator sees it."""

from enum import Enum


class Phase(Enum):
    """What the run is doing."""

    GATHERING = "waiting for servers"
    FILLING = "microbatches are on their way"
    REDUCING = "the step's gradients are being averaged"
    DECIDING = "all hold the gradient, and the voters are asked"
    ENDED = "over"
