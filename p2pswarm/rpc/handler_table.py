"""HandlerTable: which handler serves which message, and how an opening is read.

Units:   seconds.
Errors:  BadMessage for an opening that breaks the rules, which ends the link; NotServing for
         an opening without a handler, which its caller receives.
"""

from dataclasses import dataclass
from typing import Any, TypeVar

from p2pswarm.errors import BadMessage, NotServing
from p2pswarm.rpc.base import StreamHandler, UnaryHandler
from p2pswarm.rpc.framing import Kind, unpack_opening
from p2pswarm.wire.message import Message, UnknownCode

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

    def unary(self, request: Message) -> UnaryHandler[Any]:
        """The handler of a call; raises NotServing if there is none."""
        handler = self._unary.get(type(request))
        if handler is None:
            raise NotServing(f"no calls of {type(request).__name__} here")
        return handler

    def stream(self, opening: Message) -> StreamHandler[Any]:
        """The handler of a stream; raises NotServing if there is none."""
        handler = self._stream.get(type(opening))
        if handler is None:
            raise NotServing(f"no streams of {type(opening).__name__} here")
        return handler


def read_opening(frame: bytes, *, ended: bool) -> Opening:
    """Read a stream's first frame; `ended`: whether the caller sends no other."""
    try:
        kind, timeout_s, request = unpack_opening(frame)
    except UnknownCode as error:
        raise NotServing(str(error)) from None
    if ended != (kind is Kind.UNARY):
        raise BadMessage(f"a {kind.name} whose first frame says ended={ended}")
    return Opening(kind, timeout_s, request)
