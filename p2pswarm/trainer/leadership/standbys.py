"""The standbys' streams at the coordinator: each is told where all are, and that it lives.

Units:   seconds on the loop's clock.
Errors:  those of the stream, for the one whose stream it is.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress

from p2pswarm.base.errors import SwarmError
from p2pswarm.base.ids import Contact
from p2pswarm.net.rpc.base import Stream
from p2pswarm.run.messages.run import Finished
from p2pswarm.run.messages.trainers import ALIVE_S, Alive, Trainers
from p2pswarm.trainer.leadership.trainer_roll import TrainerRoll

HEARD_S = 2.0  # for the last word to reach a standby


class _StandbyStream:
    """One stream."""

    def __init__(self) -> None:
        self.waker = asyncio.Event()
        self.over = False
        self.last: Finished | None = None


class Standbys:
    """All streams of trainers that stand by."""

    def __init__(self, roll: TrainerRoll, changed: Callable[[], None]) -> None:
        """`changed` is called when a standby is gone."""
        self._roll = roll
        self._changed = changed
        self._open: dict[bytes, _StandbyStream] = {}
        self._former = 0
        """Streams that are over and have not ended yet."""
        self._trainers: Trainers | None = None
        self._closed = False
        self._last: Finished | None = None
        """What is said to a standby that comes once all is closed."""
        self._empty = asyncio.Event()
        self._empty.set()

    def announce(self, trainers: Trainers) -> bool:
        """Tell all who the trainers are; False if they know."""
        if trainers == self._trainers:
            return False
        self._trainers = trainers
        for standby in self._open.values():
            standby.waker.set()
        return True

    def dismiss(self, last: Finished | None) -> None:
        """End all streams, with a last word or without."""
        for peer in list(self._open):
            self._end(peer, last)

    def close(self, last: Finished | None) -> None:
        """End all streams, and from now on that of each standby that comes, too."""
        self._closed, self._last = True, last
        self.dismiss(last)

    async def gone(self) -> None:
        """Wait until all streams have ended."""
        await self._empty.wait()

    async def attend(self, stream: Stream, contact: Contact) -> None:
        """One standby, for as long as its stream lasts."""
        peer = stream.peer.raw
        self._end(peer, None)
        standby = self._open[peer] = _StandbyStream()
        self._former += 1
        self._empty.clear()
        self._roll.enlisted(contact)
        if self._closed:  # nobody would ever end this stream, and we wait for its end
            self._end(peer, self._last)
        self._changed()
        try:
            await self._talk(stream, standby)
            if standby.last is not None:
                await _say_last(stream, standby.last)
        finally:
            self._former -= 1
            if not self._former:
                self._empty.set()
            if self._open.get(peer) is standby:
                del self._open[peer]
                self._roll.gone(peer, asyncio.get_running_loop().time())
                self._changed()

    async def _talk(self, stream: Stream, standby: _StandbyStream) -> None:
        told: Trainers | None = None
        while not standby.over:
            standby.waker.clear()
            if self._trainers is not None and told != self._trainers:
                told = self._trainers
                await stream.send(told)
            else:
                await stream.send(Alive())
            with suppress(TimeoutError):
                async with asyncio.timeout(ALIVE_S):
                    await standby.waker.wait()

    def _end(self, peer: bytes, last: Finished | None) -> None:
        standby = self._open.pop(peer, None)
        if standby is not None:
            self._roll.gone(peer, asyncio.get_running_loop().time())
            standby.over, standby.last = True, last
            standby.waker.set()


async def _say_last(stream: Stream, last: Finished) -> None:
    """A socket that closes now could take the last word along: wait until it was heard."""
    with suppress(SwarmError, TimeoutError):
        async with asyncio.timeout(HEARD_S):
            await stream.send(last)
            await stream.receive()
