"""Dispatch: which handler serves an opening, and who receives the frames after it.

Events reach a listener in the order of the wire, inside the transport's callback.

Errors:  BadMessage for a frame that breaks the rules, which ends the link; NotServing for an
         opening without a handler, which its caller receives.
"""

from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from p2pswarm.base.errors import BadMessage, NotServing, SwarmError
from p2pswarm.net.link.events import CreditGained, StreamData, StreamReset
from p2pswarm.net.rpc.base import StreamHandler, UnaryHandler
from p2pswarm.net.rpc.framing import (
    OPENING_BYTES,
    Assembly,
    Kind,
    reset_error,
    unpack_deadline,
    unpack_opening,
)
from p2pswarm.net.wire.message import Message, UnknownCode, decode

M = TypeVar("M", bound=Message)


@dataclass(frozen=True, slots=True)
class Opening:
    """A peer's request, with which it opens a stream."""

    kind: Kind
    timeout_s: float | None
    """Seconds from now to the caller's deadline; None if it has none."""
    request: Message


class HandlerTable:
    """The handlers of one node, by the type of the message that they serve."""

    def __init__(self) -> None:
        self._unary: dict[type[Message], UnaryHandler[Any]] = {}
        self._stream: dict[type[Message], StreamHandler[Any]] = {}

    def serve_unary(self, request: type[M], handler: UnaryHandler[M]) -> None:
        """Serve calls of one message type."""
        self._unary[request] = handler

    def serve_stream(self, opening: type[M], handler: StreamHandler[M]) -> None:
        """Serve streams that open with one message type."""
        self._stream[opening] = handler

    def unary(self, request: type[Message]) -> UnaryHandler[Any]:
        """The handler of calls of a class; raises NotServing if there is none."""
        handler = self._unary.get(request)
        if handler is None:
            raise NotServing(f"no calls of {request.__name__} here")
        return handler

    def stream(self, opening: Message) -> StreamHandler[Any]:
        """The handler of a stream; raises NotServing if there is none."""
        handler = self._stream.get(type(opening))
        if handler is None:
            raise NotServing(f"no streams of {type(opening).__name__} here")
        return handler


class LongOpening:
    """A request that comes in parts, and the deadline that its first one told."""

    __slots__ = ("_parts", "kind", "timeout_s")

    def __init__(self, parts: Assembly, kind: type[Message], timeout_s: float | None) -> None:
        self.kind = kind
        self.timeout_s = timeout_s
        self._parts = parts

    def add(self, frame: bytes) -> Opening | None:
        """Take the next frame; the request, if it is whole."""
        whole = self._parts.add(frame)
        return Opening(Kind.UNARY, self.timeout_s, decode(whole.body)) if whole else None


def read_long_opening(frame: bytes, *, ended: bool) -> LongOpening:
    """Read the first part of a long request; NotServing if its kind is not known here."""
    timeout_s, parts = unpack_deadline(frame), Assembly()
    try:
        kind = parts.begin(frame, OPENING_BYTES)
    except UnknownCode as error:
        raise NotServing(str(error)) from None
    if ended:
        raise BadMessage("a long request that ends with its first part")
    return LongOpening(parts, kind, timeout_s)


def read_opening(frame: bytes, *, ended: bool) -> Opening:
    """Read a stream's first frame; `ended`: whether the caller sends no other."""
    try:
        kind, timeout_s, request = unpack_opening(frame)
    except UnknownCode as error:
        raise NotServing(str(error)) from None
    if ended != (kind is Kind.UNARY):
        raise BadMessage(f"a {kind.name} whose first frame says ended={ended}")
    return Opening(kind, timeout_s, request)


L = TypeVar("L", bound=Hashable)


class StreamListener(Protocol):
    """Receives the events of one stream."""

    @property
    def once(self) -> bool:
        """Return whether nothing is expected after the peer's last frame."""
        ...

    def on_frame(self, frame: bytes, *, ended: bool) -> None:
        """A frame came; `ended`: whether it is the last one."""
        ...

    def on_credit(self) -> None:
        """The stream is writable again."""
        ...

    def fail(self, error: SwarmError) -> None:
        """Nothing more will come, because of `error`."""
        ...


class Listeners(Generic[L]):
    """The listeners of every stream of every link: waiting callers, handlers and streams."""

    def __init__(self) -> None:
        self._by_link: dict[L, dict[int, StreamListener]] = {}

    def of(self, link: L) -> dict[int, StreamListener]:
        """The listeners of one link by stream; callers add and remove their own."""
        return self._by_link.setdefault(link, {})

    def on_event(self, link: L, event: StreamData | StreamReset | CreditGained) -> bool:
        """Pass an event to its listener; returns False if there is none."""
        listeners = self._by_link.get(link, {})
        listener = listeners.get(event.stream)
        if listener is None:  # our side has finished; the other side does not know yet
            return False
        if isinstance(event, StreamData):
            listener.on_frame(event.data, ended=event.ended)
            if event.ended and listener.once:
                del listeners[event.stream]
        elif isinstance(event, StreamReset):
            del listeners[event.stream]
            listener.fail(reset_error(event.code))
        else:
            listener.on_credit()
        return True

    def on_link_end(self, link: L, error: SwarmError) -> None:
        """Fail every stream of a link that is over."""
        for listener in self._by_link.pop(link, {}).values():
            listener.fail(error)


class Inbox:
    """The items of a stream that nobody has taken yet, in order, and how the stream ended."""

    __slots__ = ("_items", "error", "over")

    def __init__(self) -> None:
        self._items: deque[Any] = deque()
        self.over = False
        self.error: SwarmError | None = None

    def put(self, item: object) -> None:
        """Add an item."""
        self._items.append(item)

    def finish(self, error: SwarmError | None) -> None:
        """Note that nothing more will come; only the first call counts."""
        if not self.over:
            self.over = True
            self.error = error

    def clear(self) -> list[Any]:
        """Remove and return every item, because nobody will read them."""
        items = list(self._items)
        self._items.clear()
        return items

    @property
    def ready(self) -> bool:
        """Return whether `take` may be called."""
        return bool(self._items) or self.over

    def take(self) -> Any:
        """The oldest item, or None when there is none left and the other side has ended well."""
        if self._items:
            return self._items.popleft()
        if self.error is not None:
            raise self.error
        assert self.over
        return None
