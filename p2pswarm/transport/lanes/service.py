"""Lanes: the bulk connections of one link, and who waits for what they carry.

Transfers share all lanes; each lane takes its next chunk from the one outbox and
fills the one set of rooms. Lanes run by themselves, in threads where they are
sockets, and report only whole transfers.

Units:   bytes.
Errors:  LinkLost for whoever waits when the link ends.
"""

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

from p2pswarm.errors import LinkLost, SwarmError
from p2pswarm.net.base import BulkPipe, Stream
from p2pswarm.transport.bulk import BulkConnection, BulkKeys
from p2pswarm.transport.config import TransportConfig
from p2pswarm.transport.outbox import Outbox
from p2pswarm.transport.rooms import Rooms


class Arrival:
    """Bytes that were granted room and are on their way: rpc/base.py's Arrival."""

    def __init__(self, rooms: Rooms, waiting: dict[int, "Arrival"], room: memoryview) -> None:
        self._rooms = rooms
        self._waiting = waiting
        self._settled = asyncio.Event()
        self._failure = ""
        self.transfer = rooms.add(room, self._land)
        """The number to tell the sender."""
        waiting[self.transfer] = self
        if not room:
            self.cancel()
            self._settled.set()

    async def wait(self) -> None:
        """Return when every byte is in place; raises LinkLost if they cannot come."""
        await self._settled.wait()
        if self._failure:
            raise LinkLost(self._failure)

    def cancel(self) -> None:
        """Give the room back: late chunks are thrown away.

        Let go of the memory rather than use it again: a chunk that is being decrypted
        at this very moment still lands there.
        """
        self._rooms.cancel(self.transfer)
        self._waiting.pop(self.transfer, None)

    def fail(self, reason: str) -> None:
        """The link ended before all was here."""
        self.cancel()
        self._failure = reason
        self._settled.set()

    def _land(self) -> None:
        if self._waiting.pop(self.transfer, None) is not None:
            self._settled.set()


@dataclass(frozen=True, slots=True)
class Ends:
    """Whom a lane tells of its end, in the event loop."""

    lost: Callable[[SwarmError], None]
    """It is of no more use."""
    released: Callable[[], None]
    """Its socket is closed."""


class Lanes:
    """All bulk of one link."""

    def __init__(
        self,
        config: TransportConfig,
        new_lock: Callable[[], AbstractContextManager[object]],
        ends: Ends,
    ) -> None:
        self._config = config
        self._ends = ends
        self._rooms = Rooms(new_lock())
        self._outbox = Outbox(new_lock(), config.chunk_bytes)
        self._arrivals: dict[int, Arrival] = {}
        self._sends: dict[asyncio.Future[None], None] = {}
        self._lanes: list[tuple[BulkConnection, BulkPipe]] = []
        self._numbers: set[int] = set()

    @property
    def busy(self) -> bool:
        """Whether anything is under way."""
        return bool(self._arrivals or self._sends)

    @property
    def count(self) -> int:
        """How many lanes have joined."""
        return len(self._lanes)

    @property
    def sent_bytes(self) -> int:
        """Payload sent so far."""
        return sum(machine.sent_bytes for machine, _ in self._lanes)

    @property
    def received_bytes(self) -> int:
        """Payload received so far."""
        return sum(machine.received_bytes for machine, _ in self._lanes)

    def expect(self, room: memoryview) -> Arrival:
        """Set `room` aside for one transfer."""
        if room.readonly:
            raise ValueError("room for a transfer must be writable")
        return Arrival(self._rooms, self._arrivals, room.cast("B"))

    async def send(self, transfer: int, data: memoryview, priority: int) -> None:
        """Send all of `data`, over lanes that are there or come; returns once it is sent."""
        flat = data.cast("B")
        if not flat:
            return
        done = asyncio.get_running_loop().create_future()
        self._sends[done] = None
        share = len(self._lanes) or self._config.bulk_connections
        job = self._outbox.add(transfer, flat, priority, share, lambda: _settle(done))
        for _, pipe in self._lanes:
            pipe.wake()
        try:
            await done
        finally:
            self._sends.pop(done, None)
            self._outbox.cancel(job)

    def claim_number(self, number: int) -> bool:
        """Whether a lane of this number may join: each may once."""
        if number in self._numbers or len(self._lanes) >= self._config.bulk_connections_max:
            return False
        self._numbers.add(number)
        return True

    def add(self, stream: Stream, keys: BulkKeys) -> None:
        """A lane has joined."""
        lost, released = self._ends.lost, self._ends.released
        machine = BulkConnection(keys, self._rooms, self._outbox, lost, released)
        pipe = stream.become_bulk(machine)
        self._lanes.append((machine, pipe))
        if self._sends:
            pipe.wake()

    def fail(self, reason: str) -> None:
        """The link is over: close every lane, tell everybody who waits."""
        for _, pipe in self._lanes:
            pipe.close()
        for arrival in list(self._arrivals.values()):
            arrival.fail(reason)
        for done in self._sends:
            if not done.done():
                done.set_exception(LinkLost(reason))


def _settle(done: asyncio.Future[None]) -> None:
    if not done.done():
        done.set_result(None)
