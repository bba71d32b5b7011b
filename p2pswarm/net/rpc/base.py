"""SEAM 2: the calls and streams that every protocol above uses.

A unary call is one typed request and one typed reply. A stream carries messages both
ways in order. It also carries bulk bytes, outside of the messages, into memory that the
receiver has granted. Real links (`net/rpc/link_rpc.py`) and the simulation (`sim/rpc.py`)
implement this seam alike; `tests/contract/` runs the same tests on both.

Errors:  PathError, Late, Refused and PeerError as in `base/errors.py`. If a handler raises a
         SwarmError, the other side's call raises the same class.
"""

from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from enum import IntEnum
from typing import Any, Protocol, TypeVar

from p2pswarm.base.ids import Contact, PeerId
from p2pswarm.net.cards.card import Card
from p2pswarm.net.endpoint.link_table import ProvenAddress
from p2pswarm.net.wire.message import Message

M = TypeVar("M", bound=Message)


class Priority(IntEnum):
    """The order of messages and transfers on a link; a lower number goes first."""

    CONTROL = 0
    TENSOR = 1
    """Activations, gradients and averaging: a task waits for them now."""
    STATE = 2
    """Weights for a newcomer: they use the bandwidth that is left."""


class Arrival(Protocol):
    """A transfer on its way into memory that was granted to it."""

    transfer: int
    """The number to tell the sender."""

    async def wait(self) -> None:
        """Return when every byte is in place; raises LinkLost if they cannot come."""
        ...

    def cancel(self) -> None:
        """Take the memory back; chunks that come later are dropped."""
        ...


class Stream(Protocol):
    """One side's view of a stream."""

    @property
    def peer(self) -> PeerId:
        """The peer at the other end, proven by the handshake."""
        ...

    async def send(self, message: Message) -> None:
        """Send one message when there is credit; raises the stream's error, or Refused after it."""
        ...

    async def receive(self) -> Message | None:
        """The next message, or None when the other side has ended well.

        Raises the error that the other side ended with, or LinkLost, or Late at the deadline.
        """
        ...

    def expect(self, memory: memoryview) -> Arrival:
        """Grant `memory` to one transfer from this peer; its bytes come in any order."""
        ...

    async def send_bulk(self, transfer: int, data: memoryview, priority: Priority) -> None:
        """Send all of `data` into the memory that the peer granted to transfer number `transfer`.

        Returns once the kernel has every byte; `data` may be reused then.
        """
        ...


UnaryHandler = Callable[[PeerId, M], Coroutine[Any, Any, Message] | Message]
"""Handles a call: takes the peer that asks and its request, and returns the reply.

A plain function answers at once and costs no task; it suits a look into a table. A
BadMessage that it raises means that the request is malformed, and ends the link. A
coroutine runs in a task of its own, which is cancelled at the caller's deadline, and
when the caller gives up or its link is lost.
"""
StreamHandler = Callable[[Stream, M], Coroutine[Any, Any, None]]
"""Handles a stream, which ends when the handler returns, or with the error that it raises.

When the other side fails, gives up or is lost, every wait on the stream raises that
error. A handler that waits for something else is cancelled then, and at the deadline.
"""


class CardSource(Protocol):
    """The cards of peers."""

    def of(self, peer: PeerId) -> Card | None:
        """The newest card that is known of a peer; each has one that a link is up to."""
        ...

    def read(self, data: bytes) -> Card:
        """The card in bytes that anybody passed on; BadMessage if it is not its peer's."""
        ...

    def learn(self, card: Card, heard_at: str) -> bool:
        """Keep a card that came from the host `heard_at`; whether it says anything new."""
        ...


class Rpc(Protocol):
    """Typed calls to peers, and the handlers of calls from peers."""

    @property
    def contact(self) -> Contact:
        """Our own contact, as others should dial it."""
        ...

    @property
    def cards(self) -> CardSource:
        """Return what peers say of themselves."""
        ...

    def reach(self, to: Contact) -> ProvenAddress:
        """Return what links that are up show of the address of a peer.

        A call to a contact without a peer id dials its address, unless we have dialled it before
        and that link is up; a link that comes from there does not count.
        """
        ...

    async def call(self, to: Contact, request: Message, timeout_s: float) -> Message:
        """Send a request and return the reply; dials if no link is up. Late after `timeout_s`."""
        ...

    def open_stream(
        self, to: Contact, opening: Message, timeout_s: float | None
    ) -> AbstractAsyncContextManager[Stream]:
        """Open a stream; leaving the block ends it, with an error if one is raised.

        `timeout_s` is for the whole block: after it, any wait inside raises Late. When the block
        ends well, the peer's handler may go on, and what it still sends is dropped. To wait for
        the handler's end, `receive` until None.
        """
        ...

    def serve_unary(self, request: type[M], handler: UnaryHandler[M]) -> None:
        """Serve calls of one message type."""
        ...

    def serve_stream(self, opening: type[M], handler: StreamHandler[M]) -> None:
        """Serve streams that open with one message type."""
        ...


class ForwardingRpc:
    """Implements `Rpc` by another; a subclass overrides what it does differently.

    A guard and a watch each stand between a role and the links. What they leave as it is stands
    here.
    """

    def __init__(self, rpc: Rpc) -> None:
        self._rpc = rpc

    @property
    def contact(self) -> Contact:
        """Our own contact."""
        return self._rpc.contact

    @property
    def cards(self) -> CardSource:
        """Return what peers say of themselves."""
        return self._rpc.cards

    def reach(self, to: Contact) -> ProvenAddress:
        """As `Rpc.reach`."""
        return self._rpc.reach(to)

    def call(self, to: Contact, request: Message, timeout_s: float) -> Coroutine[Any, Any, Message]:
        """As `Rpc.call`."""
        return self._rpc.call(to, request, timeout_s)

    def open_stream(
        self, to: Contact, opening: Message, timeout_s: float | None
    ) -> AbstractAsyncContextManager[Stream]:
        """As `Rpc.open_stream`."""
        return self._rpc.open_stream(to, opening, timeout_s)

    def serve_unary(self, request: type[M], handler: UnaryHandler[M]) -> None:
        """As `Rpc.serve_unary`."""
        self._rpc.serve_unary(request, handler)

    def serve_stream(self, opening: type[M], handler: StreamHandler[M]) -> None:
        """As `Rpc.serve_stream`."""
        self._rpc.serve_stream(opening, handler)
