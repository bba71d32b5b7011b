"""ForwardingRpc: an `Rpc` on top of another, for those that change only a part of it.

A guard and a watch each stand between a role and the links. What they leave as it is stands here.

Units:   seconds.
Errors:  as `net/rpc/base.py`.
"""

from collections.abc import Coroutine
from contextlib import AbstractAsyncContextManager
from typing import Any

from p2pswarm.base.ids import Contact
from p2pswarm.net.endpoint.link_table import Reach
from p2pswarm.net.rpc.base import CardSource, M, Rpc, Stream, StreamHandler, UnaryHandler
from p2pswarm.net.wire.message import Message


class ForwardingRpc:
    """Implements `Rpc` by another; a subclass overrides what it does differently."""

    def __init__(self, rpc: Rpc) -> None:
        self._rpc = rpc

    @property
    def contact(self) -> Contact:
        """Our own contact."""
        return self._rpc.contact

    @property
    def cards(self) -> CardSource:
        """What peers say of themselves."""
        return self._rpc.cards

    def reach(self, to: Contact) -> Reach:
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
