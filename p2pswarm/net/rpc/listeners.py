"""Listeners: the objects that receive the events of the streams of all links.

A listener is a caller that waits, a running handler, or a stream. Events reach it in the
order of the wire, inside the transport's callback.

Units:   none.
Errors:  a listener raises BadMessage for a frame that breaks the rules; the link ends then.
"""

from collections.abc import Hashable
from typing import Generic, Protocol, TypeVar

from p2pswarm.base.errors import SwarmError
from p2pswarm.net.link.events import CreditGained, StreamData, StreamReset
from p2pswarm.net.rpc.framing import reset_error

L = TypeVar("L", bound=Hashable)


class StreamListener(Protocol):
    """Receives the events of one stream."""

    @property
    def once(self) -> bool:
        """Whether nothing is expected after the peer's last frame."""
        ...

    def data(self, frame: bytes, *, ended: bool) -> None:
        """A frame came; `ended`: whether it is the last one."""
        ...

    def credit(self) -> None:
        """The stream is writable again."""
        ...

    def fail(self, error: SwarmError) -> None:
        """Nothing more will come, because of `error`."""
        ...


class Listeners(Generic[L]):
    """The listeners of every stream of every link."""

    def __init__(self) -> None:
        self._by_link: dict[L, dict[int, StreamListener]] = {}

    def of(self, link: L) -> dict[int, StreamListener]:
        """The listeners of one link by stream; callers add and remove their own."""
        return self._by_link.setdefault(link, {})

    def tell(self, link: L, event: StreamData | StreamReset | CreditGained) -> bool:
        """Pass an event to its listener; returns False if there is none."""
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
        """Fail every stream of a link that is over."""
        for listener in self._by_link.pop(link, {}).values():
            listener.fail(error)
