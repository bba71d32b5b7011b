"""Which sums of former incarnations can be parts of a step.

Units:   microbatches by their global number.
Errors:  none; what a server says of its sum is judged.
Source:  docs/training.md, "A sum that outlives its link", "A sum that outlives its coordinator".
"""

import math

from p2pswarm.run.messages.membership import HeldSum
from p2pswarm.run.view import Incarnation
from p2pswarm.trainer.step.in_flight import InFlight
from p2pswarm.trainer.step.ledger import StepLedger

LOSS_MAX = 1e9  # nats per token; 65,536 microbatches of it still sum to a float


class StepSums:
    """What servers say that they have summed of one step, against what the coordinator knows."""

    def __init__(self, step: int, ledger: StepLedger, in_flight: InFlight) -> None:
        self._step = step
        self._ledger = ledger
        self._in_flight = in_flight

    def redo_s(self, one: Incarnation, stage: int, now_s: float) -> float:
        """About how long its stage would take to count again what an incarnation has counted."""
        begun_s, in_stage = self._in_flight.begun_s, self._ledger.counted_in(stage)
        if begun_s is None or not in_stage:
            return 0.0
        return (now_s - begun_s) * self._ledger.counted_by_one(one) / in_stage

    def counted_by(self, one: Incarnation) -> int:
        """How many microbatches an incarnation has counted."""
        return self._ledger.counted_by_one(one)

    def all_counted(self, stage: int) -> bool:
        """Whether a stage has counted every microbatch of the step."""
        return self._ledger.counted_in(stage) == self._ledger.size

    def losses(self, told: HeldSum) -> dict[int, float]:
        """The losses that a sum of the last stage says."""
        known = zip(self._ledger.microbatches(told.counted), told.losses, strict=False)
        return {microbatch: loss for microbatch, loss in known if loss is not None}

    def fits(self, told: HeldSum | None, of: Incarnation, stage: int) -> bool:
        """Whether it can be the sum of an incarnation that was suspended in this step."""
        if told is None or told.incarnation != of.number or told.step != self._step:
            return False
        beyond = self._ledger.fits(told.counted, of, stage)
        return beyond is not None and all(map(self._in_flight.was_launched, beyond))

    def takes(self, told: HeldSum, stage: int) -> bool:
        """Whether a sum from before this coordinator can count.

        Nobody else holds anything of it, and nobody can have begun to count anything of it since.
        """
        nobody = Incarnation(b"", told.incarnation)
        if told.step != self._step:
            return False
        held = self._ledger.fits(told.counted, nobody, stage)
        return held is not None and not any(map(self._in_flight.was_launched, held))


def mean_loss(losses: list[float]) -> float:
    """The mean; NaN if there are no losses, or if one is NaN or beyond `LOSS_MAX`."""
    if not losses or any(abs(loss) > LOSS_MAX for loss in losses):
        return math.nan
    return math.fsum(losses) / len(losses)
