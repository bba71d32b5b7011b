"""The question whether a server is still there, and what a member tells of its mates by that."""

from dataclasses import dataclass
from typing import Annotated

from p2pswarm.net.wire.message import Message, Size, message
from p2pswarm.run.messages.types import GROUP_MAX, Peer


@message(95)
@dataclass(frozen=True, slots=True)
class StillThere(Message):
    """A unary call, and its answer: the event loop of the other side runs, and is reached."""


@message(113)
@dataclass(frozen=True, slots=True)
class Apart(Message):
    """A member tells the trainer from which others of its stage nothing comes at present.

    It says all of them each time that this changes; none are as good as never having said it.
    """

    peers: Annotated[tuple[Peer, ...], Size(GROUP_MAX)]
