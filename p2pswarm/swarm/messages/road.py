"""The question whether a server is still there, which another asks that waits for it.

Errors:  BadMessage on arrival when a field breaks its limit.
"""

from dataclasses import dataclass

from p2pswarm.wire.message import Message, message


@message(95)
@dataclass(frozen=True, slots=True)
class StillThere(Message):
    """A unary call, and its answer: the event loop of the other side runs, and is reached."""
