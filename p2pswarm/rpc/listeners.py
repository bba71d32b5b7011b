"""Listeners: who is told what happens on the streams of all links.

A listener is a caller that waits, a handler at work, or a stream. It is told in the
order of the wire, from inside the transport's callback.

Errors:  a listener raises BadMessage for a frame that breaks the rules: the link ends.
"""

from collections.abc import Hashable
from typing import Generic, Protocol, TypeVar

from p2pswarm.errors import SwarmError
from p2pswarm.rpc.framing import reset_error
from p2pswarm.transport.events import CreditGained, StreamData, StreamReset

L = TypeVar("L", bound=Hashable)


class StreamListener(Protocol):
    """Who is told what happens on a stream."""

    @property
    def once(self) -> bool:
        """Whether the peer's last frame is all that it waits for."""
        ...

    def data(self, frame: bytes, *, ended: bool) -> None:
        """A frame came; `ended`: the last one."""
        ...

    def credit(self) -> None:
        """The stream is writable again."""
        ...

    def fail(self, error: SwarmError) -> None:
        """Nothing more will come, because of this."""
        ...


class Listeners(Generic[L]):
    """The listeners of every stream of every link."""

    def __init__(self) -> None:
        self._by_link: dict[L, dict[int, StreamListener]] = {}

    def of(self, link: L) -> dict[int, StreamListener]:
        """Those of one link by stream: add yours, and remove it when you are done."""
        return self._by_link.setdefault(link, {})

    def tell(self, link: L, event: StreamData | StreamReset | CreditGained) -> bool:
        """Tell whoever listens; returns False if nobody does."""
        listeners = self._by_link.get(link, {})
        listener = listeners.get(event.stream)
        if listener is None:  # our side has finished; the other side does not know yet
            return False
        if isinstance(event, StreamData):
            listener.data(event.data, ended=event.ended)
            if event.ended and listener.once:
                del listeners[event.stream]
        elif isinstance(event, StreamReset):
            del listeners[event.stream]
            listener.fail(reset_error(event.code))
        else:
            listener.credit()
        return True

    def end(self, link: L, error: SwarmError) -> None:
        """The link is over: every stream on it has failed."""
        for listener in self._by_link.pop(link, {}).values():
            listener.fail(error)
