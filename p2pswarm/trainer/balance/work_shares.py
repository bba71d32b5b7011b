"""What servers were seen to do of their stage's work, which bounds what they tell of their speed.

Routers give work by their own measurements. So a server's share of what its stage counts shows how
fast it is beside the others, and what it tells over its share is what it says of the whole stage.
The median of that, in which each weighs as much as its share, is no liar's whose share is below a
half. What a server tells is believed within `BELIEVED` times its share of the median. So the most
that a lie adds to the rate of a stage, or takes from it, is what the liar does there.

Units:   microbatches per second; shares of what a stage has counted.
"""

from collections.abc import Mapping

from p2pswarm.run.member_view import Incarnation

BELIEVED = 2.0  # times what its share shows: routers measure another time than the server does
HALF_LIFE = 128.0  # microbatches of its stage, after which what was seen weighs half as much
LEAST = 32.0  # microbatches of its stage; a share of fewer is a matter of chance


class WorkShares:
    """The recent share of its stage that each server has counted."""

    def __init__(self) -> None:
        self._seen: dict[Incarnation, tuple[float, float]] = {}
        """What it has counted, and what its stage has, in the steps for which it was there."""

    def on_step(self, counts: Mapping[Incarnation, int], size: int) -> None:
        """A step of `size` microbatches is decided; `counts`: of those that are ready now.

        One that is named for the first time may have come in its midst: it begins with the next.
        """
        fade, before = 0.5 ** (size / HALF_LIFE), self._seen
        self._seen = dict.fromkeys(counts, (0.0, 0.0))
        for one, count in counts.items():
            if one in before:
                counted, whole = before[one]
                self._seen[one] = counted * fade + count, whole * fade + size

    def believed(self, rates: Mapping[Incarnation, float]) -> dict[Incarnation, float]:
        """Return what is believed of the `rates` that the servers of one stage tell."""
        shares = {}
        for one in rates:
            counted, whole = self._seen.get(one, (0.0, 0.0))
            if whole >= LEAST:
                shares[one] = (counted + 0.5) / (whole + 1.0)  # never 0, so each has a rate
        ordered = sorted((rates[one] / share, share) for one, share in shares.items())
        left, stage_rate = sum(shares.values()) / 2.0, 0.0
        for implied, share in ordered:
            if left > 0.0:
                left, stage_rate = left - share, implied
        believed = dict(rates)
        for one, share in shares.items():
            shown = stage_rate * share
            believed[one] = min(max(rates[one], shown / BELIEVED), shown * BELIEVED)
        return believed
