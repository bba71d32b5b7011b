"""Averaging between the members of one stage."""

from dataclasses import dataclass
from typing import Annotated

from p2pswarm.net.wire.message import Message, Range, message
from p2pswarm.run.messages.types import Generation, RunId, Step
from p2pswarm.tensors.codecs.meta import TensorMeta


@message(74)
@dataclass(frozen=True, slots=True)
class Shard(Message):
    """Opens the stream of one piece of a shard: `Grant`, bytes, and its end when it is in use."""

    run: RunId
    step: Step
    generation: Generation
    gathered: bool
    """False: a part of the sender's sum, for the shard's owner. True: the reduced shard."""
    index: Annotated[int, Range(0, 2**20)]
    """The piece: the shards of all members are cut into pieces, numbered through. The number after
    the last piece is that of the sender's share of the digest's key, inline; or of the shares of
    all in the order of the group, which a large group's collector tells."""
    tensor: TensorMeta
    tied: bool = False
    """True if the piece is of the tensor that two stages have in common."""
