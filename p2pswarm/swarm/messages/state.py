"""Weights and optimizer state on their way to a newcomer.

Units:   bytes.
Errors:  BadMessage on arrival when a field breaks its limit.
"""

from dataclasses import dataclass
from typing import Annotated

from p2pswarm.swarm.messages.types import Digest, RunId, Stage, Step
from p2pswarm.wire.message import Message, Range, message


@message(75)
@dataclass(frozen=True, slots=True)
class FetchState(Message):
    """Opens the stream that downloads weights: `StateOffer`, then `FetchPiece` after piece."""

    run: RunId
    stage: Stage
    at_least: Step
    """The donor waits until it has this version."""


@message(76)
@dataclass(frozen=True, slots=True)
class StateOffer(Message):
    """The donor holds a snapshot still for this stream."""

    version: Step
    digest: Digest
    nbytes: Annotated[int, Range(0, 2**50)]


@message(77)
@dataclass(frozen=True, slots=True)
class FetchPiece(Message):
    """Asks for bytes of the snapshot, into memory that the sender of this message has set aside."""

    offset: Annotated[int, Range(0, 2**50)]
    nbytes: Annotated[int, Range(0, 2**30)]
    transfer: Annotated[int, Range(0, 2**62)]
