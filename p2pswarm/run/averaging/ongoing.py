"""A round under way: its memory, and who waits for its pieces.

Errors:  NotServing for who waits in a round that has failed; else the round's own failure.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable

from p2pswarm.base.errors import NotServing
from p2pswarm.base.signal import Signal
from p2pswarm.run.averaging.bandwidth import BothWays
from p2pswarm.run.averaging.base import Sums
from p2pswarm.run.averaging.round import ExpectedPiece, Round
from p2pswarm.run.messages.averaging import Shard
from p2pswarm.tensors.codecs.base import Tensor

REDUCED_AHEAD = 4  # reduced pieces on their way to a peer: 16 MiB, 0.1 s at 1 Gbit/s


class OngoingRound:
    """A round, its memory, and the tasks that wait for its pieces."""

    def __init__(self, round_: Round, sums: Sums, links: BothWays) -> None:
        self.round = round_
        self.sums = sums
        self.scope = asyncio.timeout(None)
        """Ends the round when its deadline is moved to the past."""
        self.parts: dict[int, dict[bytes, Tensor]] = defaultdict(dict)
        """The parts of the pieces that we reduce, by piece and sender."""
        self.ready: asyncio.Queue[int] = asyncio.Queue()
        """Pieces of ours whose parts are here."""
        self.lanes: dict[bytes, asyncio.Semaphore] = defaultdict(
            lambda: asyncio.Semaphore(REDUCED_AHEAD)
        )
        """For each peer: how many more reduced pieces may be on their way to it."""
        self.links = links
        self._reduced = {index: asyncio.Event() for index in round_.mine}
        self._enough: Callable[[], bool] = lambda: False
        """What the task that takes part waits for."""
        self._came = Signal()
        self._over = asyncio.Event()
        for index in round_.mine:
            if round_.has_parts(index):
                self.ready.put_nowait(index)

    def came(self, wanted: ExpectedPiece, part: Tensor | None) -> None:
        """Enter a piece that has come, and wake who waits for it."""
        if not self.round.came(wanted):
            return
        if part is not None:
            self.parts[wanted.index][wanted.sender] = part
            if self.round.has_parts(wanted.index):
                self.ready.put_nowait(wanted.index)
        self._changed()

    def reduced(self, index: int) -> None:
        """Enter a piece of ours that is reduced; its senders are told."""
        self.round.reduced(index)
        self._reduced[index].set()
        self._changed()

    def revealed(self, sender: bytes, shard: Shard) -> None:
        """Enter a member's share of the key."""
        self.round.revealed(sender, shard)
        self._changed()

    def stopped(self, wanted: ExpectedPiece) -> None:
        """Enter that nothing more of an offer will come; if half of it came, the round fails."""
        self.round.stopped(wanted)
        self._changed()

    async def until_reduced(self, index: int) -> None:
        """Wait for a piece of ours; NotServing if the round ends without it."""
        await self._reduced[index].wait()
        if not self.round.is_reduced(index):
            raise NotServing(f"the averaging of {self.round.turn} has failed")

    async def has(self, enough: Callable[[], bool]) -> None:
        """Wait until the round has `enough`; raises the round's failure. One task may wait."""
        self._enough = enough
        while not enough():
            if self.round.failure is not None:
                raise self.round.failure
            await self._came.wait()

    def _changed(self) -> None:
        """Wake the task that waits, if it has what it waits for: n members send it 2 n pieces."""
        if self.round.failure is not None or self._enough():
            self._came.fire()

    def end(self) -> None:
        """The round is over, well or not: nobody waits for it any more."""
        for reduced in self._reduced.values():
            reduced.set()
        self._over.set()

    async def until_members_have_all(self) -> None:
        """Wait for the end of the round; NotServing if it failed."""
        await self._over.wait()
        if not self.round.has_key:
            raise NotServing(f"the averaging of {self.round.turn} has failed")
