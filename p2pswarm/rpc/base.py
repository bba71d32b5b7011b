"""SEAM 2: what every protocol above asks of the network below.

A call is one typed request and one typed reply. A stream is messages both
ways in order, and bulk bytes that go round the messages straight into memory that the
receiver has granted. Sockets (`rpc/link_rpc.py`) and the
simulated world (`sim/rpc.py`) implement it alike; `tests/contract/` holds both
to the same suite.

Units:   `timeout_s` seconds from now; buffers in bytes.
Errors:  PathError, Late, Refused and PeerError as `errors.py` names them; a handler
         that raises one of ours ends the other side's call with the same class.
"""

from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from enum import IntEnum
from typing import Any, Protocol, TypeVar

from p2pswarm.ids import Contact, PeerId
from p2pswarm.wire.message import Message

M = TypeVar("M", bound=Message)


class Priority(IntEnum):
    """What goes first on a link; a lower number wins."""

    CONTROL = 0
    TENSOR = 1
    """Activations, gradients and averaging: somebody waits for them now."""
    STATE = 2
    """Weights for a newcomer: they fill what is left."""


class Arrival(Protocol):
    """Bytes on their way into memory that was granted to them."""

    transfer: int
    """The number to tell the sender."""

    async def wait(self) -> None:
        """Return when every byte is in place; raises LinkLost if they cannot come."""
        ...

    def cancel(self) -> None:
        """Take the memory back: late chunks are read and thrown away."""
        ...


class Stream(Protocol):
    """One side's view of a stream."""

    @property
    def peer(self) -> PeerId:
        """Who is at the other end, proven by the handshake."""
        ...

    async def send(self, message: Message) -> None:
        """Send one message; waits for the stream's credit.

        Raises what the stream failed with, and Refused once its server has finished well.
        """
        ...

    async def receive(self) -> Message | None:
        """The next message, or None when the other side has finished well.

        Raises what the other side ended with, or LinkLost, or Late at the deadline.
        """
        ...

    def expect(self, memory: memoryview) -> Arrival:
        """Grant `memory` to one transfer from this peer, which fills it in any order."""
        ...

    async def send_bulk(self, transfer: int, data: memoryview, priority: Priority) -> None:
        """Send all of `data` into the memory that the peer granted to transfer number `transfer`.

        Returns once the kernel has every byte; `data` may be reused then.
        """
        ...


UnaryHandler = Callable[[PeerId, M], Coroutine[Any, Any, Message] | Message]
"""Handles a call: the peer that asks and its request in, the reply out.

A plain function answers at once and costs no task: right for a look into a table.
A coroutine runs in a task of its own. It is cancelled at its caller's deadline, and
when the caller gives up or its link is lost.
"""
StreamHandler = Callable[[Stream, M], Coroutine[Any, Any, None]]
"""Handles a stream: it ends, well or with the error raised, when this returns.

When the other side fails, gives up or is lost, what waits on the stream raises
that; a handler that waits for something else then is cancelled, as at the deadline.
"""


class Rpc(Protocol):
    """Typed calls to peers, and the handlers of theirs."""

    @property
    def contact(self) -> Contact:
        """Ourselves, as others should dial us."""
        ...

    async def call(self, to: Contact, request: Message, timeout_s: float) -> Message:
        """Ask once and return the reply; dials if no link is up."""
        ...

    def open_stream(
        self, to: Contact, opening: Message, timeout_s: float | None
    ) -> AbstractAsyncContextManager[Stream]:
        """Open a stream; leaving the block ends it, with an error if one is raised.

        `timeout_s` is for the whole block: past it, whatever it waits for raises Late. After a good
        end the handler may go on; what it still sends is thrown away. `receive` until None to
        wait for its end.
        """
        ...

    def serve_unary(self, request: type[M], handler: UnaryHandler[M]) -> None:
        """Serve calls of one message type."""
        ...

    def serve_stream(self, opening: type[M], handler: StreamHandler[M]) -> None:
        """Serve streams that open with one message type."""
        ...
