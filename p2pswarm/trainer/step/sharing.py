"""Work that the servers of a stage hand on to one that has come: what each gives up for it.

All microbatches of a step are mostly under way when a server comes, and a push stays where it is.
So a stage that was served by one slow server for a while would be as slow for the rest of the step,
though three others are back. Therefore what a server has more than its share of is given up, fenced
like any attempt, and launched again; routers choose the new server then.

The oldest attempts stay: they are the likeliest to be computed already. Each microbatch is handed
on a few times in a step at most, so servers that come and go cannot hold it up for ever. Once would
not do: servers come when the run begins, too, and what was handed on to one of them then may be
with a slow one when others are back from a cut.

Units:   microbatches by their global number.
Errors:  none.
"""

from collections import Counter
from collections.abc import Iterable, Sequence

from p2pswarm.trainer.step.in_flight import MicrobatchJob

SHARED_MIN = 3  # of one server: to launch two again costs about as much as to wait for them
HANDED_ON_MAX = 4  # times in a step: what is lost each time is at most a forward in each stage


class Sharing:
    """What was handed on in one step."""

    def __init__(self) -> None:
        self._moved: Counter[int] = Counter()
        """How often each microbatch was handed on."""

    def surplus(self, there: Iterable[Sequence[MicrobatchJob]]) -> list[MicrobatchJob]:
        """What is to be given up; `there`: what each server of a stage has yet to count, by age.

        The new one, which has nothing, is one of them.
        """
        loads = list(there)
        share = -(-sum(map(len, loads)) // len(loads))
        surplus = [
            job
            for jobs in loads
            if len(jobs) >= SHARED_MIN
            for job in jobs[share:]
            if self._moved[job.microbatch] < HANDED_ON_MAX
        ]
        self._moved.update(job.microbatch for job in surplus)
        return surplus
