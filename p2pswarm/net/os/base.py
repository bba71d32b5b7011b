"""SEAM 1: what the transport asks of the network, real or simulated.

A new connection is raw: its user awaits an exact number of bytes, or the end of a write.
Then the connection becomes one of two things. A *control pipe* carries small messages: the
event loop pushes bytes to the pipe's user, and writes go out at once. A *bulk pipe* carries
tensors: a machine says which buffer to fill and which to send, and the network drives it. On
a real socket two threads do so (`net/os/bulk_threads.py`), in a simulation the event loop.

Errors:  DialFailed from `dial`; Unusable from `listen`; LinkLost from a raw connection that
         ended. Once it is a pipe, whatever ends it reaches its user once, as `on_loss`.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Protocol

from p2pswarm.base.errors import SwarmError
from p2pswarm.base.ids import Address

CROWDED_BYTES = 64 * 1024  # one record: an urgent message waits behind no more than this


class ControlPipe(Protocol):
    """A control connection: the side that sends."""

    def send(self, data: bytes) -> None:
        """Write now; bytes that the kernel does not take wait in memory."""
        ...

    def close(self) -> None:
        """Send the bytes that wait, then the end; `on_loss` follows when the peer ends it, too.

        A peer may take as long as it likes: `abort` does not wait for it.
        """
        ...

    def abort(self) -> None:
        """End now; `on_loss` is called soon after."""
        ...


class ControlMachine(Protocol):
    """A control connection: the side that receives. Its methods are called in the event loop."""

    def on_open(self, pipe: ControlPipe) -> None:
        """The connection is up; called before anything else."""
        ...

    def on_data(self, data: bytes) -> None:
        """Bytes came, in order; a message may be cut anywhere."""
        ...

    def pause_writing(self) -> None:
        """More than CROWDED_BYTES wait in memory: send nothing until `resume_writing`."""
        ...

    def resume_writing(self) -> None:
        """Few bytes wait in memory again."""
        ...

    def on_loss(self, error: SwarmError) -> None:
        """The connection ended; called once, last."""
        ...


class BulkMachine(Protocol):
    """The rules of one bulk pipe, whose two threads receive and send."""

    def expects_bytes(self) -> bool:
        """Return whether the peer may send yet: else a byte is a breach. For the event loop."""
        ...

    def next_in(self) -> memoryview:
        """The memory for the next bytes: fill all of it, then call `on_fill`."""
        ...

    def on_fill(self) -> Callable[[], None] | None:
        """The memory is full; returns a function for the event loop, or None; raises PeerError."""
        ...

    def next_out(self, now_s: float) -> memoryview | None:
        """The bytes to send next, or None to wait for `wake`; called again right after `on_write`.

        The bytes stay valid until `on_write`.
        """
        ...

    def on_write(self) -> Callable[[], None] | None:
        """The kernel has all bytes. Returns a function to call in the event loop, or None."""
        ...

    def on_loss(self, error: SwarmError) -> None:
        """The pipe has ended; called once, in the event loop."""
        ...

    def on_release(self) -> None:
        """The socket is closed; called once in the event loop, as the last call of all."""
        ...


class BulkPipe(Protocol):
    """A connection driven by a BulkMachine."""

    def wake(self) -> None:
        """Say that there is something to send. Any thread may call this."""
        ...

    def acknowledged_bytes(self) -> int | None:
        """Return how many bytes the kernel at the other end has; None if ours does not say."""
        ...

    def close(self) -> None:
        """End the pipe; `on_loss` and `on_release` follow. Bytes under way may be cut off."""
        ...


class Connection(Protocol):
    """A fresh connection whose purpose is not yet known."""

    @property
    def remote(self) -> Address:
        """The address of the other end."""
        ...

    async def receive(self, n: int) -> bytes:
        """Exactly `n` bytes; raises LinkLost if the connection ends first."""
        ...

    async def send(self, data: bytes) -> None:
        """Write all of `data`; raises LinkLost if the connection ends first."""
        ...

    async def become_control(self, user: ControlMachine) -> None:
        """Push all further bytes to `user`; this object must not be used any more."""
        ...

    def become_bulk(self, machine: BulkMachine) -> BulkPipe:
        """Drive `machine` from now on; this object must not be used any more."""
        ...

    def close(self) -> None:
        """End the connection, unless it has become a pipe."""
        ...


class Listener(Protocol):
    """A place where connections arrive."""

    @property
    def address(self) -> Address:
        """The bound address, with the real port."""
        ...

    @property
    def in_a_row(self) -> int:
        """Return how many connections were accepted since none was waiting."""
        ...

    async def accept(self) -> Connection:
        """The next connection; raises LinkLost when the listener fails or is closed."""
        ...

    def thin(self, levels: Mapping[str, int]) -> None:
        """Let only one of 4 ** level new connections of these networks arrive, and all others.

        The others are tried again by their diallers' systems. Where ours cannot, nothing happens.
        """
        ...

    def close(self) -> None:
        """Stop listening."""
        ...


class Net(Protocol):
    """A network to dial and listen on."""

    async def listen(self, at: Address) -> Listener:
        """Bind and listen; raises Unusable if the address cannot be bound."""
        ...

    async def dial(self, to: Address, from_port: int = 0) -> Connection:
        """Connect; raises DialFailed. `from_port`: one at which we listen; 0: any free one.

        Two ports have one connection between them at a time.
        """
        ...

    def lock(self) -> AbstractContextManager[object]:
        """A lock for state that bulk machines share; it locks only if they run in threads."""
        ...
