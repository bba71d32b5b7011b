"""Work that the servers of a stage hand on to one that has come: what each gives up for it.

All microbatches of a step are mostly under way when a server comes, and a push stays where it is.
So a stage that was served by one slow server for a while would be as slow for the rest of the step,
though three others are back. Therefore what a server has more than its share of is given up, fenced
like any attempt, and launched again; routers choose the new server then.

The oldest attempts stay: they are the likeliest to be computed already. Each microbatch is handed
on once in a step at most, so servers that come and go cannot hold it up for ever.

Units:   microbatches by their global number.
Errors:  none.
"""

from collections.abc import Iterable, Sequence

from p2pswarm.trainer.in_flight import MicrobatchJob

SHARED_MIN = 3  # of one server: to launch two again costs about as much as to wait for them


class Sharing:
    """What was handed on in one step."""

    def __init__(self) -> None:
        self._moved: set[int] = set()

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
            if job.microbatch not in self._moved
        ]
        self._moved.update(job.microbatch for job in surplus)
        return surplus
