"""SEAM 1: what the transport asks of the network, real or simulated.

A connection begins raw: its first bytes are read and written exactly, and awaited.
Then it becomes one of two things. A *control pipe* carries small messages: bytes are
pushed to its user from inside the event loop, and writes go out at once. A *bulk
pipe* carries tensors: a machine says which buffer to fill and which to send, and the
network drives it, with two threads on a real socket (`net/bulk_threads.py`), from the
event loop in a simulation.

Units:   bytes.
Errors:  DialFailed from `dial`; LinkLost from a raw connection that ended; everything
         that later ends it is told to its user once, as `lost`.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

from p2pswarm.errors import SwarmError
from p2pswarm.ids import Address

CROWDED_BYTES = 64 * 1024  # one record: what an urgent message may wait behind in our memory


class ControlPipe(Protocol):
    """A connection that pushes: the sending side."""

    def send(self, data: bytes) -> None:
        """Write now; what the kernel does not take waits in memory."""
        ...

    def close(self) -> None:
        """Send what waits, then end. `lost` is told soon after."""
        ...

    def abort(self) -> None:
        """End now. `lost` is told soon after."""
        ...


class ControlMachine(Protocol):
    """A connection that pushes: the receiving side. Called in the event loop."""

    def opened(self, pipe: ControlPipe) -> None:
        """The connection is up; called before anything else."""
        ...

    def received(self, data: bytes) -> None:
        """Bytes came, in order, cut anywhere."""
        ...

    def pause_writing(self) -> None:
        """More than CROWDED_BYTES wait in memory: send nothing until `resume_writing`."""
        ...

    def resume_writing(self) -> None:
        """Few bytes wait in memory again."""
        ...

    def lost(self, error: SwarmError) -> None:
        """The connection ended; called once, last."""
        ...


class BulkMachine(Protocol):
    """The rules of one bulk pipe. One thread calls the first pair, one the second."""

    def next_in(self) -> memoryview:
        """Where the next bytes go: fill it whole, then call `filled`."""
        ...

    def filled(self) -> Callable[[], None] | None:
        """That memory is full. Returns what to call in the event loop, if anything.

        Raises PeerError if the peer broke the protocol: the pipe ends.
        """
        ...

    def next_out(self, now_s: float) -> memoryview | None:
        """What to send next, or None until woken; asked again right after `sent`.

        It stays valid until `sent`.
        """
        ...

    def sent(self) -> Callable[[], None] | None:
        """All of it is with the kernel. Returns what to call in the event loop, if anything."""
        ...

    def lost(self, error: SwarmError) -> None:
        """The pipe has ended; called once, in the event loop."""
        ...

    def released(self) -> None:
        """It is closed, and nothing calls this machine any more; called once, last, in the loop."""
        ...


class BulkPipe(Protocol):
    """A connection driven by a BulkMachine."""

    def wake(self) -> None:
        """There is something to send. Any thread may call."""
        ...

    def close(self) -> None:
        """End it; `lost` and `released` follow. What is under way may be cut off."""
        ...


class Connection(Protocol):
    """A fresh connection whose purpose is not yet known."""

    @property
    def remote(self) -> Address:
        """The other end."""
        ...

    async def receive(self, n: int) -> bytes:
        """Exactly `n` bytes; raises LinkLost if the connection ends before."""
        ...

    async def send(self, data: bytes) -> None:
        """Write all of it; raises LinkLost."""
        ...

    async def become_control(self, user: ControlMachine) -> None:
        """From now on push to `user`; this object is spent."""
        ...

    def become_bulk(self, machine: BulkMachine) -> BulkPipe:
        """From now on drive `machine`; this object is spent."""
        ...

    def close(self) -> None:
        """End it, if it has not become something else."""
        ...


class Listener(Protocol):
    """A place where connections arrive."""

    @property
    def address(self) -> Address:
        """What was bound, with the real port."""
        ...

    async def accept(self) -> Connection:
        """The next connection; raises LinkLost once closed."""
        ...

    def close(self) -> None:
        """Stop listening."""
        ...


class Net(Protocol):
    """A network to dial and listen on."""

    async def listen(self, at: Address) -> Listener:
        """Bind and listen; raises Unusable if the address cannot be bound."""
        ...

    async def dial(self, to: Address) -> Connection:
        """Connect; raises DialFailed."""
        ...

    def lock(self) -> AbstractContextManager[object]:
        """A lock for state that bulk machines share: real where they run in threads."""
        ...
