"""Microbatches without a finite gradient: set aside by order, recorded, and not too many of them.

A microbatch that is not finite on any path counts as a gradient of zeros in every stage. The step
goes on with all the others, and divides by the same number as ever, so its weights are those of a
plain loop with the same rule. One such microbatch is an accident of the text. Many of them, or some
in each step, mean that the training has failed, and then the run ends while the weights are whole.

Units:   microbatches by their global number.
Errors:  none.
Source:  docs/training.md, "A gradient that is not finite".
"""

from p2pswarm.trainer.reports import actions as act

SHARE_MAX = 1 / 8  # of a step: what is left is still an unbiased gradient of most of the batch
STEPS_MAX = 5  # in a row, each with a microbatch set aside: it is the weights by now, not the text


def most_in_step(microbatches: int) -> int:
    """How many microbatches of a step may be set aside: a share of it, and one at least."""
    return max(1, int(microbatches * SHARE_MAX))


class Quarantine:
    """What was set aside in the step in progress, and in the steps before it."""

    def __init__(self, microbatches: int) -> None:
        """`microbatches`: of a step."""
        self._size = microbatches
        self._here: list[int] = []
        self._steps = 0
        """Steps in a row, up to the last decided one, each with a microbatch set aside."""
        self.hopeless: str | None = None
        """Why the run must end, if it must."""

    def add(self, aside: act.Quarantined) -> None:
        """Hear what was set aside in the step."""
        if aside.held_out:
            return  # nothing is trained on it
        step, reason = aside.step, aside.reason
        self._here.append(aside.microbatch)
        if len(self._here) > most_in_step(self._size):
            count = f"{len(self._here)} of the {self._size} microbatches of step {step}"
            self.hopeless = f"{count} are not finite on any server: {reason}"
        elif self._steps + 1 > STEPS_MAX:
            row = f"{STEPS_MAX + 1} steps in a row have a microbatch that is not finite"
            self.hopeless = f"{row}: {reason}"

    def decided(self) -> tuple[int, ...]:
        """The step is over; what was set aside in it, in order."""
        here, self._here = tuple(sorted(self._here)), []
        self._steps = self._steps + 1 if here else 0
        return here
