"""HandlerTable: which handler serves which message, and how an opening is read.

Units:   seconds.
Errors:  BadMessage for an opening that breaks the rules, which ends the link; NotServing for
         an opening without a handler, which its caller receives.
"""

from dataclasses import dataclass
from typing import Any, TypeVar

from p2pswarm.base.errors import BadMessage, NotServing
from p2pswarm.net.rpc.base import StreamHandler, UnaryHandler
from p2pswarm.net.rpc.framing import OPENING_BYTES, Kind, unpack_deadline, unpack_opening
from p2pswarm.net.rpc.parts import Assembly
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
        """The class of the request."""
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
