"""Messages of a simulated network as whoever watches it sees them: the kind, and the moment."""

from enum import Enum
from typing import Any

from p2pswarm.base.errors import BadMessage
from p2pswarm.net.rpc.framing import CODE_END, is_good
from p2pswarm.net.wire.message import Message, class_at


class Moment(Enum):
    """A moment in the life of a message."""

    LEAVES = "leaves"
    """A process is about to give it to its kernel."""
    ARRIVES = "arrives"
    """A process is about to read it."""


def message_in(args: tuple[Any, ...]) -> type[Message] | None:
    """The class of the message that an event brings; None if it brings none, or a later part."""
    for arg in args:
        if isinstance(arg, Message):
            return type(arg)
        if isinstance(arg, bytes) and is_good(arg):
            try:
                return class_at(arg[1 : 1 + CODE_END])
            except BadMessage:
                return None  # the last part of a long message
    return None
