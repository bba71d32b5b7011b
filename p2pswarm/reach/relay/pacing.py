"""Pacing: lets the directions of circuits go on when the fair rate allows.

`fair_rate.py` decides; here is its timer.

Units:   bytes, bytes per second.
Errors:  none.
"""

import asyncio
from collections.abc import Hashable

from p2pswarm.net.os.splice import PacedFlow
from p2pswarm.reach.relay.fair_rate import FairRate


class Pacing:
    """The rate that all circuits of a relay share."""

    def __init__(self, total_bytes_per_s: float, pair_bytes_per_s: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._rate: FairRate[PacedFlow] = FairRate(total_bytes_per_s, pair_bytes_per_s)
        self._timer: asyncio.TimerHandle | None = None

    def of(self, pair: Hashable, group: Hashable) -> "PairPace":
        """The pace of one circuit of a pair, which shares with its group; `close` it."""
        return PairPace(self, self._rate, pair, group)

    def close(self) -> None:
        """Let nobody go on any more."""
        if self._timer is not None:
            self._timer.cancel()

    def carried(self, flow: PacedFlow, pair: Hashable, nbytes: int) -> bool:
        """Whether `flow` may go on at once."""
        now_s = self._loop.time()
        self._rate.carried(flow, pair, nbytes, now_s)
        return self._go_on(now_s, flow)

    def _go_on(self, now_s: float, asking: PacedFlow | None) -> bool:
        """Resume who may go on, but for the one that asks; returns whether that one may."""
        granted = False
        for flow in self._rate.granted(now_s):
            if flow is asking:
                granted = True
            else:
                flow.resume()
        if self._timer is not None:
            self._timer.cancel()
        at_s = self._rate.next_deadline_s()
        self._timer = None if at_s is None else self._loop.call_at(at_s, self._on_deadline)
        return granted

    def _on_deadline(self) -> None:
        self._timer = None
        self._go_on(self._loop.time(), None)


class PairPace:
    """The pace of one circuit: implements `Pace` of `net/os/splice.py`."""

    def __init__(
        self, pacing: Pacing, rate: FairRate[PacedFlow], pair: Hashable, group: Hashable
    ) -> None:
        self._pacing = pacing
        self._rate = rate
        self._pair = pair
        self._group = group
        rate.opened(pair, group)

    def on_bytes(self, flow: PacedFlow, nbytes: int) -> bool:
        """Whether `flow` may go on at once; else it is resumed later."""
        return self._pacing.carried(flow, self._pair, nbytes)

    def close(self) -> None:
        """The circuit is over."""
        self._rate.closed(self._pair, self._group)
