"""Two ends of a conversation in one process: bulk bytes arrive backwards, in odd pieces."""

import asyncio
from dataclasses import dataclass, field

from p2pswarm.base.errors import BadChunk, LinkLost
from p2pswarm.base.ids import PeerId
from p2pswarm.net.rpc.base import Priority
from p2pswarm.net.wire.message import Message, decode, encode

PIECE_BYTES = 4099


@dataclass
class Slot:
    """Room that was set aside: SEAM 2's Arrival."""

    transfer: int
    room: memoryview
    left_bytes: int
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    lost: bool = False
    cancelled: bool = False

    async def wait(self) -> None:
        while self.left_bytes and not self.lost:
            self.changed.clear()
            await self.changed.wait()
        if self.lost:
            raise LinkLost("the pair was cut")

    def cancel(self) -> None:
        self.cancelled = True


class End:
    """SEAM 2's Exchange, joined to another End."""

    def __init__(self, peer: PeerId) -> None:
        self.peer = peer
        self.other: End
        self.slots: dict[int, Slot] = {}
        self.inbox: asyncio.Queue[bytes] = asyncio.Queue(16)
        self.priorities: list[Priority] = []

    async def send(self, message: Message) -> None:
        await self.other.inbox.put(encode(message))

    async def receive(self) -> Message | None:
        return decode(await self.inbox.get())

    def expect(self, room: memoryview) -> Slot:
        slot = Slot(len(self.slots) + 1, room, len(room))
        self.slots[slot.transfer] = slot
        return slot

    async def send_bulk(self, transfer: int, data: memoryview, priority: Priority) -> None:
        self.priorities.append(priority)
        slot = self.other.slots[transfer]
        if len(data) != len(slot.room):
            raise BadChunk(f"{len(data)} bytes for a room of {len(slot.room)}")
        for begin in reversed(range(0, len(data), PIECE_BYTES)):
            piece = data[begin : begin + PIECE_BYTES]
            if not slot.cancelled:
                slot.room[begin : begin + len(piece)] = piece
            slot.left_bytes -= len(piece)
            slot.changed.set()
            await asyncio.sleep(0)

    def cut(self) -> None:
        """The link ends."""
        for slot in self.slots.values():
            slot.lost = True
            slot.changed.set()


def pair() -> tuple[End, End]:
    """The two ends; each knows the other's id."""
    a, b = End(PeerId(b"b" * 32)), End(PeerId(b"a" * 32))
    a.other, b.other = b, a
    return a, b
